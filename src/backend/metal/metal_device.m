/* metal_device.h on Metal. Nothing is decided here: each function is the few calls that its comment in the
 * header describes. Compiled with ARC; the structs own their objects, and `release` lets go of them before
 * the memory.
 *
 * It has been type-checked on Linux against declarations of the classes that it uses, and has not run yet. */
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/metal/metal_device.h"

struct metal_device {
    id<MTLDevice> gpu;
    id<MTLCommandQueue> queue;
    id<MTLFence> fence; /* orders commands: hazards of buffers are not tracked */
    id residency_set;   /* MTLResidencySet, of all buffers that are kept: a queue takes few sets */
    struct metal_facts facts;
    bool lost;
};

struct metal_buffer {
    struct metal_device *device;
    id<MTLBuffer> buffer;
};

struct metal_library {
    struct metal_device *device;
    id<MTLLibrary> library;
    char name[32];
};

struct metal_pipeline {
    id<MTLComputePipelineState> state;
    NSString *name;
    struct metal_limits limits;
};

struct metal_commands {
    struct metal_device *device;
    NSString *label;
    MTLCommandBufferDescriptor *descriptor;
    id<MTLCommandBuffer> buffer;
    id<MTLComputeCommandEncoder> encoder;
    const struct metal_pipeline *pipeline;
    enum metal_status status;
    struct metal_times times;
    bool mistaken;
    struct calla_error error; /* the first mistake, or why it failed */
};

static bool fail_with(struct calla_error *error, const char *what, NSError *reason) {
    return error_set(error, CALLA_DEVICE, "%s: %s", what,
                     reason != nil ? reason.localizedDescription.UTF8String : "Metal gives no reason.");
}

/* ---- The device */

/* The largest n with MTLGPUFamilyApple<n>, whose values are 1000 + n. */
static uint32_t family_of(id<MTLDevice> gpu) {
    uint32_t family = 0;
    while ([gpu supportsFamily:(MTLGPUFamily)(1000 + family + 1)])
        family++;
    return family;
}

static void find_facts(struct metal_device *device) {
    id<MTLDevice> gpu = device->gpu;
    struct metal_facts *facts = &device->facts;
    NSOperatingSystemVersion version = NSProcessInfo.processInfo.operatingSystemVersion;
    snprintf(facts->name, sizeof facts->name, "%s", gpu.name.UTF8String);
    snprintf(facts->architecture, sizeof facts->architecture, "%s", gpu.architecture.name.UTF8String);
    snprintf(facts->system, sizeof facts->system, "macOS %ld.%ld", (long)version.majorVersion,
             (long)version.minorVersion);
    facts->family = family_of(gpu);
    facts->language = version.majorVersion >= 26   ? METAL_LANGUAGE(4, 0)
                      : version.majorVersion >= 15 ? METAL_LANGUAGE(3, 2)
                                                   : METAL_LANGUAGE(3, 1);
    bool system_has_them =
        version.majorVersion > 26 || (version.majorVersion == 26 && version.minorVersion >= 2);
    facts->tensor_operations = facts->family >= 10 && system_has_them;
    facts->residency_sets = version.majorVersion >= 15;
    facts->working_set = gpu.recommendedMaxWorkingSetSize;
    facts->max_buffer = gpu.maxBufferLength;
    facts->max_threads = (uint32_t)gpu.maxThreadsPerThreadgroup.width;
    facts->threadgroup_bytes = (uint32_t)gpu.maxThreadgroupMemoryLength;
    facts->page_size = NSPageSize();
}

struct metal_device *metal_device_open(struct calla_error *error) {
    @autoreleasepool {
        id<MTLDevice> gpu = MTLCreateSystemDefaultDevice();
        if (gpu == nil) /* as some programs without a window have found it, with a GPU in the list */
            gpu = MTLCopyAllDevices().lastObject;
        if (gpu == nil || ![gpu supportsFamily:MTLGPUFamilyApple7]) {
            error_set(error, CALLA_DEVICE, "There is no Apple GPU of family 7 (M1) or later here: %s.",
                      gpu == nil ? "Metal finds no device" : gpu.name.UTF8String);
            return NULL;
        }
        struct metal_device *device = calloc(1, sizeof *device);
        if (device == NULL) {
            error_memory(error, "the GPU", sizeof *device);
            return NULL;
        }
        device->gpu = gpu;
        device->queue = [gpu newCommandQueue];
        device->fence = [gpu newFence];
        find_facts(device);
        if (device->queue == nil || device->fence == nil) {
            error_set(error, CALLA_DEVICE, "The GPU %s gives no command queue.", device->facts.name);
            metal_device_close(device);
            return NULL;
        }
        return device;
    }
}

