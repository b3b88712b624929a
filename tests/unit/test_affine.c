#include "unit.h"

#include <math.h>
#include <stdio.h>

#include "base/dtype.h"
#include "base/json.h"
#include "model/affine.h"

#define COLUMNS 128

static void read_bits(json_t *values, uint16_t *out, size_t count) {
    assert_int_equal(json_array_size(values), count);
    for (size_t i = 0; i < count; i++)
        out[i] = (uint16_t)json_integer_value(json_array_get(values, i));
}

/* tools/oracle/affine.py wrote what MLX makes of the same rows. */
static void codes_are_those_of_mlx(void **state) {
    (void)state;
    struct calla_error error = {0};
    json_t *file = json_parse_file("tests/data/affine.json", 1 << 20, &error);
    if (file == NULL)
        fail_msg("%s", error.message);
    json_t *cases = json_object_get(file, "cases");
    assert_int_equal(json_array_size(cases), 40);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *one = json_array_get(cases, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        uint32_t bits = (uint32_t)json_integer_value(json_object_get(one, "bits"));
        uint16_t values[COLUMNS], back[COLUMNS], scales[2], biases[2];
        float row[COLUMNS];
        read_bits(json_object_get(one, "values"), values, COLUMNS);
        read_bits(json_object_get(one, "dequantised"), back, COLUMNS);
        for (int j = 0; j < COLUMNS; j++)
            row[j] = bf16_to_float(values[j]);

        uint8_t codes[COLUMNS];
        uint16_t found[2][2];
        char hex[2 * COLUMNS + 1];
        affine_quantize_row(row, COLUMNS, bits, codes, found[0], found[1]);
        for (uint32_t j = 0; j < COLUMNS * bits / 8; j++)
            snprintf(hex + 2 * j, 3, "%02x", codes[j]);
        if (strcmp(hex, json_string_value(json_object_get(one, "codes"))) != 0)
            fail_msg("%s, %u bits: codes %s", name, bits, hex);
        read_bits(json_object_get(one, "scales"), scales, 2);
        read_bits(json_object_get(one, "biases"), biases, 2);
        assert_memory_equal(found[0], scales, sizeof scales);
        assert_memory_equal(found[1], biases, sizeof biases);

        /* MLX's own dequantise rounds to BF16; ours is float32. */
        affine_dequantize_row(codes, scales, biases, COLUMNS, bits, row);
        for (int j = 0; j < COLUMNS; j++) {
            float expected = bf16_to_float(back[j]);
            float bias = fabsf(bf16_to_float(biases[j / 64]));
            if (!(fabsf(row[j] - expected) <= 0.01f * (fabsf(expected) + bias)))
                fail_msg("%s, %u bits, column %d: %g, MLX has %g", name, bits, j, (double)row[j],
                         (double)expected);
        }
    }
    json_decref(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_those_of_mlx),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
