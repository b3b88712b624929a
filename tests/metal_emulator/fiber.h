/* Switching between stacks: saves what a call preserves, changes the stack pointer, and restores. ucontext
 * would make system calls for signal masks each time. */
#ifndef CALLA_METAL_EMULATOR_FIBER_H
#define CALLA_METAL_EMULATOR_FIBER_H

#include <stddef.h>

struct fiber_stack {
    const void *low;
    size_t size;
};

/* Leaves the running stack at *from and goes on at `to`. */
void fiber_switch(void **from, void *to);

/* A stack pointer from which fiber_switch starts start(), which must never return, on a stack that ends at
 * `high`. */
void *fiber_new(void *high, void (*start)(void));

/* What the address sanitizer is told, so that it knows which stack runs: before a switch, where it goes;
 * after it, on the other stack, asking where it came from unless `from` is NULL. A stack that is left for
 * good, by a fiber that ended or was dropped, has marks that must go before it is used again. Nothing without
 * that sanitizer. The thread sanitizer takes a thread's fibers for that thread, which they are, and is told
 * nothing: the emulator is compiled without the records of calls that it would miss the ends of. */
void fiber_leaves(struct fiber_stack to);
void fiber_arrives(struct fiber_stack *from);
void fiber_forget(struct fiber_stack stack);

#endif