void metal_device_close(struct metal_device *device) {
    if (device == NULL)
        return;
    device->gpu = nil;
    device->queue = nil;
    device->fence = nil;
    device->residency_set = nil;
    free(device);
}

const struct metal_facts *metal_device_facts(const struct metal_device *device) {
    return &device->facts;
}

bool metal_device_lost(const struct metal_device *device) {
    return device->lost;
}

/* ---- Buffers */

static const MTLResourceOptions buffer_options =
    MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked;

static struct metal_buffer *buffer_of(struct metal_device *device, id<MTLBuffer> buffer, uint64_t size,
                                      const char *label, struct calla_error *error) {
    struct metal_buffer *out = buffer != nil ? calloc(1, sizeof *out) : NULL;
    if (out == NULL) {
        error_set(error, CALLA_OUT_OF_MEMORY, "The GPU has no memory for %s: %llu bytes.", label,
                  (unsigned long long)size);
        return NULL;
    }
    buffer.label = @(label);
    out->device = device;
    out->buffer = buffer;
    return out;
}

struct metal_buffer *metal_buffer_new(struct metal_device *device, uint64_t size, const char *label,
                                      struct calla_error *error) {
    @autoreleasepool {
        return buffer_of(device, [device->gpu newBufferWithLength:size options:buffer_options], size, label,
                         error);
    }
}

struct metal_buffer *metal_buffer_wrap(struct metal_device *device, void *pages, uint64_t size,
                                       const char *label, struct calla_error *error) {
    @autoreleasepool {
        id<MTLBuffer> buffer = [device->gpu newBufferWithBytesNoCopy:pages
                                                              length:size
                                                             options:buffer_options
                                                         deallocator:nil];
        return buffer_of(device, buffer, size, label, error);
    }
}

void metal_buffer_free(struct metal_buffer *buffer) {
    if (buffer == NULL)
        return;
    @autoreleasepool {
        if (@available(macOS 15.0, *)) {
            id<MTLResidencySet> set = buffer->device->residency_set;
            [set removeAllocation:buffer->buffer];
            [set commit];
        }
        buffer->buffer = nil;
    }
    free(buffer);
}

void *metal_buffer_contents(const struct metal_buffer *buffer) {
    return buffer->buffer.contents;
}

uint64_t metal_buffer_size(const struct metal_buffer *buffer) {
    return buffer->buffer.length;
}

bool metal_make_resident(struct metal_device *device, struct metal_buffer *const *buffers, uint32_t count,
                         struct calla_error *error) {
    @autoreleasepool {
        if (@available(macOS 15.0, *)) {
            NSError *reason = nil;
            if (device->residency_set == nil) {
                MTLResidencySetDescriptor *descriptor = [[MTLResidencySetDescriptor alloc] init];
                descriptor.initialCapacity = 64;
                id<MTLResidencySet> made = [device->gpu newResidencySetWithDescriptor:descriptor
                                                                                error:&reason];
                if (made == nil)
                    return fail_with(error, "The GPU cannot keep memory resident", reason);
                [device->queue addResidencySet:made];
                device->residency_set = made;
            }
            id<MTLResidencySet> set = device->residency_set;
            for (uint32_t i = 0; i < count; i++)
                [set addAllocation:buffers[i]->buffer];
            [set commit];
            [set requestResidency];
        }
        return true;
    }
}

/* ---- Kernels */

