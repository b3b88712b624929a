/* How fast the CPU backend's matrix kernels are: matrix_bench [KERNELS [FORMAT [THREADS [COLUMNS]]]]
 *
 * A 4-bit weight too large for any cache, at an odd address, times 1 to 256 rows of input. All counts take
 * turns, so that what else the machine does falls on all of them alike; medians are printed. Time is the
 * processor time of the slowest thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cpu/kernels.h"

#define WEIGHT_BYTES ((size_t)256 << 20)
#define ROUNDS 41
#define ROUND_SECONDS 0.02
#define MAX_COUNT 256

static const size_t counts[] = {1, 2, 3, 4, 8, 16, 32, 64, 256};
#define COUNTS (sizeof counts / sizeof *counts)

static const char *const format_names[] = {"int8", "bf16", "f32"};

struct bench {
    const struct matrix_kernels *kernels;
    struct view matrix;
    struct operand_rows x;
    size_t count, threads, first_panel, panels; /* of this round */
    float *out;
    unsigned char *scratch, *inputs, *codes, *scales;
    double *seconds; /* of each thread */
};

static double thread_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *allocate(size_t size) {
    void *memory = aligned_alloc(64, (size + 63) / 64 * 64);
    if (memory == NULL) {
        fprintf(stderr, "There is no memory for %zu bytes.\n", size);
        exit(1);
    }
    return memory;
}

static void multiply(void *argument, size_t thread) {
    const struct bench *bench = argument;
    double start = thread_seconds();
    size_t all = bench->matrix.rows / PANEL_ROWS;
    for (size_t i = bench->panels * thread / bench->threads;
         i < bench->panels * (thread + 1) / bench->threads; i++)
        bench->kernels->multiply[bench->x.format](&bench->matrix, (bench->first_panel + i) % all * PANEL_ROWS,
                                                  PANEL_ROWS, &bench->x, NULL, bench->count,
                                                  bench->out + thread * MAX_COUNT * PANEL_ROWS,
                                                  bench->scratch + thread * PANEL_BYTES);
    bench->seconds[thread] = thread_seconds() - start;
}

/* Seconds a panel. */
static double measure(struct bench *bench, struct threads *threads, size_t count, size_t panels) {
    bench->count = count;
    bench->panels = panels;
    threads_run(threads, multiply, bench, bench->threads);
    double seconds = 0;
    for (size_t thread = 0; thread < bench->threads; thread++)
        seconds = bench->seconds[thread] > seconds ? bench->seconds[thread] : seconds;
    bench->first_panel = (bench->first_panel + panels) % (bench->matrix.rows / PANEL_ROWS);
    return seconds / (double)panels;
}

