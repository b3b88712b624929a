/* The part of Metal that metal_device.m uses, declared for a type-check without macOS: see Foundation.h. A
 * selector, a type or a value that is wrong here is wrong there too; only a Mac can tell. */
#ifndef CALLA_TEST_METAL_H
#define CALLA_TEST_METAL_H

#import <Foundation/Foundation.h>

typedef struct {
    NSUInteger width, height, depth;
} MTLSize;
static inline MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth) {
    MTLSize size = {width, height, depth};
    return size;
}

typedef enum : NSInteger {
    MTLGPUFamilyApple7 = 1007,
    MTLGPUFamilyApple10 = 1010,
    MTLGPUFamilyMetal4 = 5002
} MTLGPUFamily;
typedef enum : NSUInteger {
    MTLResourceStorageModeShared = 0,
    MTLResourceHazardTrackingModeUntracked = 256
} MTLResourceOptions;
typedef enum : NSUInteger { MTLDispatchTypeSerial, MTLDispatchTypeConcurrent } MTLDispatchType;
typedef enum : NSUInteger { MTLBarrierScopeBuffers = 1, MTLBarrierScopeTextures = 2 } MTLBarrierScope;
typedef enum : NSUInteger {
    MTLLanguageVersion3_1 = (3 << 16) + 1,
    MTLLanguageVersion4_0 = 4 << 16
} MTLLanguageVersion;
typedef enum : NSInteger { MTLMathModeSafe, MTLMathModeRelaxed, MTLMathModeFast } MTLMathMode;
typedef enum : NSUInteger {
    MTLDataTypeFloat = 3,
    MTLDataTypeInt = 29,
    MTLDataTypeUInt = 33,
    MTLDataTypeBool = 53
} MTLDataType;
typedef enum : NSUInteger {
    MTLCommandBufferStatusNotEnqueued,
    MTLCommandBufferStatusEnqueued,
    MTLCommandBufferStatusCommitted,
    MTLCommandBufferStatusScheduled,
    MTLCommandBufferStatusCompleted,
    MTLCommandBufferStatusError
} MTLCommandBufferStatus;
typedef enum : NSUInteger {
    MTLCommandBufferErrorInternal = 1,
    MTLCommandBufferErrorTimeout = 2,
    MTLCommandBufferErrorAccessRevoked = 4,
    MTLCommandBufferErrorOutOfMemory = 8,
    MTLCommandBufferErrorDeviceRemoved = 11
} MTLCommandBufferError;
typedef enum : NSUInteger {
    MTLCommandBufferErrorOptionNone,
    MTLCommandBufferErrorOptionEncoderExecutionStatus
} MTLCommandBufferErrorOption;
typedef enum : NSInteger {
    MTLCommandEncoderErrorStateUnknown,
    MTLCommandEncoderErrorStateCompleted,
    MTLCommandEncoderErrorStateAffected,
    MTLCommandEncoderErrorStatePending,
    MTLCommandEncoderErrorStateFaulted
} MTLCommandEncoderErrorState;

extern NSString *const MTLCommandBufferEncoderInfoErrorKey;

@protocol MTLAllocation <NSObject>
@end

@protocol MTLBuffer <MTLAllocation>
@property(copy) NSString *label;
@property(readonly) NSUInteger length;
- (void *)contents;
@end

@protocol MTLFence <NSObject>
@end

@protocol MTLResidencySet <NSObject>
- (void)addAllocation:(id<MTLAllocation>)allocation;
- (void)removeAllocation:(id<MTLAllocation>)allocation;
- (void)commit;
- (void)requestResidency;
@end

@interface MTLResidencySetDescriptor : NSObject
@property(copy) NSString *label;
@property NSUInteger initialCapacity;
@end

@interface MTLFunctionConstantValues : NSObject
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index;
@end

@interface MTLCompileOptions : NSObject
@property MTLLanguageVersion languageVersion;
@property MTLMathMode mathMode;
@property BOOL fastMathEnabled;
@end

@protocol MTLFunction <NSObject>
@end

@protocol MTLLibrary <NSObject>
- (id<MTLFunction>)newFunctionWithName:(NSString *)name
                        constantValues:(MTLFunctionConstantValues *)values
                                 error:(NSError **)error;
@end

@protocol MTLComputePipelineState <NSObject>
@property(readonly) NSUInteger maxTotalThreadsPerThreadgroup, threadExecutionWidth,
    staticThreadgroupMemoryLength;
@end

@protocol MTLCommandBufferEncoderInfo <NSObject>
@property(readonly) NSString *label;
@property(readonly) NSArray *debugSignposts;
@property(readonly) MTLCommandEncoderErrorState errorState;
@end

@protocol MTLComputeCommandEncoder <NSObject>
@property(copy) NSString *label;
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state;
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads;
- (void)dispatchThreadgroupsWithIndirectBuffer:(id<MTLBuffer>)buffer
                          indirectBufferOffset:(NSUInteger)offset
                         threadsPerThreadgroup:(MTLSize)threads;
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope;
- (void)waitForFence:(id<MTLFence>)fence;
- (void)updateFence:(id<MTLFence>)fence;
- (void)insertDebugSignpost:(NSString *)text;
- (void)endEncoding;
@end

@interface MTLCommandBufferDescriptor : NSObject
@property BOOL retainedReferences;
@property MTLCommandBufferErrorOption errorOptions;
@end

@protocol MTLCommandBuffer <NSObject>
@property(copy) NSString *label;
@property(readonly) MTLCommandBufferStatus status;
@property(readonly) NSError *error;
@property(readonly) double GPUStartTime, GPUEndTime;
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type;
- (void)commit;
- (void)waitUntilCompleted;
@end

@protocol MTLCommandQueue <NSObject>
- (id<MTLCommandBuffer>)commandBufferWithDescriptor:(MTLCommandBufferDescriptor *)descriptor;
- (void)addResidencySet:(id<MTLResidencySet>)set;
@end

@interface MTLArchitecture : NSObject
@property(readonly) NSString *name;
@end

@protocol MTLDevice <NSObject>
@property(readonly) NSString *name;
@property(readonly) MTLArchitecture *architecture;
@property(readonly) uint64_t recommendedMaxWorkingSetSize;
@property(readonly) NSUInteger maxBufferLength, maxThreadgroupMemoryLength;
@property(readonly) MTLSize maxThreadsPerThreadgroup;
- (BOOL)supportsFamily:(MTLGPUFamily)family;
- (id<MTLCommandQueue>)newCommandQueue;
- (id<MTLFence>)newFence;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void *pointer, NSUInteger length))deallocator;
- (id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor *)descriptor
                                               error:(NSError **)error;
- (id<MTLLibrary>)newLibraryWithData:(dispatch_data_t)data error:(NSError **)error;
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source
                               options:(MTLCompileOptions *)options
                                 error:(NSError **)error;
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function
                                                             error:(NSError **)error;
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void);
NSArray *MTLCopyAllDevices(void);

#endif
