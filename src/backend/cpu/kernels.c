/* Which kernels there are, and which this processor can run. */
#include "backend/cpu/kernels.h"

#include <stdio.h>

#if defined(CALLA_KERNELS_NEON_I8MM) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(CALLA_KERNELS_NEON_I8MM) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

static bool always(void) {
    return true;
}

#ifdef CALLA_KERNELS_AVX2
/* F16C is older than AVX2; not every compiler can ask for it. */
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

#ifdef CALLA_KERNELS_AVX512
static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

#ifdef CALLA_KERNELS_AVX512_VNNI
static bool has_avx512_vnni(void) {
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}
#endif

#ifdef CALLA_KERNELS_AVX512_BF16
static bool has_avx512_bf16(void) {
    return has_avx512_vnni() && __builtin_cpu_supports("avx512bf16");
}
#endif

#if defined(CALLA_KERNELS_NEON_I8MM) && defined(__linux__)
/* The bits of the auxiliary vector, which older headers do not name: dot products, i8mm and bf16. */
static bool has_neon_i8mm(void) {
    unsigned long dot_products = 1ul << 20, matrices = 1ul << 13, bf16 = 1ul << 14;
    return (getauxval(AT_HWCAP) & dot_products) != 0 && (getauxval(AT_HWCAP2) & matrices) != 0 &&
           (getauxval(AT_HWCAP2) & bf16) != 0;
}
#elif defined(CALLA_KERNELS_NEON_I8MM) && defined(__APPLE__)
static bool has_feature(const char *name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value != 0;
}

static bool has_neon_i8mm(void) {
    return has_feature("hw.optional.arm.FEAT_DotProd") && has_feature("hw.optional.arm.FEAT_I8MM") &&
           has_feature("hw.optional.arm.FEAT_BF16");
}
#elif defined(CALLA_KERNELS_NEON_I8MM)
static bool has_neon_i8mm(void) {
    return false; /* no way to ask is known */
}
#endif

static const struct kernels all[] = {
#ifdef CALLA_KERNELS_AVX512_BF16
    {INSTRUCTIONS_AVX512_BF16, "avx512_bf16", has_avx512_bf16, &avx512_bf16_matrix_kernels,
     &avx512_vector_kernels, &avx512_attention_kernels},
#endif
#ifdef CALLA_KERNELS_AVX512_VNNI
    {INSTRUCTIONS_AVX512_VNNI, "avx512_vnni", has_avx512_vnni, &avx512_vnni_matrix_kernels,
     &avx512_vector_kernels, &avx512_attention_kernels},
#endif
#ifdef CALLA_KERNELS_AVX512
    {INSTRUCTIONS_AVX512, "avx512", has_avx512, &avx512_matrix_kernels, &avx512_vector_kernels,
     &avx512_attention_kernels},
#endif
#ifdef CALLA_KERNELS_AVX2
    {INSTRUCTIONS_AVX2, "avx2", has_avx2, &avx2_matrix_kernels, &avx2_vector_kernels,
     &avx2_attention_kernels},
#endif
#ifdef CALLA_KERNELS_NEON_I8MM
    {INSTRUCTIONS_NEON_I8MM, "neon_i8mm", has_neon_i8mm, &neon_i8mm_matrix_kernels, &portable_vector_kernels,
     &portable_attention_kernels},
#endif
#ifdef CALLA_KERNELS_NEON
    {INSTRUCTIONS_NEON, "neon", always, &neon_matrix_kernels, &portable_vector_kernels,
     &portable_attention_kernels},
#endif
    {INSTRUCTIONS_PORTABLE, "portable", always, &portable_matrix_kernels, &portable_vector_kernels,
     &portable_attention_kernels},
};
#define COUNT (sizeof all / sizeof *all)

const struct kernels *kernels_at(size_t index) {
    return index < COUNT ? &all[index] : NULL;
}

const struct kernels *kernels_find(enum instruction_set instruction_set, struct calla_error *error) {
    char names[128] = "";
    size_t length = 0;
    for (size_t i = 0; i < COUNT; i++) {
        if (!all[i].supported())
            continue;
        if (instruction_set == INSTRUCTIONS_AUTO || instruction_set == all[i].instruction_set)
            return &all[i];
        if (length < sizeof names)
            length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", length > 0 ? ", " : "",
                                       all[i].name);
    }
    error_set(
        error, CALLA_UNSUPPORTED,
        "This processor, or this build, has not the instructions that --policy instruction_set asks for; "
        "it has %s.",
        names);
    return NULL;
}
