/* How fast attention reads keys and values of which those of several layers lie side by side in a row: what
 * ROW_BYTES in cuda_kv.c was chosen by. Needs decode_attention.o of the build:
 *
 *   nvcc -std=c++17 -O3 -arch=sm_90a -Isrc -Iinclude -o kv_layout_bench tests/cuda/kv_layout_bench.cu \
 *       build/cuda/decode_attention.o */
#include "bench.cuh"

#include "backend/cuda/decode.h"
#include "backend/cuda/kernels/prefill_attention.cuh"

#define LAYERS 10
#define HEADS 16
#define KV_HEADS 2
#define SIZE 256                        /* of a head */
#define ROW_BYTES (KV_HEADS * SIZE * 2) /* of one matrix */
#define ROWS (131072 + 64)

/* Where row 0 of matrix `index` lies if `together` matrices lie side by side. */
static char *matrix(char *memory, uint32_t index, uint32_t together) {
    return memory + (uint64_t)(index / together) * together * ROWS * ROW_BYTES +
           (uint64_t)(index % together) * ROW_BYTES;
}

/* Median microseconds of attention of one token in all layers. */
static double decode(char *memory, uint32_t together, uint32_t positions) {
    struct policy policy = {};
    policy.concurrent = true;
    struct cuda_device device = {};
    device.major = 9;
    device.multiprocessors = multiprocessors();
    device.policy = &policy;
    struct step_record record = {};
    record.position = positions - 1;
    struct cuda_op op = {};
    op.op.constants.heads = HEADS;
    op.op.constants.kv_heads = KV_HEADS;
    op.op.constants.head_size = SIZE;
    op.views[0].data = to_device(std::vector<struct step_record>{record});
    op.views[1].data = random_float(HEADS * SIZE, 1);
    op.views[1].rows = HEADS;
    op.views[2].data = random_float(HEADS * SIZE, 1);
    op.views[5].data = device_array<float>(HEADS * SIZE);
    for (int i : {1, 2, 5})
        op.views[i].stride = SIZE;
    for (int i : {3, 4}) {
        op.views[i].dtype = DTYPE_BF16;
        op.views[i].stride = together * (ROW_BYTES / 2);
    }
    char *workspace = device_array<char>(cuda_decode_attention_workspace(&op, &device));
    double time = time_of([&](int) {
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            op.views[3].data = matrix(memory, 2 * layer, together);
            op.views[4].data = matrix(memory, 2 * layer + 1, together);
            check(cuda_decode_attention_launch(&op, &device, workspace, 0));
        }
    });
    for (int i : {0, 1, 2, 5})
        cudaFree(op.views[i].data);
    cudaFree(workspace);
    return time;
}

/* Of attention of many tokens, in one layer. */
static double prefill(char *memory, uint32_t together, uint32_t tokens, uint32_t position) {
    float *q = random_float((uint64_t)tokens * HEADS * SIZE, 1),
          *gate = random_float((uint64_t)tokens * HEADS * SIZE, 1);
    float *y = device_array<float>((uint64_t)tokens * HEADS * SIZE);
    uint32_t *record = to_device(std::vector<uint32_t>{position});
    struct attention_arguments arguments = {record,
                                            q,
                                            gate,
                                            (const __nv_bfloat16 *)matrix(memory, 0, together),
                                            (const __nv_bfloat16 *)matrix(memory, 1, together),
                                            y,
                                            SIZE,
                                            SIZE,
                                            SIZE,
                                            together * (ROW_BYTES / 2),
                                            tokens,
                                            HEADS,
                                            KV_HEADS,
                                            ROWS};
    double time = time_of([&](int) { check(attention_launch<float>(arguments, CUDA_EXCLUSIVE, 0)); });
    cudaFree(q);
    cudaFree(gate);
    cudaFree(y);
    cudaFree(record);
    return time;
}

int main(void) {
    uint64_t bytes = (uint64_t)2 * LAYERS * ROWS * ROW_BYTES;
    char *memory = (char *)random_bf16(bytes / 2, 1);
    for (uint32_t together : {1u, 2u, 4u, 10u, 20u}) {
        printf("%2u side by side: a token at", together);
        for (uint32_t positions : {4096u, 32768u, 131072u}) {
            double time = decode(memory, together, positions);
            printf(" %u: %.1f us, %.2f TB/s;", positions, time,
                   (double)positions * 2 * LAYERS * ROW_BYTES / time * 1e-6);
        }
        printf(" 4096 tokens at 0: %.1f us, at 61440: %.1f us\n", prefill(memory, together, 4096, 0),
               prefill(memory, together, 4096, 61440));
        fflush(stdout);
    }
    return 0;
}
