#include "backend/backend.h"

#include <string.h>

const struct backend_class *backend_find(const char *name, struct calla_error *error) {
    static const struct backend_class *const classes[] = {&cpu_backend, &reference_backend};
    if (strcmp(name, "auto") == 0)
        return classes[0];
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strcmp(name, classes[i]->name) == 0)
            return classes[i];
    error_set(error, CALLA_BAD_INPUT, "There is no backend '%s'; this program has auto, cpu and reference.",
              name);
    return NULL;
}
