/* The kernels of attention as a table. <instruction set>_attention.c includes this, is compiled for that
 * instruction set, and so gives the table its width. */
#ifndef CALLA_BACKEND_CPU_KERNELS_ATTENTION_TABLE_H
#define CALLA_BACKEND_CPU_KERNELS_ATTENTION_TABLE_H

#include "backend/cpu/kernels/attention.h"
#include "backend/cpu/kernels/rotary.h"

#define ATTENTION_KERNELS                                                                                    \
    {                                                                                                        \
        .workspace_bytes = attention_workspace_bytes, .attend = attend, .attend_span = attend_span,          \
        .combine = combine, .rotate = rotate, .store_bf16 = store_bf16                                       \
    }

#endif
