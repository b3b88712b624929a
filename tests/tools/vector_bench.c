/* How long the ops that are not matrix products take on one thread: vector_bench [KERNELS|reference [TOKENS]]
 *
 * The shapes are Qwen3.6-35B-A3B's. Each op has as many sets of buffers as the model has layers of its kind,
 * which take turns: what a plan finds in the caches, it finds there too. All ops take turns as well, so that
 * what else the machine does falls on all of them alike; medians of processor time are printed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cpu/cpu.h"
#include "backend/reference/reference.h"

#define ROUND_SECONDS 0.02
#define MAX_ROUNDS 101
#define MAX_LAYERS 40

enum {
    KEY_HEADS = 16,
    VALUE_HEADS = 32,
    SIZE = 128,
    KEYS = KEY_HEADS * SIZE,
    VALUES = VALUE_HEADS * SIZE,
    CHANNELS = 2 * KEYS + VALUES,
    TAPS = 4,
    HIDDEN = 2048,
    HEADS = 16,
    HEAD_SIZE = 256,
    EXPERTS = 256,
    CHOSEN = 8,
    WIDTH = 512,
    VOCABULARY = 248320
};

struct measured {
    char name[48];
    uint32_t layers; /* in the model */
    struct bound_op ops[MAX_LAYERS];
    uint32_t set; /* whose turn it is */
    double seconds[MAX_ROUNDS];
};

static const struct kernels *kernels; /* NULL: the reference */
static void *workspace, *shared;
static uint32_t tokens;
static uint64_t random_state = 1;

static void *allocate(size_t size) {
    void *memory = aligned_alloc(64, (size + 127) / 64 * 64);
    if (memory == NULL) {
        fprintf(stderr, "There is no memory for %zu bytes.\n", size);
        exit(1);
    }
    return memory;
}

/* In [0, 1). */
static float uniform(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(random_state >> 40) * 0x1p-24f;
}

static struct view floats(uint32_t rows, uint32_t columns, float low, float high) {
    /* As the buffers of a session, which the C library aligns to 16 bytes. */
    float *data = (float *)((char *)allocate((size_t)rows * columns * 4 + 16) + 16);
    for (size_t i = 0; i < (size_t)rows * columns; i++)
        data[i] = low + (high - low) * uniform();
    return (struct view){.bytes = (unsigned char *)data,
                         .data = data,
                         .dtype = DTYPE_F32,
                         .rows = rows,
                         .columns = columns,
                         .stride = columns};
}

static struct view integers(uint32_t rows, uint32_t columns, uint32_t limit) {
    struct view view = floats(rows, columns, 0, 1);
    for (size_t i = 0; i < (size_t)rows * columns; i++)
        ((int32_t *)view.data)[i] = limit > 0 ? (int32_t)(uniform() * (float)limit) : 0;
    view.dtype = DTYPE_I32;
    return view;
}

/* A weight in bfloat16 at an odd address. */
static struct view weight(uint32_t rows, uint32_t columns) {
    unsigned char *data = (unsigned char *)allocate((size_t)rows * columns * 2 + 1) + 1;
    for (size_t i = 0; i < (size_t)rows * columns; i++) {
        uint16_t bits = float_to_bf16(uniform() - 0.5f);
        memcpy(data + 2 * i, &bits, 2);
    }
    return (struct view){
        .bytes = data, .dtype = DTYPE_BF16, .rows = rows, .columns = columns, .stride = columns};
}

static struct view affine4(uint32_t rows, uint32_t columns) {
    struct view view = weight(rows, columns / 4), scales = weight(rows, columns / 64),
                biases = weight(rows, columns / 64);
    view.dtype = DTYPE_AFFINE4;
    view.columns = columns;
    view.stride = columns;
    view.scales = scales.bytes;
    view.biases = biases.bytes;
    view.scale_dtype = view.bias_dtype = DTYPE_BF16;
    return view;
}

