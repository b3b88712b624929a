#include "model/random_weights.h"

#include <math.h>
#include <string.h>

#include "model/folder.h"

/* A counter-based generator (the output function of splitmix64): value i of stream `key`. */
static inline uint64_t draw(uint64_t key, uint64_t i) {
    uint64_t z = key + i * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t random_key(uint64_t seed, const char *name) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (const char *c = name; *c != 0; c++)
        hash = (hash ^ (uint8_t)*c) * 0x100000001b3u;
    return draw(hash, seed + 1);
}

/* In [0, 1). */
static float uniform(uint64_t bits) {
    return (float)(bits >> 40) * 0x1p-24f;
}

/* Mean 0, variance 1, within 3.5: the sum of four uniform numbers, which is close to a normal one. */
static float normal(uint64_t bits) {
    uint32_t sum = (uint32_t)((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
    return ((float)sum * 0x1p-16f - 2) * 1.7320508f;
}

/* How much longer than its input a matrix makes its output. Embeddings have elements of deviation 1 and each
 * layer adds a little to them, as in a trained model; were all of one length, rounding would grow from layer
 * to layer, and no two ways of computing could be compared. Routers have preferences. */
static float gain(const struct weight *weight) {
    if (name_ends_with(weight->module, "embed_tokens"))
        return sqrtf((float)weight->columns);
    if (name_ends_with(weight->module, "o_proj") || name_ends_with(weight->module, "out_proj") ||
        name_ends_with(weight->module, "down_proj"))
        return 1.0f / 16;
    return name_ends_with(weight->module, "mlp.gate") ? 2 : 1;
}

/* Value i of a tensor that is not quantised. Norms lie around 1; A_log and dt_bias span time constants from a
 * token to thousands. */
static float plain_value(const struct weight *weight, uint64_t bits) {
    if (name_ends_with(weight->module, "A_log"))
        return -4 + 6 * uniform(bits);
    if (name_ends_with(weight->module, "dt_bias"))
        return -4 + 5 * uniform(bits);
    if (name_ends_with(weight->module, "norm"))
        return 1 + 0.1f * normal(bits);
    return normal(bits) * gain(weight) / sqrtf((float)weight->columns);
}

static void fill_plain(const struct weight *weight, uint64_t key, uint64_t first, uint8_t *out,
                       size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint16_t value = float_to_bf16(plain_value(weight, draw(key, first + i)));
        memcpy(out + 2 * i, &value, 2);
    }
}

/* A group's scale has a random sign and size; its bias puts the middle code near zero. With uniform codes the
 * values' variance is then gain^2/columns: (n^2 - 1) / 12 times the mean square of the scale, for n codes. */
static void fill_scales(const struct weight *weight, bool biases, uint64_t key, uint64_t first, uint8_t *out,
                        size_t count) {
    float codes = weight->dtype == DTYPE_AFFINE4 ? 16 : 256;
    float base = gain(weight) / sqrtf((codes * codes - 1) / 12 * (float)weight->columns);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = draw(key, first + i);
        float scale = base * (0.5f + uniform(bits)) * ((bits & 1) == 0 ? 1.0f : -1.0f);
        float middle = (codes - 1) / 2 * (0.95f + 0.1f * uniform(bits << 20));
        uint16_t value = float_to_bf16(biases ? -scale * middle : scale);
        memcpy(out + 2 * i, &value, 2);
    }
}

void random_weights_fill(const struct weight *weight, uint32_t part, uint64_t seed, uint64_t offset,
                         uint8_t *out, size_t size) {
    /* Scales and biases belong together and share a stream; codes have their own. */
    uint64_t key = random_key(seed, part == 0 ? weight->parts[0].name : weight->module);
    if (weight->part_count == 1) {
        fill_plain(weight, key, offset / 2, out, size / 2);
    } else if (part > 0) {
        fill_scales(weight, part == 2, key, offset / 2, out, size / 2);
    } else {
        for (size_t i = 0; i < size / 8; i++) {
            uint64_t codes = draw(key, offset / 8 + i);
            memcpy(out + 8 * i, &codes, 8);
        }
    }
}
