/* Sorting chosen experts on the host: the CPU backend's way, and that of GPUs with device_routing=off. */
#ifndef CALLA_BACKEND_PAIR_ORDER_H
#define CALLA_BACKEND_PAIR_ORDER_H

#include <stdint.h>

/* ids[rows, columns], rows `stride` elements apart -> starts[experts + 1], order[rows * columns]: what
 * OP_EXPERT_SORT means. Ids that are no experts, which nothing computes, would be left out. */
void pair_order(const int32_t *ids, uint32_t rows, uint32_t columns, uint32_t stride, uint32_t experts,
                int32_t *starts, int32_t *order);

#endif