static struct view record(float temperature, uint32_t top_k, float top_p) {
    struct step_record *values = allocate(sizeof *values);
    *values = (struct step_record){.rows = 1,
                                   .temperature = temperature,
                                   .top_k = top_k,
                                   .top_p = top_p,
                                   .repetition_penalty = 1,
                                   .seed = 1};
    return (struct view){.data = values, .rows = 1, .columns = sizeof *values};
}

static void fill(struct measured *measured, enum op_kind kind, const char *name, uint32_t layers,
                 struct view *(*views)(struct view *next)) {
    snprintf(measured->name, sizeof measured->name, "%s", name);
    measured->layers = layers;
    for (uint32_t i = 0; i < layers; i++) {
        struct bound_op *op = &measured->ops[i];
        op->op.kind = kind;
        op->op.constants = (struct op_constants){.key_heads = KEY_HEADS,
                                                 .value_heads = VALUE_HEADS,
                                                 .key_size = SIZE,
                                                 .value_size = SIZE,
                                                 .taps = TAPS,
                                                 .heads = HEADS,
                                                 .experts = EXPERTS,
                                                 .experts_per_token = CHOSEN,
                                                 .epsilon = 1e-6f,
                                                 .l2_epsilon = 1e-6f};
        op->op.operand_count = (uint32_t)(views(op->views) - op->views);
    }
}

static struct view *embed(struct view *next) {
    *next++ = integers(1, tokens, 1000);
    *next++ = affine4(1000, HIDDEN);
    *next++ = floats(tokens, HIDDEN, 0, 0);
    return next;
}

static struct view *rms(struct view *next) {
    *next++ = floats(tokens, HIDDEN, -1, 1);
    *next++ = weight(1, HIDDEN);
    *next++ = floats(tokens, HIDDEN, 0, 0);
    return next;
}

static struct view *conv(struct view *next) {
    *next++ = record(0, 0, 1);
    *next++ = floats(tokens, CHANNELS, -3, 3);
    *next++ = weight(CHANNELS, TAPS);
    *next++ = floats(TAPS, CHANNELS, -3, 3);
    *next++ = floats(tokens, KEYS, 0, 0);
    *next++ = floats(tokens, KEYS, 0, 0);
    *next++ = floats(tokens, VALUES, 0, 0);
    return next;
}

static struct view *gates(struct view *next) {
    *next++ = floats(tokens, VALUE_HEADS, -3, 3);
    *next++ = floats(tokens, VALUE_HEADS, -3, 3);
    *next++ = weight(1, VALUE_HEADS);
    *next++ = weight(1, VALUE_HEADS);
    *next++ = floats(tokens, VALUE_HEADS, 0, 0);
    *next++ = floats(tokens, VALUE_HEADS, 0, 0);
    return next;
}

static struct view *scan(struct view *next) {
    *next++ = floats(tokens, KEYS, -0.1f, 0.1f);
    *next++ = floats(tokens, KEYS, -0.15f, 0.15f);
    *next++ = floats(tokens, VALUES, -1, 1);
    *next++ = floats(tokens, VALUE_HEADS, 0.5f, 1);
    *next++ = floats(tokens, VALUE_HEADS, 0, 1);
    *next++ = floats(VALUES, SIZE, -0.3f, 0.3f);
    *next++ = floats(tokens, VALUES, 0, 0);
    return next;
}

static struct view *gated(struct view *next) {
    *next++ = floats(tokens, VALUES, -1, 1);
    *next++ = floats(tokens, VALUES, -5, 5);
    *next++ = weight(1, SIZE);
    *next++ = floats(tokens, VALUES, 0, 0);
    return next;
}

