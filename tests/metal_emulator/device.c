/* The emulated GPU itself: what it is, its buffers, and kernels from modules that clang has made. */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "metal_emulator/emulator.h"

uint64_t random_next(uint64_t *state) {
    /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t random_below(uint64_t *state, uint32_t limit) {
    return (uint32_t)((random_next(state) >> 32) * limit >> 32);
}

/* ---- The machine it plays */

static _Thread_local struct metal_emulator_options chosen;
static _Thread_local bool is_chosen;

struct metal_emulator_options metal_emulator_options(bool tensor_operations) {
    struct metal_emulator_options options = {
        .facts = {.family = tensor_operations ? 10 : 8,
                  .language = tensor_operations ? METAL_LANGUAGE(4, 0) : METAL_LANGUAGE(3, 1),
                  .tensor_operations = tensor_operations,
                  .residency_sets = tensor_operations,
                  .working_set = (uint64_t)24 << 30,
                  .max_buffer = (uint64_t)16 << 30,
                  .max_threads = MAX_LANES,
                  .threadgroup_bytes = METAL_MAX_THREADGROUP_BYTES,
                  .page_size = 16384},
        .checked = true};
    snprintf(options.facts.name, sizeof options.facts.name, "Emulated Apple M%d", tensor_operations ? 5 : 2);
    snprintf(options.facts.architecture, sizeof options.facts.architecture, "%s",
             tensor_operations ? "applegpu_g17g" : "applegpu_g14g");
    snprintf(options.facts.system, sizeof options.facts.system, "Calla's Metal emulator");
    return options;
}

void metal_emulator_use(const struct metal_emulator_options *options) {
    chosen = *options;
    is_chosen = true;
}

/* CALLA_EMULATOR_<name> as a number, or what is said instead. */
static uint64_t of_environment(const char *name, uint64_t otherwise) {
    char variable[64];
    snprintf(variable, sizeof variable, "CALLA_EMULATOR_%s", name);
    const char *text = getenv(variable);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static struct metal_emulator_options options_of_environment(void) {
    uint32_t family = (uint32_t)of_environment("FAMILY", 10);
    struct metal_emulator_options options = metal_emulator_options(family >= 10);
    options.facts.family = family;
    options.facts.max_buffer = of_environment("MAX_BUFFER", options.facts.max_buffer);
    options.checked = of_environment("CHECKED", 1) != 0;
    options.padded_layout = of_environment("PADDED_LAYOUT", 0) != 0;
    options.pipeline_threads = (uint32_t)of_environment("PIPELINE_THREADS", 0);
    options.seed = of_environment("SEED", 0);
    const char *sums = getenv("CALLA_EMULATOR_SUMS");
    if (sums != NULL)
        options.sums = strcmp(sums, "reversed") == 0     ? METAL_SUMS_REVERSED
                       : strcmp(sums, "sequential") == 0 ? METAL_SUMS_SEQUENTIAL
                       : strcmp(sums, "wrong") == 0      ? METAL_SUMS_WRONG
                                                         : METAL_SUMS_M5;
    return options;
}

struct metal_device *metal_device_open(struct calla_error *error) {
    struct metal_device *device = calloc(1, sizeof *device);
    if (device == NULL) {
        error_memory(error, "an emulated GPU", sizeof *device);
        return NULL;
    }
    device->options = is_chosen ? chosen : options_of_environment();
    device->random = device->options.seed;
    if (device->options.access_limit == 0)
        device->options.access_limit = (uint64_t)1 << 32;
    if (!workers_open(device, error)) {
        metal_device_close(device);
        return NULL;
    }
    return device;
}

void metal_device_close(struct metal_device *device) {
    if (device == NULL)
        return;
    workers_close(device);
    while (device->libraries != NULL) { /* the modules themselves stay loaded */
        struct metal_library *library = device->libraries;
        device->libraries = library->next;
        free(library);
    }
    free(device);
}

const struct metal_facts *metal_device_facts(const struct metal_device *device) {
    return &device->options.facts;
}

bool metal_device_lost(const struct metal_device *device) {
    (void)device;
    return false;
}

uint32_t metal_emulator_faults(const struct metal_device *device, const struct metal_fault **faults) {
    if (faults != NULL)
        *faults = device->faults;
    return device->fault_count;
}

void metal_emulator_forget(struct metal_device *device) {
    device->fault_count = 0;
}

struct metal_emulator_counts metal_emulator_counts(const struct metal_device *device) {
    return device->counts;
}

/* ---- Buffers */

static struct metal_buffer *buffer_make(struct metal_device *device, uint64_t size, const char *label,
                                        struct calla_error *error) {
    if (size == 0 || size > device->options.facts.max_buffer) {
        error_set(error, CALLA_DEVICE, "The GPU has no buffers of %llu bytes for %s: 1 to %llu are possible.",
                  (unsigned long long)size, label, (unsigned long long)device->options.facts.max_buffer);
        return NULL;
    }
    struct metal_buffer *buffer = calloc(1, sizeof *buffer);
    if (buffer == NULL) {
        error_memory(error, label, sizeof *buffer);
        return NULL;
    }
    buffer->device = device;
    buffer->size = size;
    snprintf(buffer->label, sizeof buffer->label, "%s", label);
    device->counts.buffers++;
    device->counts.objects++;
    return buffer;
}

/* Between pages that nobody may touch: also unchecked, what runs far over an end does not go unseen. */
struct metal_buffer *metal_buffer_new(struct metal_device *device, uint64_t size, const char *label,
                                      struct calla_error *error) {
    struct metal_buffer *buffer = buffer_make(device, size, label, error);
    if (buffer == NULL)
        return NULL;
    uint64_t page = device->options.facts.page_size, mapped = (size + page - 1) / page * page + 3 * page;
    unsigned char *memory = mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    unsigned char *start = memory + page;
    start += (page - (uintptr_t)start % page) % page;
    if (memory == MAP_FAILED ||
        mprotect(start, (size + page - 1) / page * page, PROT_READ | PROT_WRITE) != 0) {
        if (memory != MAP_FAILED)
            munmap(memory, mapped);
        error_memory(error, label, size);
        free(buffer);
        return NULL;
    }
    buffer->bytes = start;
    buffer->memory = memory;
    buffer->mapped = mapped;
    return buffer;
}

struct metal_buffer *metal_buffer_wrap(struct metal_device *device, void *pages, uint64_t size,
                                       const char *label, struct calla_error *error) {
    /* The emulated pages are larger than this machine's: a map is good if it fits the machine. */
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if ((uintptr_t)pages % page != 0 || size % page != 0) {
        error_set(error, CALLA_DEVICE, "Memory for %s does not consist of whole pages: %llu bytes at %p.",
                  label, (unsigned long long)size, pages);
        return NULL;
    }
    struct metal_buffer *buffer = buffer_make(device, size, label, error);
    if (buffer != NULL)
        buffer->bytes = pages;
    return buffer;
}

void metal_buffer_free(struct metal_buffer *buffer) {
    if (buffer == NULL)
        return;
    if (buffer->cells != NULL)
        munmap(buffer->cells, buffer->size * sizeof *buffer->cells);
    if (buffer->mapped > 0)
        munmap(buffer->memory, buffer->mapped);
    free(buffer);
}

void *metal_buffer_contents(const struct metal_buffer *buffer) {
    return buffer->bytes;
}

uint64_t metal_buffer_size(const struct metal_buffer *buffer) {
    return buffer->size;
}

bool metal_make_resident(struct metal_device *device, struct metal_buffer *const *buffers, uint32_t count,
                         struct calla_error *error) {
    for (uint32_t i = 0; i < count; i++)
        if (buffers[i]->device != device)
            return error_set(error, CALLA_DEVICE, "Buffer '%s' is another device's.", buffers[i]->label);
    return true;
}

/* ---- Kernels */

static int find_image(struct dl_phdr_info *info, size_t size, void *argument) {
    (void)size;
    struct metal_library *library = argument;
    if (info->dlpi_addr != library->low)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
        if (info->dlpi_phdr[i].p_type == PT_LOAD && end > library->high)
            library->high = end;
    }
    return 1;
}

struct metal_library *metal_library_new(struct metal_device *device, const struct metal_sources *sources,
                                        struct calla_error *error) {
    if (sources->language > device->options.facts.language) {
        error_set(error, CALLA_DEVICE, "The kernels '%s' need Metal %u.%u; this GPU's system has %u.%u.",
                  sources->name, sources->language >> 16, sources->language & 0xffff,
                  device->options.facts.language >> 16, device->options.facts.language & 0xffff);
        return NULL;
    }
    struct metal_library *library = calloc(1, sizeof *library);
    if (library == NULL) {
        error_memory(error, "a library of kernels", sizeof *library);
        return NULL;
    }
    library->device = device;
    const char *folder = getenv("CALLA_EMULATOR_MODULES");
    snprintf(library->name, sizeof library->name, "%s", sources->name);
    snprintf(library->path, sizeof library->path, "%s/%s.%s.so", folder != NULL ? folder : EMULATOR_MODULES,
             sources->name, device->options.checked ? "checked" : "fast");
    library->handle = dlopen(library->path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library->handle != NULL ? dlsym(library->handle, "emulator_module") : NULL;
    if (symbol == NULL) {
        error_set(error, CALLA_DEVICE, "The emulator has no kernels '%s': %s.", sources->name, dlerror());
        free(library);
        return NULL;
    }
    emulator_module_function *function;
    memcpy(&function, &symbol, sizeof function);
    library->module = function(&emulator_runtime);
    Dl_info image;
    dladdr(symbol, &image);
    library->low = (uintptr_t)image.dli_fbase;
    dl_iterate_phdr(find_image, library);
    device->counts.objects++;
    library->next = device->libraries;
    device->libraries = library;
    return library;
}

void metal_library_free(struct metal_library *library) {
    (void)library; /* the device's; its pipelines stay good */
}

static const struct emulator_kernel *find_kernel(const struct metal_library *library, const char *name,
                                                 const struct emulator_unit **unit) {
    for (*unit = library->module->units; *unit != NULL; *unit = (*unit)->next)
        for (uint32_t i = 0; i < (*unit)->kernel_count; i++)
            if (strcmp((*unit)->kernels[i].name, name) == 0)
                return &(*unit)->kernels[i];
    return NULL;
}

struct metal_pipeline *metal_pipeline_new(struct metal_library *library, const char *function,
                                          const struct metal_constant *constants, uint32_t constant_count,
                                          struct calla_error *error) {
    const struct emulator_unit *unit;
    const struct emulator_kernel *kernel = find_kernel(library, function, &unit);
    if (kernel == NULL) {
        error_set(error, CALLA_DEVICE, "There is no kernel '%s' in '%s'.", function, library->name);
        return NULL;
    }
    const char *refused = library->device->options.refuse_kernel;
    if (refused != NULL && strcmp(refused, function) == 0) {
        error_set(error, CALLA_DEVICE, "Kernel '%s' does not compile: the emulator was told to refuse it.",
                  function);
        return NULL;
    }
    static const enum emulator_type types[] = {[METAL_BOOL] = EMULATOR_BOOL,
                                               [METAL_INT] = EMULATOR_INT,
                                               [METAL_UINT] = EMULATOR_UINT,
                                               [METAL_FLOAT] = EMULATOR_FLOAT};
    for (uint32_t i = 0; i < constant_count; i++)
        for (const struct emulator_constant *constant = *unit->constants; constant != NULL;
             constant = constant->next)
            if (constant->value != NULL && constant->index == constants[i].index &&
                constant->type != types[constants[i].type]) {
                error_set(error, CALLA_DEVICE,
                          "Kernel '%s': constant %u ('%s') is given as another type than it has.", function,
                          constant->index, constant->name);
                return NULL;
            }
    struct metal_pipeline *pipeline = calloc(1, sizeof *pipeline);
    struct metal_constant *copy = calloc(constant_count > 0 ? constant_count : 1, sizeof *copy);
    if (pipeline == NULL || copy == NULL) {
        free(pipeline);
        free(copy);
        error_memory(error, "a pipeline", sizeof *pipeline);
        return NULL;
    }
    if (constant_count > 0)
        memcpy(copy, constants, constant_count * sizeof *copy);
    pipeline->library = library;
    pipeline->kernel = kernel;
    pipeline->unit = unit;
    pipeline->constants = copy;
    pipeline->constant_count = constant_count;
    uint32_t limit = library->device->options.pipeline_threads;
    pipeline->limits.max_threads = kernel->max_threads != 0 ? kernel->max_threads
                                   : limit != 0             ? limit
                                                            : MAX_LANES;
    library->device->counts.objects++;
    return pipeline;
}

void metal_pipeline_free(struct metal_pipeline *pipeline) {
    if (pipeline == NULL)
        return;
    free(pipeline->constants);
    free(pipeline);
}

const struct metal_limits *metal_pipeline_limits(const struct metal_pipeline *pipeline) {
    return &pipeline->limits;
}

const char *metal_pipeline_name(const struct metal_pipeline *pipeline) {
    return pipeline->kernel->name;
}