static void fill(struct bench *bench, size_t columns) {
    size_t groups = columns / DTYPE_AFFINE_GROUP, row_bytes = columns / 2;
    size_t rows = WEIGHT_BYTES / (row_bytes + groups * 4) / PANEL_ROWS * PANEL_ROWS;
    unsigned char *codes = bench->codes = allocate(rows * row_bytes + 1);
    unsigned char *scales = bench->scales = allocate(rows * groups * 4 + 1);
    for (size_t i = 0; i < rows * row_bytes; i++)
        codes[1 + i] = (unsigned char)(i * 2654435761u >> 24);
    for (size_t i = 0; i < rows * groups * 2; i++) {
        uint16_t value = (uint16_t)(0x3c00 + i % 251);
        memcpy(scales + 1 + i * 2, &value, 2);
    }
    bench->matrix = (struct view){.bytes = codes + 1,
                                  .scales = scales + 1,
                                  .biases = scales + 1 + rows * groups * 2,
                                  .dtype = DTYPE_AFFINE4,
                                  .scale_dtype = DTYPE_BF16,
                                  .bias_dtype = DTYPE_BF16,
                                  .rows = (uint32_t)rows,
                                  .columns = (uint32_t)columns,
                                  .stride = columns};
    bench->x.columns = columns;
    bench->x.row_bytes = operand_row_bytes(bench->x.format, columns);
    float *values = allocate(columns * sizeof *values);
    unsigned char *inputs = bench->inputs = allocate(MAX_COUNT * bench->x.row_bytes);
    for (size_t i = 0; i < MAX_COUNT; i++) {
        for (size_t j = 0; j < columns; j++)
            values[j] = (float)((i * columns + j) * 2654435761u % 65536) / 32768 - 1;
        if (bench->x.format == OPERAND_F32)
            memcpy(inputs + i * bench->x.row_bytes, values, columns * sizeof *values);
        else
            bench->kernels->prepare[bench->x.format](values, columns, inputs + i * bench->x.row_bytes);
    }
    bench->x.data = inputs;
    if (bench->x.format == OPERAND_F32) {
        free(values);
        return;
    }
    double start = thread_seconds();
    for (size_t i = 0; i < 10000; i++)
        bench->kernels->prepare[bench->x.format](values, columns,
                                                 inputs + i % MAX_COUNT * bench->x.row_bytes);
    printf("a row of %zu made ready in %.3f us\n", columns, (thread_seconds() - start) * 100);
    free(values);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    struct calla_error error;
    const struct kernels *kernels = NULL;
    for (size_t i = 0; kernels_at(i) != NULL && kernels == NULL; i++)
        if (kernels_at(i)->supported() && (argc < 2 || strcmp(kernels_at(i)->name, argv[1]) == 0))
            kernels = kernels_at(i);
    struct bench bench = {.x.format = OPERAND_FORMAT_COUNT, .threads = argc > 3 ? (size_t)atoi(argv[3]) : 1};
    for (enum operand_format format = 0; format < OPERAND_FORMAT_COUNT; format++)
        if (strcmp(argc > 2 ? argv[2] : "int8", format_names[format]) == 0)
            bench.x.format = format;
    size_t columns = argc > 4 ? (size_t)atoi(argv[4]) : 2048;
    if (kernels == NULL || bench.x.format == OPERAND_FORMAT_COUNT || bench.threads == 0 || columns == 0 ||
        columns % DTYPE_AFFINE_GROUP != 0) {
        fprintf(stderr, "usage: matrix_bench [KERNELS [int8|bf16|f32 [THREADS [COLUMNS]]]]\n");
        return 2;
    }
    struct threads *threads = threads_open((int)bench.threads, &error);
    if (threads == NULL) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    bench.kernels = kernels->matrix;
    printf("%s, %s, %zu threads, %zu columns\n", kernels->name, format_names[bench.x.format], bench.threads,
           columns);
    fill(&bench, columns);
    bench.out = allocate(bench.threads * MAX_COUNT * PANEL_ROWS * sizeof(float));
    bench.scratch = allocate(bench.threads * PANEL_BYTES);
    bench.seconds = allocate(bench.threads * sizeof *bench.seconds);
    double seconds[COUNTS][ROUNDS];
    size_t panels[COUNTS];
    for (size_t c = 0; c < COUNTS; c++) {
        double panel = measure(&bench, threads, counts[c], 16 * bench.threads);
        panels[c] = (size_t)(ROUND_SECONDS / panel) + bench.threads;
    }
    for (size_t round = 0; round < ROUNDS; round++)
        for (size_t c = 0; c < COUNTS; c++)
            seconds[c][round] = measure(&bench, threads, counts[c], panels[c]);
    for (size_t c = 0; c < COUNTS; c++) {
        qsort(seconds[c], ROUNDS, sizeof **seconds, ascending);
        double median = seconds[c][ROUNDS / 2], elements = (double)PANEL_ROWS * (double)columns;
        printf("count %3zu: %6.1f GOP/s, %5.2f GB/s (best %6.1f, worst %6.1f GOP/s)\n", counts[c],
               elements * 2e-9 * (double)counts[c] / median, elements * 0.5625e-9 / median,
               elements * 2e-9 * (double)counts[c] / seconds[c][0],
               elements * 2e-9 * (double)counts[c] / seconds[c][ROUNDS - 1]);
    }
    threads_close(threads);
    free(bench.codes);
    free(bench.scales);
    free(bench.inputs);
    free(bench.seconds);
    free(bench.out);
    free(bench.scratch);
    return 0;
}
