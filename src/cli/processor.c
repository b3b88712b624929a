#include "cli/processor.h"

#include <stdbool.h>

#if defined(__APPLE__) && defined(__aarch64__)
#include <sys/sysctl.h>
#elif defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif

struct feature {
    const char *name;
    bool present;
};

#if defined(__APPLE__) && defined(__aarch64__)
static bool told(const char *name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value != 0;
}
#endif

const char *processor_feature(size_t index) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const struct feature features[] = {
        {"avx2", __builtin_cpu_supports("avx2") != 0},
        {"fma", __builtin_cpu_supports("fma") != 0},
        {"avx512f", __builtin_cpu_supports("avx512f") != 0},
        {"avx512bw", __builtin_cpu_supports("avx512bw") != 0},
        {"avx512vnni", __builtin_cpu_supports("avx512vnni") != 0},
        {"avx512bf16", __builtin_cpu_supports("avx512bf16") != 0},
    };
#elif defined(__APPLE__) && defined(__aarch64__)
    const struct feature features[] = {
        {"neon", true},
        {"dotprod", told("hw.optional.arm.FEAT_DotProd")},
        {"i8mm", told("hw.optional.arm.FEAT_I8MM")},
        {"bf16", told("hw.optional.arm.FEAT_BF16")},
    };
#elif defined(__linux__) && defined(__aarch64__)
    /* Bits of the kernel's ABI: asm/hwcap.h. */
    unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    const struct feature features[] = {
        {"neon", true},
        {"dotprod", (first & 1ul << 20) != 0},
        {"i8mm", (second & 1ul << 13) != 0},
        {"bf16", (second & 1ul << 14) != 0},
    };
#else
    const struct feature features[] = {{"none", false}};
#endif
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        if (features[i].present && index-- == 0)
            return features[i].name;
    return NULL;
}
