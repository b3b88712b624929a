/* The policy's table: one row a choice. Everything else here reads the table. */
#include "plan/policy.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    REFERENCE = 1,
    CPU = 2,
    CUDA = 4,
    METAL = 8,
    GPU = CUDA | METAL,
    EVERY = REFERENCE | CPU | GPU,
};

static const char *const backend_names[] = {"reference", "cpu", "cuda", "metal"};
#define BACKEND_COUNT (sizeof backend_names / sizeof *backend_names)

enum choice_kind { CHOICE_SWITCH, CHOICE_NUMBER, CHOICE_NAME };

struct named_value {
    const char *name; /* NULL past the last */
    uint32_t value;
};

static const struct named_value scan_names[] = {{"register", 0}, {"block", 1}, {NULL, 0}};
static const struct named_value kv_names[] = {{"bf16", DTYPE_BF16}, {"f32", DTYPE_F32}, {NULL, 0}};

static const struct named_value operand_names[] = {{"int8", MATRIX_INT8}, {"bf16", MATRIX_BF16}, {NULL, 0}};
static const struct named_value instruction_names[] = {{"auto", INSTRUCTIONS_AUTO},
                                                       {"portable", INSTRUCTIONS_PORTABLE},
                                                       {"avx2", INSTRUCTIONS_AVX2},
                                                       {"avx512", INSTRUCTIONS_AVX512},
                                                       {"avx512_vnni", INSTRUCTIONS_AVX512_VNNI},
                                                       {"avx512_bf16", INSTRUCTIONS_AVX512_BF16},
                                                       {"neon", INSTRUCTIONS_NEON},
                                                       {"neon_i8mm", INSTRUCTIONS_NEON_I8MM},
                                                       {NULL, 0}};

struct choice {
    const char *name;
    size_t offset; /* of the field */
    enum choice_kind kind;
    uint32_t backends;               /* on which it means something */
    const struct named_value *names; /* CHOICE_NAME; the field is a uint32_t or an enum of its size */
    uint32_t least, most;            /* CHOICE_NUMBER */
    bool power_of_two;
    uint32_t off; /* CHOICE_NUMBER: the value that switches it off, 0 for none */
};

_Static_assert(sizeof(enum dtype) == sizeof(uint32_t) && sizeof(enum matrix_operands) == sizeof(uint32_t) &&
                   sizeof(enum instruction_set) == sizeof(uint32_t),
               "a named choice is stored as a uint32_t");

#define FIELD(field) #field, .offset = offsetof(struct policy, field)

/* In the order in which they are printed. */
static const struct choice choices[] = {
    {FIELD(dequant_in_gemm), .kind = CHOICE_SWITCH, .backends = METAL},
    {FIELD(tensor_operations), .kind = CHOICE_SWITCH, .backends = METAL},
    {FIELD(device_routing), .kind = CHOICE_SWITCH, .backends = GPU},
    {FIELD(expert_tile), .kind = CHOICE_NUMBER, .backends = METAL, .least = 16, .most = 32,
     .power_of_two = true},
    {FIELD(delta_scan), .kind = CHOICE_NAME, .backends = GPU, .names = scan_names},
    {FIELD(chunk_rows), .kind = CHOICE_NUMBER, .backends = EVERY, .least = 1, .most = 8192},
    {FIELD(token_on_device), .kind = CHOICE_SWITCH, .backends = GPU},
    {FIELD(concurrent), .kind = CHOICE_SWITCH, .backends = EVERY},
    {FIELD(fuse_expert_gate_up), .kind = CHOICE_SWITCH, .backends = EVERY},
    {FIELD(fuse_expert_down), .kind = CHOICE_SWITCH, .backends = EVERY},
    {FIELD(fuse_qk_prep), .kind = CHOICE_SWITCH, .backends = EVERY},
    {FIELD(fuse_delta_norm), .kind = CHOICE_SWITCH, .backends = EVERY},
    {FIELD(fuse_delta_conv), .kind = CHOICE_SWITCH, .backends = EVERY},
    {FIELD(fuse_projections), .kind = CHOICE_SWITCH, .backends = EVERY},
    {FIELD(fuse_norm), .kind = CHOICE_SWITCH, .backends = EVERY},
    {FIELD(kv_coalesced), .kind = CHOICE_SWITCH, .backends = METAL},
    {FIELD(gqa_pack), .kind = CHOICE_NUMBER, .backends = METAL, .least = 1, .most = 4, .power_of_two = true},
    {FIELD(attention_split), .kind = CHOICE_NUMBER, .backends = METAL, .least = 0, .most = 1u << 30,
     .off = 1u << 30},
    {FIELD(command_work), .kind = CHOICE_NUMBER, .backends = METAL, .least = 1, .most = 1u << 20,
     .off = 1u << 20},
    {FIELD(speculate), .kind = CHOICE_SWITCH, .backends = EVERY},
    {FIELD(kv_dtype), .kind = CHOICE_NAME, .backends = EVERY, .names = kv_names},
    {FIELD(matrix_operands), .kind = CHOICE_NAME, .backends = CPU, .names = operand_names},
    {FIELD(instruction_set), .kind = CHOICE_NAME, .backends = CPU, .names = instruction_names},
};
#define CHOICE_COUNT (sizeof choices / sizeof *choices)

