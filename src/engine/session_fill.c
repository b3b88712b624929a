/* A session at any position without the hours that a long prompt takes: state and cache get random values.
 *
 * A step costs the same whatever the values are, as long as they are there: every page must have been written
 * (untouched memory is one shared page of zeros, which would be read from the cache), none may be NaN or so
 * small that arithmetic slows down. */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_ELEMENTS ((size_t)1 << 18)

/* Uniform in [-scale, scale). */
static void random_floats(float *values, size_t count, float scale, uint64_t *state) {
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = *state += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
        bits = (bits ^ bits >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        bits = (bits ^ bits >> 27) * UINT64_C(0x94d049bb133111eb);
        values[i] = ((float)(bits >> 40) * 0x1p-23f - 1) * scale;
    }
}

/* Writes the first `elements` elements of a buffer, one block of random values again and again: drawing a
 * cache of gigabytes number by number would take longer than measuring on it. */
static bool fill_buffer(struct calla_session *session, enum space space, uint32_t buffer, enum dtype dtype,
                        uint64_t elements, const float *block, struct calla_error *error) {
    uint16_t *narrow = NULL;
    const void *bytes = block;
    if (dtype == DTYPE_BF16) {
        narrow = malloc(BLOCK_ELEMENTS * sizeof *narrow);
        if (narrow == NULL)
            return error_memory(error, "random values", BLOCK_ELEMENTS * sizeof *narrow);
        for (size_t i = 0; i < BLOCK_ELEMENTS; i++)
            narrow[i] = float_to_bf16(block[i]);
        bytes = narrow;
    } else if (dtype != DTYPE_F32) {
        return error_set(error, CALLA_UNSUPPORTED, "A %s buffer cannot be filled with random values.",
                         dtype_name(dtype));
    }
    size_t element = dtype_bits(dtype) / 8;
    bool ok = true;
    for (uint64_t done = 0; ok && done < elements; done += BLOCK_ELEMENTS) {
        uint64_t count = elements - done < BLOCK_ELEMENTS ? elements - done : BLOCK_ELEMENTS;
        ok = session->model->class->write(session->device, space, buffer, done * element, bytes,
                                          count * element, error);
    }
    free(narrow);
    return ok;
}

bool calla_session_fill(struct calla_session *session, const int32_t *tokens, size_t count, uint64_t seed,
                        struct calla_error *error) {
    const struct session_layout *layout = &session->layout;
    if (!session_check_tokens(session, tokens, count, error) || !calla_session_reset(session, error))
        return false;
    float *block = malloc(2 * BLOCK_ELEMENTS * sizeof *block);
    if (block == NULL)
        return error_memory(error, "random values", 2 * BLOCK_ELEMENTS * sizeof *block);
    /* Keys have passed a norm, so that their elements are about 1; what the delta layers remember is a sum of
     * outer products with keys of length 1, so that it is smaller. */
    float *small = block + BLOCK_ELEMENTS;
    random_floats(block, BLOCK_ELEMENTS, 1, &seed);
    random_floats(small, BLOCK_ELEMENTS, 0.1f, &seed);
    bool ok = true;
    for (uint32_t i = 0; ok && i < layout->state_count; i++)
        ok = fill_buffer(session, SPACE_STATE, i, layout->state[i].dtype,
                         (uint64_t)layout->state[i].rows * layout->state[i].columns, small, error);
    for (uint32_t i = 0; ok && i < layout->kv_count; i++)
        ok = fill_buffer(session, SPACE_KV, i, layout->kv[i].dtype, count * layout->kv[i].columns, block,
                         error);
    free(block);
    if (!ok) {
        calla_session_reset(session, NULL);
        return false;
    }
    session_stands(session, tokens, (uint32_t)count, false);
    return true;
}