static struct view *tail(struct view *next) {
    *next++ = floats(tokens, VALUE_HEADS, -3, 3);
    *next++ = floats(tokens, VALUE_HEADS, -3, 3);
    *next++ = weight(1, VALUE_HEADS);
    *next++ = weight(1, VALUE_HEADS);
    *next++ = floats(tokens, KEYS, -0.1f, 0.1f);
    *next++ = floats(tokens, KEYS, -0.15f, 0.15f);
    *next++ = floats(tokens, VALUES, -1, 1);
    *next++ = floats(tokens, VALUES, -5, 5);
    *next++ = weight(1, SIZE);
    *next++ = floats(VALUES, SIZE, -0.3f, 0.3f);
    *next++ = floats(tokens, VALUES, 0, 0);
    return next;
}

static struct view *step(struct view *next) {
    *next++ = record(0, 0, 1);
    *next++ = floats(1, CHANNELS, -3, 3);
    *next++ = floats(1, VALUE_HEADS, -3, 3);
    *next++ = floats(1, VALUE_HEADS, -3, 3);
    *next++ = weight(CHANNELS, TAPS);
    *next++ = weight(1, VALUE_HEADS);
    *next++ = weight(1, VALUE_HEADS);
    *next++ = floats(1, VALUES, -5, 5);
    *next++ = weight(1, SIZE);
    *next++ = floats(TAPS, CHANNELS, -3, 3);
    *next++ = floats(VALUES, SIZE, -0.3f, 0.3f);
    *next++ = floats(1, VALUES, 0, 0);
    return next;
}

static struct view *sort(struct view *next) {
    *next++ = integers(tokens, CHOSEN, EXPERTS);
    *next++ = integers(1, EXPERTS + 1, 0);
    *next++ = integers(1, tokens * CHOSEN, 0);
    return next;
}

static struct view *activation(struct view *next) {
    *next++ = floats(tokens * CHOSEN, WIDTH, -5, 5);
    *next++ = floats(tokens * CHOSEN, WIDTH, -5, 5);
    *next++ = floats(tokens * CHOSEN, WIDTH, 0, 0);
    return next;
}

static struct view *combine(struct view *next) {
    *next++ = floats(tokens * CHOSEN, HIDDEN, -1, 1);
    *next++ = floats(tokens, HIDDEN, -1, 1);
    *next++ = floats(tokens, CHOSEN + 1, 0, 0.2f);
    *next++ = floats(tokens, HIDDEN, -1, 1);
    return next;
}

static struct view *logits(struct view *next, float temperature, uint32_t top_k, float top_p) {
    *next++ = record(temperature, top_k, top_p);
    *next = floats(1, VOCABULARY, 0, 1);
    /* Twelve uniform numbers make a normal one; the deviation is that of a language model's logits. */
    for (size_t i = 0; i < VOCABULARY; i++) {
        float sum = -6;
        for (int j = 0; j < 12; j++)
            sum += uniform();
        float_row(next, 0)[i] = 2.5f * sum;
    }
    next++;
    *next++ = floats(1, VOCABULARY, 0, 0);
    *next++ = integers(1, VOCABULARY, 0);
    *next++ = integers(1, 1, 0);
    return next;
}

static struct view *greedy(struct view *next) {
    return logits(next, 0, 0, 1);
}

static struct view *top_k(struct view *next) {
    return logits(next, 1, 20, 0.95f);
}

static struct view *top_p(struct view *next) {
    return logits(next, 0.7f, 0, 0.9f);
}

static struct view *from_all(struct view *next) {
    return logits(next, 1, 0, 1);
}

static void run(const struct bound_op *op) {
    if (kernels == NULL) {
        const struct reference_op *reference = &reference_ops[op->op.kind];
        reference->run(op, 0, reference->units(op), workspace);
        return;
    }
    struct cpu_op functions = cpu_op_of(op->op.kind);
    struct cpu_task task = {
        .op = op, .kernels = kernels, .format = OPERAND_INT8, .shared = shared, .workspace = workspace};
    if (functions.prepare_units != NULL)
        functions.prepare(&task, 0, functions.prepare_units(&task));
    functions.run(&task, 0, functions.units(&task));
    if (functions.finish != NULL)
        functions.finish(&task);
}

