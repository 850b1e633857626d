// A CUDA kernel on a CPU: the threads of a block are fibers, which run in turn from one barrier to the next.
// Kernels may use barriers of the whole block, and exchanges between all lanes of a warp.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

using std::copysign, std::exp, std::log, std::log1p;  // of float, as on a GPU

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

struct float4 { float x, y, z, w; };
struct uint4 { unsigned x, y, z, w; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct Index { int x; };
inline Index threadIdx, blockIdx;

namespace emulated {

constexpr int LANES = 32, STACK = 1 << 16;

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[STACK]};
    const int *awaited = nullptr;  // goes on when this is no longer what it was
    int seen = 0;
    bool done = false;
};

inline std::vector<Fiber> fibers;
inline ucontext_t scheduler;
inline int now, arrived, generation;
inline std::vector<int> warp_arrived, warp_generation;
inline std::vector<float> given[2];
inline std::function<void()> body;
inline float *memory;

inline void await(const int *what) {
    Fiber &own = fibers[now];
    own.awaited = what;
    own.seen = *what;
    swapcontext(&own.context, &scheduler);
}

inline void enter() {
    body();
    fibers[now].done = true;
    swapcontext(&fibers[now].context, &scheduler);
}

inline void run(int blocks, int threads, int shared, std::function<void()> kernel) {
    memory = static_cast<float *>(std::aligned_alloc(16, (shared + 15) / 16 * 16));
    body = std::move(kernel);
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        fibers = std::vector<Fiber>(threads);
        arrived = generation = 0;
        warp_arrived.assign(threads / LANES, 0);
        warp_generation.assign(threads / LANES, 0);
        for (auto &each : given) each.assign(threads, 0);
        for (Fiber &fiber : fibers) {
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.get();
            fiber.context.uc_stack.ss_size = STACK;
            fiber.context.uc_link = nullptr;
            makecontext(&fiber.context, enter, 0);
        }
        for (int left = threads; left;) {
            for (now = 0; now < threads; ++now) {
                Fiber &fiber = fibers[now];
                if (fiber.done || (fiber.awaited && *fiber.awaited == fiber.seen)) continue;
                fiber.awaited = nullptr;
                threadIdx.x = now;
                swapcontext(&scheduler, &fiber.context);
                left -= fiber.done;
            }
        }
    }
    std::free(memory);
}

}  // namespace emulated

inline void __syncthreads() {
    using namespace emulated;
    if (++arrived == (int)fibers.size()) {
        arrived = 0;
        ++generation;
    } else {
        await(&generation);
    }
}

inline float __shfl_xor_sync(unsigned, float value, int lanes) {
    using namespace emulated;
    const int own = now, warp = own / LANES;
    auto &there = given[warp_generation[warp] % 2];  // two in turn: the last may still be read
    there[own] = value;
    if (++warp_arrived[warp] == LANES) {
        warp_arrived[warp] = 0;
        ++warp_generation[warp];
    } else {
        await(&warp_generation[warp]);
    }
    return there[own ^ lanes];
}

inline int atomicAdd(int *at, int by) {
    const int was = *at;
    *at += by;
    return was;
}