/* The bit of a backend, 0 for an unknown name. */
static uint32_t backend_bit(const char *backend) {
    for (size_t i = 0; i < BACKEND_COUNT; i++)
        if (strcmp(backend, backend_names[i]) == 0)
            return 1u << i;
    return 0;
}

bool policy_check_backend(const char *backend, struct calla_error *error) {
    return backend_bit(backend) != 0 ||
           error_set(error, CALLA_BAD_INPUT,
                     "There is no backend \"%.64s\": a policy is for reference, cpu, cuda or metal.",
                     backend);
}

void policy_defaults(struct policy *policy, const char *backend) {
    uint32_t bit = backend_bit(backend);
    *policy = (struct policy){
        .chunk_rows = 512, .gqa_pack = 1, .expert_tile = 16, .kv_dtype = DTYPE_F32, .token_on_device = true};
    if (bit == REFERENCE || bit == 0)
        return;
    policy->kv_dtype = DTYPE_BF16;
    policy->concurrent = true;
    policy->fuse_expert_gate_up = true;
    policy->fuse_expert_down = true;
    policy->fuse_qk_prep = true;
    policy->fuse_delta_norm = true;
    policy->fuse_delta_conv = true;
    policy->fuse_projections = true;
    policy->fuse_norm = true;
    if (bit == CPU)
        return;
    policy->dequant_in_gemm = true;
    policy->tensor_operations = true;
    policy->device_routing = true;
    policy->kv_coalesced = true;
    policy->gqa_pack = 4;
    policy->attention_split = 32768;
    policy->command_work = 300;
    if (bit == CUDA) {
        policy->delta_scan = 1;
        policy->chunk_rows = 4096;
    }
}

