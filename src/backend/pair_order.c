/* A stable counting sort. */
#include "backend/pair_order.h"

void pair_order(const int32_t *ids, uint32_t rows, uint32_t columns, uint32_t stride, uint32_t experts,
                int32_t *starts, int32_t *order) {
    for (uint32_t e = 0; e <= experts; e++)
        starts[e] = 0;
    for (uint32_t t = 0; t < rows; t++)
        for (uint32_t k = 0; k < columns; k++)
            if ((uint32_t)ids[(uint64_t)t * stride + k] < experts)
                starts[ids[(uint64_t)t * stride + k] + 1]++;
    for (uint32_t e = 0; e < experts; e++)
        starts[e + 1] += starts[e];
    for (uint32_t t = 0; t < rows; t++)
        for (uint32_t k = 0; k < columns; k++) {
            uint32_t e = (uint32_t)ids[(uint64_t)t * stride + k];
            if (e < experts)
                order[starts[e]++] = (int32_t)(t * columns + k);
        }
    for (uint32_t e = experts; e > 0; e--)
        starts[e] = starts[e - 1];
    starts[0] = 0;
}
