// Activations that several kernels' files use, of numbers and of vectors.
#ifndef CALLA_BACKEND_METAL_KERNELS_ACTIVATIONS_H
#define CALLA_BACKEND_METAL_KERNELS_ACTIVATIONS_H

#include <metal_stdlib>
using namespace metal;

template <class T> METAL_FUNC T silu(T x) {
    return x / (1.0f + exp(-x));
}

#endif
