/* What a plan would take on Apple's chips, from what others have published about them: predictions, of which
 * none was measured by this project. */
#ifndef CALLA_PLAN_APPLE_H
#define CALLA_PLAN_APPLE_H

#include "plan/plan.h"
#include "plan/policy.h"

struct apple_chip {
    const char *name;
    uint32_t gpu_cores;
    double bandwidth; /* bytes a second, as Apple gives it */
    double rate;      /* FLOP a second of matrix products: the tensor operations of the M5, else the ALUs' */
    double alu_rate;
};

#define APPLE_CHIP_COUNT 18

/* From the M1 to the M5 Max, each in its largest form. */
extern const struct apple_chip apple_chips[APPLE_CHIP_COUNT];

/* Seconds from one kernel to the next that needs what it wrote, both tiny: of a concurrent encoder with a
 * barrier in between, and of a serial one. */
#define APPLE_PHASE_SECONDS 4.2e-6
#define APPLE_KERNEL_SECONDS 3.7e-6

struct apple_prediction {
    double least;     /* every op at the chip's bandwidth and rate, seconds */
    double predicted; /* and the wait at every phase, or kernel if they run one after the other */
};

/* The rate under a policy, which may do without tensor operations. */
double apple_rate(const struct apple_chip *chip, const struct policy *policy);

/* Of a plan at a position that the GPU runs as `kernels` kernels in `phases` phases. */
struct apple_prediction apple_predict(const struct apple_chip *chip, const struct plan *plan,
                                      uint32_t position, uint32_t kernels, uint32_t phases,
                                      const struct policy *policy);

#endif
