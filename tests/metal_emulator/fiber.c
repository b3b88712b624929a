#include "metal_emulator/fiber.h"

#include <stdint.h>
#include <string.h>

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define ADDRESS_SANITIZER
#endif
#endif

void fiber_leaves(struct fiber_stack to) {
#ifdef ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(NULL, to.low, to.size);
#else
    (void)to;
#endif
}

void fiber_arrives(struct fiber_stack *from) {
#ifdef ADDRESS_SANITIZER
    struct fiber_stack left;
    __sanitizer_finish_switch_fiber(NULL, &left.low, &left.size);
    if (from != NULL)
        *from = left;
#else
    (void)from;
#endif
}

void fiber_forget(struct fiber_stack stack) {
#ifdef ADDRESS_SANITIZER
    __asan_unpoison_memory_region(stack.low, stack.size);
#else
    (void)stack;
#endif
}

#if defined __x86_64__
__asm__(".text\n"
        ".globl fiber_switch\n"
        ".type fiber_switch, @function\n"
        "fiber_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size fiber_switch, . - fiber_switch\n"
        ".section .note.GNU-stack, \"\", @progbits\n"
        ".text\n");

void *fiber_new(void *high, void (*start)(void)) {
    /* A function finds its stack 8 bytes off a multiple of 16. */
    uintptr_t top = ((uintptr_t)high & ~(uintptr_t)15) - 24;
    uint64_t *frame = (uint64_t *)top - 7;
    memset(frame, 0, 9 * sizeof *frame);
    frame[6] = (uint64_t)(uintptr_t)start;
    return frame;
}
#elif defined __aarch64__
__asm__(".text\n"
        ".globl fiber_switch\n"
        ".type fiber_switch, @function\n"
        "fiber_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size fiber_switch, . - fiber_switch\n"
        ".section .note.GNU-stack, \"\", %progbits\n"
        ".text\n");

void *fiber_new(void *high, void (*start)(void)) {
    uint64_t *frame = (uint64_t *)((uintptr_t)high & ~(uintptr_t)15) - 20;
    memset(frame, 0, 20 * sizeof *frame);
    frame[11] = (uint64_t)(uintptr_t)start; /* x30 */
    return frame;
}
#else
#error "no fibers for this processor"
#endif