static id<MTLLibrary> load_library(id<MTLDevice> gpu, const struct metal_sources *sources, NSError **reason) {
    if (sources->metallib != NULL) {
        /* The bytes are the program's own: nothing is to be done with them afterwards. */
        dispatch_data_t data = dispatch_data_create(sources->metallib, sources->metallib_size, NULL,
                                                    ^{
                                                    });
        return [gpu newLibraryWithData:data error:reason];
    }
    MTLCompileOptions *options = [[MTLCompileOptions alloc] init];
    options.languageVersion = (MTLLanguageVersion)sources->language;
    if (@available(macOS 15.0, *))
        options.mathMode = MTLMathModeSafe;
    else
        options.fastMathEnabled = NO;
    return [gpu newLibraryWithSource:@(sources->text) options:options error:reason];
}

struct metal_library *metal_library_new(struct metal_device *device, const struct metal_sources *sources,
                                        struct calla_error *error) {
    @autoreleasepool {
        NSError *reason = nil;
        id<MTLLibrary> loaded = load_library(device->gpu, sources, &reason);
        struct metal_library *library = loaded != nil ? calloc(1, sizeof *library) : NULL;
        if (library == NULL) {
            fail_with(error, "The GPU's kernels cannot be loaded", reason);
            return NULL;
        }
        library->device = device;
        library->library = loaded;
        snprintf(library->name, sizeof library->name, "%s", sources->name);
        return library;
    }
}

void metal_library_free(struct metal_library *library) {
    if (library == NULL)
        return;
    library->library = nil;
    free(library);
}

static MTLFunctionConstantValues *constant_values(const struct metal_constant *constants, uint32_t count) {
    static const MTLDataType types[] = {[METAL_BOOL] = MTLDataTypeBool,
                                        [METAL_INT] = MTLDataTypeInt,
                                        [METAL_UINT] = MTLDataTypeUInt,
                                        [METAL_FLOAT] = MTLDataTypeFloat};
    MTLFunctionConstantValues *values = [[MTLFunctionConstantValues alloc] init];
    for (uint32_t i = 0; i < count; i++)
        [values setConstantValue:&constants[i].value
                            type:types[constants[i].type]
                         atIndex:constants[i].index];
    return values;
}

struct metal_pipeline *metal_pipeline_new(struct metal_library *library, const char *function,
                                          const struct metal_constant *constants, uint32_t constant_count,
                                          struct calla_error *error) {
    @autoreleasepool {
        NSError *reason = nil;
        char what[128];
        snprintf(what, sizeof what, "The kernel '%s' of '%s' cannot be prepared", function, library->name);
        id<MTLFunction> found =
            [library->library newFunctionWithName:@(function)
                                   constantValues:constant_values(constants, constant_count)
                                            error:&reason];
        id<MTLComputePipelineState> state =
            found != nil ? [library->device->gpu newComputePipelineStateWithFunction:found error:&reason]
                         : nil;
        struct metal_pipeline *pipeline = state != nil ? calloc(1, sizeof *pipeline) : NULL;
        if (pipeline == NULL) {
            fail_with(error, what, reason);
            return NULL;
        }
        pipeline->state = state;
        pipeline->name = @(function);
        pipeline->limits.max_threads = (uint32_t)state.maxTotalThreadsPerThreadgroup;
        pipeline->limits.threadgroup_bytes = (uint32_t)state.staticThreadgroupMemoryLength;
        return pipeline;
    }
}

void metal_pipeline_free(struct metal_pipeline *pipeline) {
    if (pipeline == NULL)
        return;
    pipeline->state = nil;
    pipeline->name = nil;
    free(pipeline);
}

const struct metal_limits *metal_pipeline_limits(const struct metal_pipeline *pipeline) {
    return &pipeline->limits;
}

const char *metal_pipeline_name(const struct metal_pipeline *pipeline) {
    return pipeline->name.UTF8String;
}

/* ---- Commands */

struct metal_commands *metal_commands_new(struct metal_device *device, const char *label,
                                          struct calla_error *error) {
    @autoreleasepool {
        struct metal_commands *commands = calloc(1, sizeof *commands);
        if (commands == NULL) {
            error_memory(error, "commands", sizeof *commands);
            return NULL;
        }
        commands->device = device;
        commands->label = @(label);
        commands->descriptor = [[MTLCommandBufferDescriptor alloc] init];
        /* Buffers and pipelines outlive the commands that use them: they need not be retained each time. */
        commands->descriptor.retainedReferences = NO;
        commands->descriptor.errorOptions = MTLCommandBufferErrorOptionEncoderExecutionStatus;
        return commands;
    }
}

