/* The part of Foundation that metal_device.m uses, declared for a type-check without macOS: names and types
 * as Apple's headers document them, in this project's own words. */
#ifndef CALLA_TEST_FOUNDATION_H
#define CALLA_TEST_FOUNDATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef signed char BOOL;
#define YES ((BOOL)1)
#define NO ((BOOL)0)
#define nil ((id)0)
typedef long NSInteger;
typedef unsigned long NSUInteger;
typedef unsigned short unichar;

@protocol NSObject
- (instancetype)self;
@end

@class NSString, NSDictionary;

__attribute__((objc_root_class))
@interface NSObject<NSObject>
+ (instancetype)alloc;
- (instancetype)init;
@end

@interface NSString : NSObject
+ (instancetype)stringWithUTF8String:(const char *)text;
@property(readonly) const char *UTF8String;
@end

typedef struct {
    unsigned long state;
    id __unsafe_unretained *itemsPtr;
    unsigned long *mutationsPtr;
    unsigned long extra[5];
} NSFastEnumerationState;

@protocol NSFastEnumeration
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState *)state
                                  objects:(id __unsafe_unretained *)buffer
                                    count:(NSUInteger)count;
@end

@interface NSArray : NSObject <NSFastEnumeration>
+ (instancetype)array;
@property(readonly) id lastObject;
@property(readonly) NSUInteger count;
@end

@interface NSMutableArray : NSArray
- (void)addObject:(id)object;
@end

@interface NSDictionary : NSObject
- (id)objectForKeyedSubscript:(id)key;
@end

@interface NSError : NSObject
@property(readonly) NSInteger code;
@property(readonly) NSString *domain;
@property(readonly) NSString *localizedDescription;
@property(readonly) NSDictionary *userInfo;
@end

typedef struct {
    NSInteger majorVersion, minorVersion, patchVersion;
} NSOperatingSystemVersion;

@interface NSProcessInfo : NSObject
@property(class, readonly) NSProcessInfo *processInfo;
@property(readonly) NSOperatingSystemVersion operatingSystemVersion;
@end

NSUInteger NSPageSize(void);

/* From <dispatch/dispatch.h>. */
@protocol OS_dispatch_data <NSObject>
@end
@protocol OS_dispatch_queue <NSObject>
@end
typedef NSObject<OS_dispatch_data> *dispatch_data_t;
typedef NSObject<OS_dispatch_queue> *dispatch_queue_t;
typedef void (^dispatch_block_t)(void);
dispatch_data_t dispatch_data_create(const void *bytes, size_t size, dispatch_queue_t queue,
                                     dispatch_block_t destructor);

#endif
