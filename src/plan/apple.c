/* The chips. Bandwidths are Apple's. A core's ALUs do 256 FLOP a clock, which published clocks make 0.325
 * (M1), 0.358 (M2, M3) or 0.46 (M4) TFLOP/s; the matrix units of an M5's core were measured by AGXForge as
 * 1024 FLOP of bfloat16 a clock, 33.1 to 33.5 TFLOP/s on the 20 cores of an M5 Pro. The waits are the same
 * project's, on that machine (docs/metal.md has the sources); other chips are taken to be no faster. */
#include "plan/apple.h"

#include "plan/cost.h"

/* `units`: how many times the ALUs' rate the core's fastest is. */
#define CHIP_WITH(name, cores, gigabytes, core_rate, units)                                                  \
    { name, cores, (gigabytes)*1e9, (cores) * (core_rate)*1e12, (cores) * (core_rate)*1e12 / (units) }
#define CHIP(name, cores, gigabytes, core_rate) CHIP_WITH(name, cores, gigabytes, core_rate, 1)

const struct apple_chip apple_chips[APPLE_CHIP_COUNT] = {
    CHIP("M1", 8, 68, 0.325),
    CHIP("M1 Pro", 16, 200, 0.325),
    CHIP("M1 Max", 32, 400, 0.325),
    CHIP("M1 Ultra", 64, 800, 0.325),
    CHIP("M2", 10, 100, 0.358),
    CHIP("M2 Pro", 19, 200, 0.358),
    CHIP("M2 Max", 38, 400, 0.358),
    CHIP("M2 Ultra", 76, 800, 0.358),
    CHIP("M3", 10, 100, 0.358),
    CHIP("M3 Pro", 18, 150, 0.358),
    CHIP("M3 Max", 40, 400, 0.358),
    CHIP("M3 Ultra", 80, 819, 0.358),
    CHIP("M4", 10, 120, 0.46),
    CHIP("M4 Pro", 20, 273, 0.46),
    CHIP("M4 Max", 40, 546, 0.46),
    CHIP_WITH("M5", 10, 153, 1.66, 4),
    CHIP_WITH("M5 Pro", 20, 307, 1.66, 4),
    CHIP_WITH("M5 Max", 40, 614, 1.66, 4),
};

double apple_rate(const struct apple_chip *chip, const struct policy *policy) {
    return policy->tensor_operations ? chip->rate : chip->alu_rate;
}

struct apple_prediction apple_predict(const struct apple_chip *chip, const struct plan *plan,
                                      uint32_t position, uint32_t kernels, uint32_t phases,
                                      const struct policy *policy) {
    struct apple_prediction prediction = {0};
    for (uint32_t i = 0; i < plan->op_count; i++) {
        struct cost cost = op_cost(&plan->ops[i], position);
        prediction.least += cost_seconds(&cost, chip->bandwidth, apple_rate(chip, policy));
    }
    prediction.predicted = prediction.least + (policy->concurrent ? phases * APPLE_PHASE_SECONDS
                                                                  : kernels * APPLE_KERNEL_SECONDS);
    return prediction;
}