void metal_commands_free(struct metal_commands *commands) {
    if (commands == NULL)
        return;
    @autoreleasepool {
        [commands->encoder endEncoding]; /* of commands that were begun and never committed */
        commands->encoder = nil;
        commands->buffer = nil;
        commands->label = nil;
        commands->descriptor = nil;
    }
    free(commands);
}

bool metal_commands_begin(struct metal_commands *commands, bool concurrent, struct calla_error *error) {
    @autoreleasepool {
        struct metal_device *device = commands->device;
        if (commands->status == METAL_RUNNING)
            return error_set(error, CALLA_DEVICE, "The commands '%s' are begun anew while they run.",
                             commands->label.UTF8String);
        [commands->encoder endEncoding];
        commands->buffer = [device->queue commandBufferWithDescriptor:commands->descriptor];
        commands->encoder =
            [commands->buffer computeCommandEncoderWithDispatchType:concurrent ? MTLDispatchTypeConcurrent
                                                                               : MTLDispatchTypeSerial];
        if (commands->encoder == nil)
            return error_set(error, CALLA_DEVICE, "The GPU takes no commands.");
        commands->buffer.label = commands->label;
        commands->encoder.label = commands->label;
        [commands->encoder waitForFence:device->fence];
        commands->pipeline = NULL;
        commands->mistaken = false;
        commands->status = METAL_ENCODING;
        return true;
    }
}

static void mistake(struct metal_commands *commands, const char *what, uint32_t number) {
    if (!commands->mistaken)
        error_set(&commands->error, CALLA_DEVICE, "Kernel '%s': %s: %u.",
                  commands->pipeline != NULL ? commands->pipeline->name.UTF8String : "none", what, number);
    commands->mistaken = true;
}

void metal_set_pipeline(struct metal_commands *commands, const struct metal_pipeline *pipeline) {
    if (commands->pipeline == pipeline)
        return;
    commands->pipeline = pipeline;
    [commands->encoder setComputePipelineState:pipeline->state];
    /* What an error report lists last is the kernel that was running. */
    [commands->encoder insertDebugSignpost:pipeline->name];
}

void metal_set_buffer(struct metal_commands *commands, uint32_t slot, const struct metal_view *view) {
    if (slot >= METAL_BUFFER_SLOTS)
        mistake(commands, "there is no such slot", slot);
    else
        [commands->encoder setBuffer:view->buffer->buffer offset:view->offset atIndex:slot];
}

void metal_set_bytes(struct metal_commands *commands, uint32_t slot, const void *bytes, size_t size) {
    if (slot >= METAL_BUFFER_SLOTS)
        mistake(commands, "there is no such slot", slot);
    else if (size == 0 || size > METAL_MAX_BYTES)
        mistake(commands, "so many bytes cannot be set directly", (uint32_t)size);
    else
        [commands->encoder setBytes:bytes length:size atIndex:slot];
}

void metal_set_threadgroup_memory(struct metal_commands *commands, uint32_t index, uint32_t size) {
    if (index >= METAL_BUFFER_SLOTS || size % 16 != 0)
        mistake(commands, "threadgroup memory comes in multiples of 16 bytes", size);
    else
        [commands->encoder setThreadgroupMemoryLength:size atIndex:index];
}

static bool may_dispatch(struct metal_commands *commands, struct metal_size threads) {
    uint64_t count = (uint64_t)threads.x * threads.y * threads.z;
    if (commands->pipeline == NULL)
        mistake(commands, "a dispatch without a pipeline", 0);
    else if (count == 0 || count > commands->pipeline->limits.max_threads)
        mistake(commands, "so many threads do not make a threadgroup", (uint32_t)count);
    return !commands->mistaken;
}

void metal_dispatch(struct metal_commands *commands, struct metal_size groups, struct metal_size threads) {
    if (groups.x == 0 || groups.y == 0 || groups.z == 0)
        mistake(commands, "no threadgroups", 0);
    if (may_dispatch(commands, threads))
        [commands->encoder dispatchThreadgroups:MTLSizeMake(groups.x, groups.y, groups.z)
                          threadsPerThreadgroup:MTLSizeMake(threads.x, threads.y, threads.z)];
}

