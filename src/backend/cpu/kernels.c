/* Which kernels there are, and which this processor can run. */
#include "backend/cpu/kernels.h"

#include <stdio.h>

static bool always(void) {
    return true;
}

static const struct kernels all[] = {
    {INSTRUCTIONS_PORTABLE, "portable", always, &portable_matrix_kernels},
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
