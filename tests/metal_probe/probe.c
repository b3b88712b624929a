/* metal_probe FILE: asks this machine's GPU which shapes of tensor operations it takes, whether their
 * products are right, and how cooperative tensors lie over its lanes. FILE is probe.metal. A shape that is
 * refused is an answer; a wrong product is a failure. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/metal/metal_describe.h"
#include "base/buffer.h"
#include "base/dtype.h"
#include "base/file.h"

enum { PLACES_OF_THREAD = 64, MOST_THREADS = 128, A_SIZE = 64 * 256, W_SIZE = 64 * 512, C_SIZE = 64 * 128 };

/* c [rows, columns] = a [rows, depth] w [columns, depth]^T, or times w [depth, columns]; the rows of w are
 * `stride` apart. */
static const struct shape {
    const char *kernel;
    int rows, columns, depth, stride, threads;
    bool w_by_depth;
    bool places; /* it tells where the elements lie */
} shapes[] = {
    {"tiles_16", 16, 64, 256, 256, 128, false, true},
    {"tiles_32", 32, 64, 256, 256, 128, false, true},
    {"tiles_64", 64, 64, 256, 256, 128, false, true},
    {"keys_32", 32, 32, 256, 512, 128, false, true},
    {"keys_13", 32, 13, 256, 512, 128, false, true},
    {"values_64", 32, 256, 64, 512, 128, true, true},
    {"values_45", 32, 256, 45, 512, 128, true, true},
    {"memory_16_32", 16, 32, 64, 64, 32, false, false},
    {"memory_32_64", 32, 64, 64, 64, 128, false, false},
    {"memory_64_32", 64, 32, 64, 64, 128, false, false},
    {"memory_64_128", 64, 128, 64, 64, 128, false, false},
    {"registers_16_32_16", 16, 32, 64, 64, 32, false, true},
    {"registers_32_16_16", 32, 16, 64, 64, 32, false, true},
    {"registers_16_16_32", 16, 16, 64, 64, 32, false, true},
};

struct operands {
    struct metal_buffer *a, *w, *c, *places;
};

static bool operands_open(struct operands *operands, struct metal_device *device, struct calla_error *error) {
    return (operands->a = metal_buffer_new(device, A_SIZE * 2, "a", error)) != NULL &&
           (operands->w = metal_buffer_new(device, W_SIZE * 2, "w", error)) != NULL &&
           (operands->c = metal_buffer_new(device, C_SIZE * 4, "c", error)) != NULL &&
           (operands->places =
                metal_buffer_new(device, MOST_THREADS * PLACES_OF_THREAD * 4, "places", error)) != NULL;
}

static void operands_close(struct operands *operands) {
    metal_buffer_free(operands->a);
    metal_buffer_free(operands->w);
    metal_buffer_free(operands->c);
    metal_buffer_free(operands->places);
}

/* Small numbers, whose products and sums are exact in any order. */
static void fill(const struct operands *operands) {
    uint16_t *a = metal_buffer_contents(operands->a), *w = metal_buffer_contents(operands->w);
    for (int i = 0; i < A_SIZE; i++)
        a[i] = float_to_bf16((float)(i * 7 % 13 - 6));
    for (int i = 0; i < W_SIZE; i++)
        w[i] = float_to_bf16((float)(i * 5 % 11 - 5));
}

static bool run(const struct shape *shape, struct metal_device *device, struct metal_library *library,
                const struct operands *operands, struct calla_error *error) {
    struct metal_pipeline *pipeline = metal_pipeline_new(library, shape->kernel, NULL, 0, error);
    struct metal_commands *commands = metal_commands_new(device, shape->kernel, error);
    bool ok = pipeline != NULL && commands != NULL && metal_commands_begin(commands, false, error);
    if (ok) {
        uint64_t rows = (uint64_t)shape->rows, columns = (uint64_t)shape->columns,
                 depth = (uint64_t)shape->depth, threads = (uint64_t)shape->threads;
        const struct metal_view views[] = {
            metal_bytes(operands->a, 0, rows * depth * 2, METAL_READ),
            {operands->w, 0, shape->w_by_depth ? depth : columns, (shape->w_by_depth ? columns : depth) * 2,
             (uint64_t)shape->stride * 2, METAL_READ},
            metal_bytes(operands->c, 0, rows * columns * 4, METAL_WRITE | METAL_ALL),
            metal_bytes(operands->places, 0, threads * PLACES_OF_THREAD * 4, METAL_WRITE | METAL_ALL)};
        metal_set_pipeline(commands, pipeline);
        for (uint32_t i = 0; i < (shape->places ? 4u : 3u); i++)
            metal_set_buffer(commands, i, &views[i]);
        metal_dispatch(commands, (struct metal_size){1, 1, 1},
                       (struct metal_size){(uint32_t)shape->threads, 1, 1});
        ok = metal_commands_commit(commands, error) && metal_commands_wait(commands, error);
    }
    metal_commands_free(commands);
    metal_pipeline_free(pipeline);
    return ok;
}