void metal_dispatch_indirect(struct metal_commands *commands, struct metal_buffer *buffer, uint64_t offset,
                             struct metal_size threads) {
    if (may_dispatch(commands, threads))
        [commands->encoder
            dispatchThreadgroupsWithIndirectBuffer:buffer->buffer
                              indirectBufferOffset:offset
                             threadsPerThreadgroup:MTLSizeMake(threads.x, threads.y, threads.z)];
}

/* Where dispatches are serial it does nothing, by Apple's header, and their order is what holds. */
void metal_barrier(struct metal_commands *commands) {
    [commands->encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
}

bool metal_commands_commit(struct metal_commands *commands, struct calla_error *error) {
    @autoreleasepool {
        if (commands->status != METAL_ENCODING)
            return error_set(error, CALLA_DEVICE,
                             "The commands '%s' are committed without having been begun.",
                             commands->label.UTF8String);
        [commands->encoder updateFence:commands->device->fence];
        [commands->encoder endEncoding];
        commands->encoder = nil;
        if (commands->mistaken) {
            commands->status = METAL_FAILED;
            commands->buffer = nil;
            if (error != NULL)
                *error = commands->error;
            return false;
        }
        commands->status = METAL_RUNNING;
        [commands->buffer commit];
        return true;
    }
}

/* The last kernel that the encoder with the error is known to have started, or nil. */
static NSString *kernel_of(NSError *reason) {
    NSArray *encoders = reason.userInfo[MTLCommandBufferEncoderInfoErrorKey];
    for (id<MTLCommandBufferEncoderInfo> encoder in encoders)
        if (encoder.errorState == MTLCommandEncoderErrorStateFaulted ||
            encoder.errorState == MTLCommandEncoderErrorStateAffected)
            return encoder.debugSignposts.lastObject;
    return nil;
}

static void note_failure(struct metal_commands *commands) {
    NSError *reason = commands->buffer.error;
    NSString *kernel = kernel_of(reason);
    commands->status = METAL_FAILED;
    error_set(&commands->error, CALLA_DEVICE, "The GPU failed in '%s'%s%s%s: %s", commands->label.UTF8String,
              kernel != nil ? ", kernel '" : "", kernel != nil ? kernel.UTF8String : "",
              kernel != nil ? "'" : "",
              reason != nil ? reason.localizedDescription.UTF8String : "Metal gives no reason.");
    /* After repeated failures the system ignores what a process submits. */
    if (reason.code == MTLCommandBufferErrorAccessRevoked ||
        reason.code == MTLCommandBufferErrorDeviceRemoved)
        commands->device->lost = true;
}

bool metal_commands_wait(struct metal_commands *commands, struct calla_error *error) {
    @autoreleasepool {
        if (commands->status == METAL_RUNNING) {
            [commands->buffer waitUntilCompleted];
            if (commands->buffer.status == MTLCommandBufferStatusCompleted) {
                commands->status = METAL_COMPLETED;
                commands->times.gpu_start = commands->buffer.GPUStartTime;
                commands->times.gpu_end = commands->buffer.GPUEndTime;
            } else {
                note_failure(commands);
            }
            commands->buffer = nil;
        }
        if (commands->status == METAL_COMPLETED)
            return true;
        if (commands->status != METAL_FAILED)
            return error_set(error, CALLA_DEVICE, "The commands '%s' are waited for, but were not committed.",
                             commands->label.UTF8String);
        if (error != NULL)
            *error = commands->error;
        return false;
    }
}

enum metal_status metal_commands_status(const struct metal_commands *commands) {
    if (commands->status != METAL_RUNNING)
        return commands->status;
    MTLCommandBufferStatus status = commands->buffer.status;
    return status == MTLCommandBufferStatusCompleted ? METAL_COMPLETED
           : status == MTLCommandBufferStatusError   ? METAL_FAILED
                                                     : METAL_RUNNING;
}

struct metal_times metal_commands_times(const struct metal_commands *commands) {
    return commands->times;
}
