/* MLX's affine quantisation: along a row, each group of 64 values is scale * code + bias with codes of 4 or 8
 * bits. Scales of either sign occur. docs/weights.md describes the layout. */
#ifndef CALLA_MODEL_AFFINE_H
#define CALLA_MODEL_AFFINE_H

#include <stdint.h>

/* Quantises values[columns] (columns a multiple of 64, all finite) to bits 4 or 8: codes of columns * bits /
 * 8 bytes, and a BF16 scale and bias a group. The codes are those of mx.quantize: chosen with the unrounded
 * scale, which with its bias is then rounded to BF16. */
void affine_quantize_row(const float *values, uint32_t columns, uint32_t bits, uint8_t *codes,
                         uint16_t *scales, uint16_t *biases);

/* values[i] = scale * code + bias in float32. */
void affine_dequantize_row(const uint8_t *codes, const uint16_t *scales, const uint16_t *biases,
                           uint32_t columns, uint32_t bits, float *values);

#endif
