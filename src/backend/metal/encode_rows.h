/* What the encode files of other ops use of those on single rows. */
#ifndef CALLA_BACKEND_METAL_ENCODE_ROWS_H
#define CALLA_BACKEND_METAL_ENCODE_ROWS_H

#include "backend/metal/metal_encode.h"

/* Per row and head: the gated norm of y in place, once it is written. */
void encode_gated_norm_of(const struct op_constants *constants, const struct metal_operand *y,
                          const struct metal_operand *z, const struct metal_operand *weight,
                          struct metal_encoder *encoder);

#endif
