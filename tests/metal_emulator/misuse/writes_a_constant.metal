// expect: const-qualified
#include <metal_stdlib>
using namespace metal;
struct settings {
    uint rows;
};
kernel void misuse(constant settings &given [[buffer(0)]]) {
    given.rows = 1;
}