static bool read_switch(const struct choice *choice, const char *text, bool *on, struct calla_error *error) {
    static const char *const words[][2] = {{"off", "on"}, {"false", "true"}, {"0", "1"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (int value = 0; value < 2; value++)
            if (strcmp(text, words[i][value]) == 0) {
                *on = value == 1;
                return true;
            }
    return error_set(error, CALLA_BAD_INPUT,
                     "The policy %s is on or off (or true, false, 1, 0), not \"%.64s\".", choice->name, text);
}

static bool read_number(const struct choice *choice, const char *text, uint32_t *number,
                        struct calla_error *error) {
    size_t digits = strspn(text, "0123456789");
    unsigned long value =
        digits > 0 && digits <= 10 && text[digits] == 0 ? strtoul(text, NULL, 10) : ULONG_MAX;
    if (value >= choice->least && value <= choice->most &&
        (!choice->power_of_two || (value & (value - 1)) == 0)) {
        *number = (uint32_t)value;
        return true;
    }
    return error_set(error, CALLA_BAD_INPUT, "The policy %s is a %s from %u to %u, not \"%.64s\".",
                     choice->name, choice->power_of_two ? "power of two" : "whole number", choice->least,
                     choice->most, text);
}

static bool read_name(const struct choice *choice, const char *text, uint32_t *value,
                      struct calla_error *error) {
    char list[128] = "";
    for (const struct named_value *named = choice->names; named->name != NULL; named++) {
        if (strcmp(text, named->name) == 0) {
            *value = named->value;
            return true;
        }
        size_t length = strlen(list);
        snprintf(list + length, sizeof list - length, "%s%s", length > 0 ? " or " : "", named->name);
    }
    return error_set(error, CALLA_BAD_INPUT, "The policy %s is %s, not \"%.64s\".", choice->name, list, text);
}

/* The names that apply on a backend, for errors. */
static void list_choices(uint32_t backend, char *list, size_t size) {
    size_t length = 0;
    list[0] = 0;
    for (size_t i = 0; i < CHOICE_COUNT; i++)
        if ((choices[i].backends & backend) != 0 && length < size)
            length += (size_t)snprintf(list + length, size - length, "%s%s", length > 0 ? ", " : "",
                                       choices[i].name);
}

bool policy_set(struct policy *policy, const char *backend, const char *assignment,
                struct calla_error *error) {
    if (!policy_check_backend(backend, error))
        return false;
    uint32_t bit = backend_bit(backend);
    char list[512];
    list_choices(bit, list, sizeof list);
    const char *equals = strchr(assignment, '=');
    if (equals == NULL)
        return error_set(error, CALLA_BAD_INPUT, "A policy is given as NAME=VALUE, not \"%.64s\"; names: %s.",
                         assignment, list);
    size_t name_length = (size_t)(equals - assignment);
    const struct choice *choice = NULL;
    for (size_t i = 0; i < CHOICE_COUNT; i++)
        if (strlen(choices[i].name) == name_length && memcmp(choices[i].name, assignment, name_length) == 0)
            choice = &choices[i];
    if (choice == NULL)
        return error_set(error, CALLA_BAD_INPUT,
                         "There is no policy \"%.*s\"; those of the backend %s are: %s.",
                         name_length > 64 ? 64 : (int)name_length, assignment, backend, list);
    if ((choice->backends & bit) == 0)
        return error_set(error, CALLA_BAD_INPUT,
                         "The policy %s means nothing on the backend %s; those that do are: %s.",
                         choice->name, backend, list);
    char *field = (char *)policy + choice->offset;
    const char *text = equals + 1;
    bool on = false;
    uint32_t number = 0;
    switch (choice->kind) {
    case CHOICE_SWITCH:
        if (!read_switch(choice, text, &on, error))
            return false;
        if (on && choice->offset == offsetof(struct policy, speculate))
            return error_set(
                error, CALLA_UNSUPPORTED,
                "The policy speculate can only be off: drafting with the model's MTP head is not "
                "built, and published 4-bit checkpoints do not contain that head.");
        memcpy(field, &on, sizeof on);
        return true;
    case CHOICE_NUMBER:
        if (!read_number(choice, text, &number, error))
            return false;
        break;
    case CHOICE_NAME:
        if (!read_name(choice, text, &number, error))
            return false;
        break;
    }
    memcpy(field, &number, sizeof number);
    return true;
}

bool policy_describe(const struct policy *policy, const char *backend, size_t index, const char **name,
                     char value[32], bool *applies) {
    if (index >= CHOICE_COUNT)
        return false;
    const struct choice *choice = &choices[index];
    const char *field = (const char *)policy + choice->offset;
    *name = choice->name;
    *applies = (choice->backends & backend_bit(backend)) != 0;
    bool on = false;
    uint32_t number = 0;
    if (choice->kind == CHOICE_SWITCH)
        memcpy(&on, field, sizeof on);
    else
        memcpy(&number, field, sizeof number);
    if (!*applies)
        snprintf(value, 32, "n/a");
    else if (choice->kind == CHOICE_SWITCH)
        snprintf(value, 32, "%s", on ? "on" : "off");
    else if (choice->kind == CHOICE_NUMBER)
        snprintf(value, 32, "%u", number);
    else
        for (const struct named_value *named = choice->names; named->name != NULL; named++)
            if (named->value == number)
                snprintf(value, 32, "%s", named->name);
    return true;
}

bool policy_alternative(const struct policy *policy, const char *backend, size_t index, size_t nth,
                        char value[32]) {
    if (index >= CHOICE_COUNT || (choices[index].backends & backend_bit(backend)) == 0)
        return false;
    const struct choice *choice = &choices[index];
    const char *field = (const char *)policy + choice->offset;
    if (choice->kind == CHOICE_SWITCH) {
        bool on;
        memcpy(&on, field, sizeof on);
        snprintf(value, 32, "%s", on ? "off" : "on");
        return nth == 0;
    }
    uint32_t current, found = 0, least = choice->least, most = choice->most;
    memcpy(&current, field, sizeof current);
    if (choice->kind == CHOICE_NAME) {
        for (const struct named_value *named = choice->names; named->name != NULL; named++)
            if (named->value != current && found++ == nth) {
                snprintf(value, 32, "%s", named->name);
                return true;
            }
        return false;
    }
    if (choice->power_of_two) {
        for (uint64_t number = 1; number <= most; number *= 2)
            if (number >= least && number != current && found++ == nth) {
                snprintf(value, 32, "%u", (uint32_t)number);
                return true;
            }
        return false;
    }
    const uint64_t numbers[] = {current / 2, 2 * (uint64_t)current, choice->off};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i] > 0 && numbers[i] >= least && numbers[i] <= most && numbers[i] != current &&
            found++ == nth) {
            snprintf(value, 32, "%u", (uint32_t)numbers[i]);
            return true;
        }
    return false;
}
