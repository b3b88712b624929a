/* The vector kernels of each instruction set that runs here, one by one, against double. */
#include "unit.h"

#include <math.h>

#include "backend/cpu/kernels.h"

static double silu_of(double x) {
    return x / (1 + exp(-x));
}

/* Counts around the widths of vectors: every element as expected, none past the last touched. */
static void swiglu_of_any_count(void **state) {
    (void)state;
    const float special[] = {0, -0.0f, 1, -1, 30, -30, 87, -87, 100, -100, 1e30f, -1e30f, NAN};
    enum { MOST = 70, SPECIAL = sizeof special / sizeof *special };
    for (size_t k = 0; kernels_at(k) != NULL; k++) {
        if (!kernels_at(k)->supported())
            continue;
        for (size_t count = 0; count <= MOST; count++) {
            float gate[MOST], up[MOST], y[MOST + 1];
            for (size_t i = 0; i < count; i++) {
                gate[i] = i < SPECIAL ? special[i] : (float)i * 0.37f - 12;
                up[i] = (float)i * 0.11f - 3;
            }
            y[count] = 5;
            kernels_at(k)->vector->swiglu(gate, up, y, count);
            for (size_t i = 0; i < count; i++) {
                double expected = silu_of(gate[i]) * up[i];
                if (isnan(expected))
                    assert_true(isnan(y[i]));
                else
                    assert_true(fabs(y[i] - expected) <= 1e-6 * (1e-2 + fabs(expected)));
            }
            assert_true(y[count] == 5);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swiglu_of_any_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
