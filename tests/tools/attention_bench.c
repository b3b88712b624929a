/* How fast the CPU backend's attention is: attention_bench [KERNELS [POSITION [ROWS [LAYERS]]]]
 *
 * 16 query heads and 2 KV heads of 256 over a bfloat16 cache, one thread, ROWS rows from POSITION on. More
 * than one layer keeps the cache out of the processor's own caches, as decoding does. The best and the median
 * of several rounds are printed, in processor time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "backend/cpu/cpu.h"

enum { HEADS = 16, KV_HEADS = 2, SIZE = 256, ROUNDS = 9, MAX_LAYERS = 64 };

#define HUGE_PAGE ((size_t)2 << 20)

static double thread_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Memory in huge pages where the system has them. */
static void *allocate(size_t size) {
    size = (size + HUGE_PAGE) / HUGE_PAGE * HUGE_PAGE;
    void *memory = aligned_alloc(HUGE_PAGE, size);
    if (memory == NULL) {
        fprintf(stderr, "There is no memory for %zu bytes.\n", size);
        exit(1);
    }
#ifdef MADV_HUGEPAGE
    madvise(memory, size, MADV_HUGEPAGE);
#endif
    return memory;
}

static float any(uint64_t *random) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (float)(*random >> 40) * (3.4f / 0x1p24f) - 1.7f;
}

static struct view matrix(void *data, enum dtype dtype, size_t rows, size_t columns, size_t stride) {
    return (struct view){.data = data,
                         .bytes = data,
                         .dtype = dtype,
                         .rows = (uint32_t)rows,
                         .columns = (uint32_t)columns,
                         .stride = stride};
}

static struct view cache_new(size_t rows, uint64_t *random) {
    size_t count = rows * KV_HEADS * SIZE;
    uint16_t *cache = allocate(count * sizeof *cache);
    for (size_t i = 0; i < count; i++)
        cache[i] = float_to_bf16(any(random));
    return matrix(cache, DTYPE_BF16, rows, KV_HEADS * SIZE, KV_HEADS * SIZE);
}

static int compare(const void *a, const void *b) {
    double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

static const struct kernels *find(const char *name) {
    const struct kernels *kernels;
    for (size_t i = 0; (kernels = kernels_at(i)) != NULL; i++)
        if (kernels->supported() && (name == NULL || strcmp(kernels->name, name) == 0))
            return kernels;
    return NULL;
}

int main(int count, char **arguments) {
    const struct kernels *kernels = find(count > 1 ? arguments[1] : NULL);
    size_t position = count > 2 ? strtoul(arguments[2], NULL, 10) : 32767;
    size_t rows = count > 3 ? strtoul(arguments[3], NULL, 10) : 1;
    size_t layers = count > 4 ? strtoul(arguments[4], NULL, 10) : 1;
    if (kernels == NULL || rows < 1 || rows > 1 << 14 || position > 1 << 20 || layers < 1 ||
        layers > MAX_LAYERS) {
        fprintf(stderr, "usage: attention_bench [KERNELS [POSITION [ROWS [LAYERS]]]]\n");
        return 2;
    }
    uint64_t random = 1;
    struct step_record record = {.position = (uint32_t)position, .rows = (uint32_t)rows};
    float *q = allocate(rows * HEADS * 2 * SIZE * sizeof *q), *y = allocate(rows * HEADS * SIZE * sizeof *y);
    for (size_t i = 0; i < rows * HEADS * 2 * SIZE; i++)
        q[i] = any(&random);
    struct bound_op ops[MAX_LAYERS];
    for (size_t layer = 0; layer < layers; layer++) {
        ops[layer] =
            (struct bound_op){.op = {.kind = OP_ATTENTION,
                                     .operand_count = 6,
                                     .constants = {.heads = HEADS, .kv_heads = KV_HEADS, .head_size = SIZE}},
                              .views = {{.data = &record},
                                        matrix(q, DTYPE_F32, rows * HEADS, SIZE, 2 * SIZE),
                                        matrix(q + SIZE, DTYPE_F32, rows * HEADS, SIZE, 2 * SIZE)}};
        ops[layer].views[3] = cache_new(position + rows, &random);
        ops[layer].views[4] = cache_new(position + rows, &random);
        ops[layer].views[5] = matrix(y, DTYPE_F32, rows * HEADS, SIZE, SIZE);
    }
    struct cpu_task task = {.op = ops, .kernels = kernels};
    task.shared = allocate(cpu_attention.shared_bytes(&task));
    task.workspace = allocate(cpu_attention.workspace_bytes(&task));

    double seconds[ROUNDS];
    for (size_t round = 0; round < ROUNDS; round++) {
        double start = thread_seconds();
        for (size_t layer = 0; layer < layers; layer++) {
            task.op = &ops[layer];
            size_t spans = cpu_attention.prepare_units(&task);
            if (spans > 0)
                cpu_attention.prepare(&task, 0, spans);
            cpu_attention.run(&task, 0, cpu_attention.units(&task));
        }
        seconds[round] = thread_seconds() - start;
    }
    qsort(seconds, ROUNDS, sizeof *seconds, compare);
    double positions = (double)rows * ((double)position + ((double)rows + 1) / 2); /* seen by all rows */
    double flops = 4.0 * HEADS * SIZE * positions * (double)layers;
    double bytes = 2.0 * KV_HEADS * SIZE * sizeof(uint16_t) * (double)((position + rows) * layers);
    for (size_t i = 0; i <= ROUNDS / 2; i += ROUNDS / 2)
        printf("%s %s: %.2f ms, %.1f GFLOP/s, %.2f GB/s of cache\n", kernels->name,
               i == 0 ? "best" : "median", seconds[i] * 1e3, flops / seconds[i] * 1e-9,
               bytes / seconds[i] * 1e-9);
    for (size_t layer = 0; layer < layers; layer++) {
        free(ops[layer].views[3].data);
        free(ops[layer].views[4].data);
    }
    free(task.shared);
    free(task.workspace);
    free(q);
    free(y);
    return 0;
}
