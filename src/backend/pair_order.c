/* A stable counting sort. */
#include "backend/pair_order.h"

#include <string.h>

void pair_order(const int32_t *ids, uint32_t rows, uint32_t columns, uint32_t stride, uint32_t experts,
                int32_t *starts, int32_t *order) {
    /* starts[e + 1] counts the pairs of expert e, then is where they begin, and at last where they end. */
    memset(starts, 0, (experts + (size_t)1) * sizeof *starts);
    for (uint32_t t = 0; t < rows; t++)
        for (uint32_t k = 0; k < columns; k++) {
            uint32_t expert = (uint32_t)ids[(uint64_t)t * stride + k];
            if (expert < experts)
                starts[expert + 1]++;
        }
    int32_t start = 0;
    for (uint32_t e = 1; e <= experts; e++) {
        int32_t count = starts[e];
        starts[e] = start;
        start += count;
    }
    for (uint32_t t = 0; t < rows; t++)
        for (uint32_t k = 0; k < columns; k++) {
            uint32_t expert = (uint32_t)ids[(uint64_t)t * stride + k];
            if (expert < experts)
                order[starts[expert + 1]++] = (int32_t)(t * columns + k);
        }
}