/* Elements of c that are not the product. */
static int count_wrong(const struct shape *shape, const struct operands *operands) {
    const uint16_t *a = metal_buffer_contents(operands->a), *w = metal_buffer_contents(operands->w);
    const float *c = metal_buffer_contents(operands->c);
    int wrong = 0;
    for (int i = 0; i < shape->rows; i++)
        for (int j = 0; j < shape->columns; j++) {
            float sum = 0;
            for (int k = 0; k < shape->depth; k++)
                sum += bf16_to_float(a[i * shape->depth + k]) *
                       bf16_to_float(w[shape->w_by_depth ? k * shape->stride + j : j * shape->stride + k]);
            wrong += c[i * shape->columns + j] != sum;
        }
    return wrong;
}

/* Where threads 0, 1, 2, 4, ... have their elements, row:column; on known GPUs each bit of a thread's number
 * moves them by the same, whatever the others are. */
static void print_places(const struct shape *shape, const struct operands *operands) {
    const int32_t *places = metal_buffer_contents(operands->places);
    for (int thread = 0; thread < shape->threads; thread = thread == 0 ? 1 : 2 * thread) {
        printf("    thread %d:", thread);
        for (int i = 0; i < PLACES_OF_THREAD; i++) {
            int32_t place = places[thread * PLACES_OF_THREAD + i];
            if (place >= 0)
                printf(" %d:%d", place / 256, place % 256);
        }
        putchar('\n');
    }
}

/* False for a wrong product. */
static bool probe(const struct shape *shape, struct metal_device *device, const char *source,
                  const struct operands *operands) {
    struct calla_error error = {0};
    struct buffer text = {0};
    buffer_printf(&text, "#define PROBE_ONE\n#define PROBE_%s\n%s", shape->kernel, source);
    const struct metal_sources sources = {
        .name = "probe", .language = METAL_LANGUAGE(4, 0), .text = text.data};
    struct metal_library *library = text.failed ? NULL : metal_library_new(device, &sources, &error);
    bool ran = library != NULL && run(shape, device, library, operands, &error);
    int wrong = ran ? count_wrong(shape, operands) : 0;
    if (!ran)
        printf("%-20s refused: %s\n", shape->kernel, error.message);
    else
        printf("%-20s %s (%d of %d wrong)\n", shape->kernel, wrong == 0 ? "right" : "WRONG", wrong,
               shape->rows * shape->columns);
    if (ran && shape->places)
        print_places(shape, operands);
    metal_library_free(library);
    buffer_free(&text);
    return wrong == 0;
}

int main(int argc, char **argv) {
    struct calla_error error = {0};
    struct buffer source = {0};
    struct operands operands = {.a = NULL};
    char line[160];
    if (argc != 2) {
        fprintf(stderr, "usage: metal_probe probe.metal\n");
        return 2;
    }
    struct metal_device *device = metal_device_open(&error);
    bool ok = device != NULL && file_read(argv[1], (size_t)1 << 20, &source, &error) &&
              buffer_append_byte(&source, 0) && operands_open(&operands, device, &error);
    if (!ok)
        fprintf(stderr, "metal_probe: %s\n", error.message);
    if (ok) {
        const struct metal_facts *facts = metal_device_facts(device);
        metal_describe_tensor_operations(facts, NULL, line, sizeof line);
        printf("%s, %s, %s, GPU family Apple%u\ntensor operations %s\n", facts->name, facts->architecture,
               facts->system, facts->family, facts->tensor_operations ? "asked in what follows" : line);
        fill(&operands);
        if (facts->language < METAL_LANGUAGE(4, 0))
            printf("not probed: this system does not compile Metal 4\n");
        else
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
                ok = probe(&shapes[i], device, source.data, &operands) && ok;
    }
    operands_close(&operands);
    buffer_free(&source);
    metal_device_close(device);
    return ok ? 0 : 1;
}
