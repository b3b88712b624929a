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

enum { DEPTH = 64, LARGEST = 128, PLACES = 32 * 32 };

static const struct shape {
    const char *kernel;
    int rows, columns, threads;
    bool in_registers;
} shapes[] = {
    {"memory_16_32", 16, 32, 32, false},      {"memory_32_64", 32, 64, 128, false},
    {"memory_64_32", 64, 32, 128, false},     {"memory_64_128", 64, 128, 128, false},
    {"registers_16_32_16", 16, 32, 32, true}, {"registers_32_16_16", 32, 16, 32, true},
    {"registers_16_16_32", 16, 16, 32, true},
};

struct operands {
    struct metal_buffer *a, *w, *c, *places;
};

static bool operands_open(struct operands *operands, struct metal_device *device, struct calla_error *error) {
    return (operands->a = metal_buffer_new(device, LARGEST * DEPTH * 2, "a", error)) != NULL &&
           (operands->w = metal_buffer_new(device, LARGEST * DEPTH * 2, "w", error)) != NULL &&
           (operands->c = metal_buffer_new(device, LARGEST * LARGEST * 4, "c", error)) != NULL &&
           (operands->places = metal_buffer_new(device, PLACES * 4, "places", error)) != NULL;
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
    for (int i = 0; i < LARGEST * DEPTH; i++) {
        a[i] = float_to_bf16((float)(i * 7 % 13 - 6));
        w[i] = float_to_bf16((float)(i * 5 % 11 - 5));
    }
}

static bool run(const struct shape *shape, struct metal_device *device, struct metal_library *library,
                const struct operands *operands, struct calla_error *error) {
    struct metal_pipeline *pipeline = metal_pipeline_new(library, shape->kernel, NULL, 0, error);
    struct metal_commands *commands = metal_commands_new(device, shape->kernel, error);
    bool ok = pipeline != NULL && commands != NULL && metal_commands_begin(commands, false, error);
    if (ok) {
        uint64_t rows = (uint64_t)shape->rows, columns = (uint64_t)shape->columns;
        const struct metal_view views[] = {
            metal_bytes(operands->a, 0, rows * DEPTH * 2, METAL_READ),
            metal_bytes(operands->w, 0, columns * DEPTH * 2, METAL_READ),
            metal_bytes(operands->c, 0, rows * columns * 4, METAL_WRITE | METAL_ALL),
            metal_bytes(operands->places, 0, PLACES * 4, METAL_WRITE | METAL_ALL)};
        metal_set_pipeline(commands, pipeline);
        for (uint32_t i = 0; i < (shape->in_registers ? 4u : 3u); i++)
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
            for (int k = 0; k < DEPTH; k++)
                sum += bf16_to_float(a[i * DEPTH + k]) * bf16_to_float(w[j * DEPTH + k]);
            wrong += c[i * shape->columns + j] != sum;
        }
    return wrong;
}

/* Where the first and the last lane have their elements: row:column. */
static void print_places(const struct operands *operands) {
    const int32_t *places = metal_buffer_contents(operands->places);
    for (int lane = 0; lane < 32; lane += 31) {
        printf("    lane %d:", lane);
        for (int i = 0; i < 32; i++)
            if (places[lane * 32 + i] >= 0)
                printf(" %d:%d", places[lane * 32 + i] / 256, places[lane * 32 + i] % 256);
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
    if (ran && shape->in_registers)
        print_places(operands);
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
