#include "backend/backend.h"

#include <string.h>

#include "base/system.h"

/* In the order in which "auto" takes them; the last needs nothing. */
static const struct backend_class *const classes[] = {
#ifdef CALLA_CUDA
    &cuda_backend,
#endif
#ifdef CALLA_METAL
    &metal_backend,
#endif
    &cpu_backend,
    &reference_backend,
};

const struct backend_class *backend_find(const char *name, struct calla_error *error) {
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        const struct backend_class *class = classes[i];
        bool automatic = strcmp(name, "auto") == 0;
        if (!automatic && strcmp(name, class->name) != 0)
            continue;
        if (class->available == NULL || class->available(automatic ? NULL : error))
            return class;
        if (!automatic)
            return NULL;
    }
    if (strcmp(name, "cuda") == 0)
        error_set(error, CALLA_UNSUPPORTED,
                  "This program was built without CUDA: build it where nvcc is, or use --backend cpu.");
    else if (strcmp(name, "metal") == 0)
        error_set(error, CALLA_UNSUPPORTED,
                  "This program was built without Metal: build it on a Mac, or use --backend cpu.");
    else
        error_set(error, CALLA_BAD_INPUT,
                  "There is no backend '%s'; this program has auto, cpu, cuda, metal and reference.", name);
    return NULL;
}

void backend_device(const struct backend_class *class, struct device_facts *facts) {
    *facts = (struct device_facts){.name = ""};
    if (class->device != NULL) {
        class->device(facts);
        return;
    }
    system_processor(facts->name, sizeof facts->name);
    facts->memory = system_memory();
}
