// All local steps of a round of dense networks on a GPU: a block of threads takes one client at a time and
// computes its steps one after another, so that models and activations stay on the chip. This file defines the
// memory layout; `inner.cu`, `dual.hpp`, `loss.cu`, `first.cu` and `steps.cu` follow. `dense.py` defines the
// constants
//
//   WIDTHS   of the layers, features first            BATCH    rows per mini-batch
//   BYTES    1 if features are stored as bytes         SHARED   bytes of shared memory per block
//   THREADS  per block, a multiple of the warp size   ASCENT   0, or the loss of dual coordinate ascent (`dual.hpp`)
//   SHIFT    1 if steps subtract a shift
//
// Layer l maps width(l) to width(l + 1) values. Matrices are stored transposed, [in][out], with widths padded
// with zeros to a multiple of four. The first layer, the largest, is in `scratch`, which is small enough for the
// cache: in one pass over it a thread takes tiles of eight inputs times four outputs, updates them by one batch
// and multiplies them with the next. A thread with few tiles holds them in registers for the whole round. The
// order of sums depends on these constants only, so results are bitwise reproducible.

constexpr int widths[] = {WIDTHS};
constexpr int LAYERS = sizeof(widths) / sizeof(int) - 1;
constexpr int B = BATCH, WARPS = THREADS / 32;

template <int l> struct Width { static constexpr int n = widths[l], padded = round_up(widths[l], 4); };

constexpr int D = widths[0], DP = round_up(D, 8), H = widths[1], HP = round_up(H, 4);

// Offsets in a flat row of parameters: weight [out][in], then bias, layer by layer.
__host__ __device__ constexpr int weight_offset(int l) {
    int at = 0;
    for (int k = 0; k < l; ++k) at += (widths[k] + 1) * widths[k + 1];
    return at;
}
__host__ __device__ constexpr int bias_offset(int l) { return weight_offset(l) + widths[l] * widths[l + 1]; }
constexpr int SIZE = weight_offset(LAYERS);
__host__ __device__ constexpr int transposed_offset(int l) {  // in transposed matrices without biases
    int at = 0;
    for (int k = 0; k < l; ++k) at += round_up(widths[k], k ? 4 : 8) * round_up(widths[k + 1], 4);
    return at;
}
constexpr int TRANSPOSED_SIZE = transposed_offset(LAYERS);

// Shared memory, in floats: two batches of features; inner layers and all biases; the outputs of the first
// layer and the derivative by them; and partial sums of the first layer, whose space the values of later
// layers reuse.
__host__ __device__ constexpr int inner_offset(int l) {
    int at = 2 * B * DP;
    for (int k = 1; k < l; ++k) at += round_up(widths[k], 4) * round_up(widths[k + 1], 4);
    return at;
}
__host__ __device__ constexpr int inner_bias_offset(int l) {
    int at = inner_offset(LAYERS);
    for (int k = 0; k < l; ++k) at += round_up(widths[k + 1], 4);
    return at;
}
constexpr int OUT1 = inner_bias_offset(LAYERS), SLOPE1 = OUT1 + B * HP, META = SLOPE1 + B * HP;
constexpr int LATER = META + round_up(8 * B, 4);
__host__ __device__ constexpr int out_offset(int l) {  // outputs of layer l − 1, followed by the derivative by them
    if (l == 1) return OUT1;
    int at = LATER;
    for (int k = 2; k < l; ++k) at += 2 * B * round_up(widths[k], 4);
    return at;
}
__host__ __device__ constexpr int slope_offset(int l) { return out_offset(l) + B * round_up(widths[l], 4); }
constexpr int LATER_SIZE = ASCENT ? B * B : out_offset(LAYERS + 1 > 2 ? LAYERS + 1 : 2) - LATER;
constexpr int GROUPS = HP / 4, SLICES = THREADS / GROUPS, CHUNKS = DP / 8;
constexpr int TURNS = (CHUNKS + SLICES - 1) / SLICES;  // tiles per thread
constexpr bool RESIDENT = TURNS <= 2;
constexpr int FITTING = (SHARED / 4 - LATER) / (B * HP);
constexpr int PARTS = FITTING < SLICES ? FITTING : SLICES;
static_assert(GROUPS <= THREADS && PARTS >= 1 && LATER + LATER_SIZE <= SHARED / 4, "too large");

__device__ __forceinline__ void add(float4 &sum, float a, const float4 &b) {
    sum.x = fmaf(a, b.x, sum.x);
    sum.y = fmaf(a, b.y, sum.y);
    sum.z = fmaf(a, b.z, sum.z);
    sum.w = fmaf(a, b.w, sum.w);
}

__device__ __forceinline__ float dot(const float4 &a, const float4 &b, float sum) {
    return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
}

// The index of the thread, read again at each call, so that values derived from it occupy no registers between.
__device__ __forceinline__ int thread() {
#ifdef __CUDA_ARCH__
    int number;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
    return number;
#else
    return threadIdx.x;
#endif
}

__host__ __device__ constexpr int lanes_per_sum(int items) {  // lanes of a warp that share one sum
    return items * 8 <= THREADS ? 8 : items * 4 <= THREADS ? 4 : items * 2 <= THREADS ? 2 : 1;
}

// Definitions that `dual.hpp` needs.
#define INLINE __device__ __forceinline__
typedef float real;
INLINE real smaller(real a, real b) { return fminf(a, b); }
INLINE real larger(real a, real b) { return fmaxf(a, b); }