static double thread_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Seconds of one run of the op, over `times` of them. */
static double measure(struct measured *measured, size_t times) {
    double start = thread_seconds();
    for (size_t i = 0; i < times; i++) {
        run(&measured->ops[measured->set]);
        measured->set = (measured->set + 1) % measured->layers;
    }
    return (thread_seconds() - start) / (double)times;
}

static int compare(const void *a, const void *b) {
    double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

int main(int argc, char **argv) {
    tokens = argc > 2 ? (uint32_t)atoi(argv[2]) : 1;
    if (argc < 2 || strcmp(argv[1], "reference") != 0) {
        size_t i = 0;
        while (kernels_at(i) != NULL &&
               (!kernels_at(i)->supported() || (argc > 1 && strcmp(argv[1], kernels_at(i)->name) != 0)))
            i++;
        kernels = kernels_at(i);
        if (kernels == NULL) {
            fprintf(stderr, "This processor, or this build, has no kernels called %s.\n", argv[1]);
            return 1;
        }
    }
    if (tokens < 1 || tokens > 4096) {
        fprintf(stderr, "Tokens are 1 to 4096.\n");
        return 1;
    }
    workspace = allocate((size_t)16 << 20);
    shared = allocate((size_t)16 << 20);
    static struct measured all[16];
    struct measured *next = all;
    /* For a chunk a few sets are more than the caches hold. */
    uint32_t sets = tokens == 1 ? 30 : 2, expert_sets = tokens == 1 ? 40 : 2;
    fill(next++, OP_EMBED, "embed", 1, embed);
    fill(next++, OP_RMS_NORM, "rms_norm", expert_sets, rms);
    fill(next++, OP_CONV_SILU, "conv_silu", sets, conv);
    fill(next++, OP_DELTA_GATES, "delta_gates", sets, gates);
    fill(next++, OP_DELTA_SCAN, "delta_scan", sets, scan);
    fill(next++, OP_GATED_NORM, "gated_norm", sets, gated);
    fill(next++, OP_DELTA_TAIL, "delta_tail", sets, tail);
    fill(next++, OP_EXPERT_SORT, "expert_sort", expert_sets, sort);
    fill(next++, OP_SWIGLU, "swiglu", expert_sets, activation);
    fill(next++, OP_EXPERT_COMBINE, "expert_combine", expert_sets, combine);
    if (tokens == 1) {
        fill(next++, OP_DELTA_STEP, "delta_step", sets, step);
        fill(next++, OP_SAMPLE, "sample, greedy", 1, greedy);
        fill(next++, OP_SAMPLE, "sample, top-k 20, top-p 0.95", 1, top_k);
        fill(next++, OP_SAMPLE, "sample, temperature 0.7, top-p 0.9", 1, top_p);
        fill(next++, OP_SAMPLE, "sample, temperature 1", 1, from_all);
    }
    size_t count = (size_t)(next - all), times[16];
    for (size_t i = 0; i < count; i++)
        times[i] = (size_t)(ROUND_SECONDS / measure(&all[i], 1)) + 1;
    size_t rounds = kernels == NULL ? 5 : MAX_ROUNDS;
    for (size_t round = 0; round < rounds; round++)
        for (size_t i = 0; i < count; i++)
            all[i].seconds[round] = measure(&all[i], times[i]);
    printf("%s, %u tokens, one thread: microseconds a token and layer\n",
           kernels == NULL ? "reference" : kernels->name, tokens);
    for (size_t i = 0; i < count; i++) {
        qsort(all[i].seconds, rounds, sizeof(double), compare);
        double scale = 1e6 / tokens;
        printf("%-36s %10.3f  (%.3f to %.3f)\n", all[i].name, all[i].seconds[rounds / 2] * scale,
               all[i].seconds[rounds / 20] * scale, all[i].seconds[rounds - 1 - rounds / 20] * scale);
    }
    return 0;
}
