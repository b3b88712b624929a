/* Switching between stacks: saves what a call preserves, changes the stack pointer, and restores. ucontext
 * would make system calls for signal masks each time. */
#ifndef CALLA_METAL_EMULATOR_FIBER_H
#define CALLA_METAL_EMULATOR_FIBER_H

/* Leaves the running stack at *from and goes on at `to`. */
void fiber_switch(void **from, void *to);

/* A stack pointer from which fiber_switch starts start(), which must never return, on a stack that ends at
 * `high`. */
void *fiber_new(void *high, void (*start)(void));

#endif
