#ifndef EMULATOR_PERFORMANCE_PRIMITIVES_H
#define EMULATOR_PERFORMANCE_PRIMITIVES_H

/* The part of Metal 4's tensor operations that kernels use; nothing below language version 4, as with
 * Apple's. */
#if __METAL_VERSION__ >= 400
#ifdef EMULATOR_SYNTAX
#include "../emulator/tensor_syntax.h"
#else
#include "../emulator/tensor.h"
#endif
#endif

#endif
