#include "model/affine.h"

#include <math.h>

#include "base/dtype.h"
#include "model/config.h"

/* The scale runs from the value of largest magnitude (the edge, which a code hits exactly) towards the other
 * end, so it is negative where the edge is the maximum. */
static void choose_scale(const float *group, float levels, float *scale, float *bias) {
    float low = group[0], high = group[0];
    for (int i = 1; i < CONFIG_GROUP_SIZE; i++) {
        low = fminf(low, group[i]);
        high = fmaxf(high, group[i]);
    }
    bool low_edge = fabsf(low) > fabsf(high);
    float edge = low_edge ? low : high;
    float step = fmaxf((high - low) / levels, 1e-7f);
    *scale = low_edge ? step : -step;
    *bias = 0;
    float edge_code = rintf(edge / *scale);
    if (edge_code != 0) {
        *scale = edge / edge_code;
        *bias = edge;
    }
}

void affine_quantize_row(const float *values, uint32_t columns, uint32_t bits, uint8_t *codes,
                         uint16_t *scales, uint16_t *biases) {
    float levels = bits == 4 ? 15 : 255;
    for (uint32_t group = 0; group < columns / CONFIG_GROUP_SIZE; group++) {
        const float *of = values + (size_t)group * CONFIG_GROUP_SIZE;
        uint8_t *out = codes + (size_t)group * CONFIG_GROUP_SIZE * bits / 8;
        float scale, bias;
        choose_scale(of, levels, &scale, &bias);
        for (int i = 0; i < CONFIG_GROUP_SIZE; i++) {
            uint8_t code = (uint8_t)fminf(fmaxf(rintf((of[i] - bias) / scale), 0), levels);
            if (bits == 8)
                out[i] = code;
            else
                out[i / 2] = (uint8_t)(i % 2 == 0 ? code : out[i / 2] | code << 4);
        }
        scales[group] = float_to_bf16(scale);
        biases[group] = float_to_bf16(bias);
    }
}

void affine_dequantize_row(const uint8_t *codes, const uint16_t *scales, const uint16_t *biases,
                           uint32_t columns, uint32_t bits, float *values) {
    for (uint32_t i = 0; i < columns; i++) {
        uint32_t code = bits == 8 ? codes[i] : codes[i / 2] >> (i % 2 * 4) & 15u;
        uint32_t group = i / CONFIG_GROUP_SIZE;
        values[i] = bf16_to_float(scales[group]) * (float)code + bf16_to_float(biases[group]);
    }
}
