// All steps of a round of dense networks on a GPU: a block of threads takes a client and makes its steps one
// after another, so that models and activations stay on the chip. Here is where everything lies; `inner.cu`,
// `dual.hpp`, `loss.cu`, `first.cu` and `steps.cu` follow. `fused.py` gives the constants
//
//   WIDTHS   of the layers, features first            BATCH    rows of a mini-batch
//   BYTES    1 where features are stored as bytes      SHARED   bytes of shared memory that a block may have
//   THREADS  of a block, whole warps                  ASCENT   0, or the loss of dual coordinate ascent (`dual.hpp`)
//
// Layer l goes from width(l) to width(l + 1) values. Matrices are kept turned, [in][out], their widths filled
// up with zeros to whole float4. The first layer, the largest, lies in `room`, which is small enough for the
// cache: in one pass over it a thread takes tiles of eight inputs times four outputs, changes them by one batch
// and multiplies them with the next; where it has few tiles, it holds them for the whole round. Sums are taken
// in an order that depends on nothing but these constants: the same numbers every time.

constexpr int widths[] = {WIDTHS};
constexpr int LAYERS = sizeof(widths) / sizeof(int) - 1;
constexpr int B = BATCH, WARPS = THREADS / 32;

template <int l> struct Width { static constexpr int n = widths[l], wide = up(widths[l], 4); };

constexpr int D = widths[0], DP = up(D, 8), H = widths[1], HP = up(H, 4);

// Where parameters are in a flat row: weight [out][in], then bias, layer by layer.
__host__ __device__ constexpr int weight_at(int l) {
    int at = 0;
    for (int k = 0; k < l; ++k) at += (widths[k] + 1) * widths[k + 1];
    return at;
}
__host__ __device__ constexpr int bias_at(int l) { return weight_at(l) + widths[l] * widths[l + 1]; }
constexpr int SIZE = weight_at(LAYERS);
__host__ __device__ constexpr int turned_at(int l) {  // of matrices that are turned, without biases
    int at = 0;
    for (int k = 0; k < l; ++k) at += up(widths[k], k ? 4 : 8) * up(widths[k + 1], 4);
    return at;
}
constexpr int TURNED = turned_at(LAYERS);

// Shared memory, in floats: two batches of features; inner layers with their biases; what leaves the first
// layer, and the derivative by it; and room for partial sums of the first layer, which the values of later
// layers take in turn.
__host__ __device__ constexpr int inner_at(int l) {
    int at = 2 * B * DP;
    for (int k = 1; k < l; ++k) at += up(widths[k], 4) * up(widths[k + 1], 4);
    return at;
}
__host__ __device__ constexpr int inner_bias_at(int l) {
    int at = inner_at(LAYERS);
    for (int k = 0; k < l; ++k) at += up(widths[k + 1], 4);
    return at;
}
constexpr int OUT1 = inner_bias_at(LAYERS), SLOPE1 = OUT1 + B * HP, META = SLOPE1 + B * HP;
constexpr int LATER = META + up(8 * B, 4);
__host__ __device__ constexpr int out_at(int l) {  // what leaves layer l − 1; its slope lies behind it
    if (l == 1) return OUT1;
    int at = LATER;
    for (int k = 2; k < l; ++k) at += 2 * B * up(widths[k], 4);
    return at;
}
__host__ __device__ constexpr int slope_at(int l) { return out_at(l) + B * up(widths[l], 4); }
constexpr int LATER_SIZE = ASCENT ? B * B : out_at(LAYERS + 1 > 2 ? LAYERS + 1 : 2) - LATER;
constexpr int GROUPS = HP / 4, SLICES = THREADS / GROUPS, CHUNKS = DP / 8;
constexpr int TURNS = (CHUNKS + SLICES - 1) / SLICES;  // tiles of a thread
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

// The number of the thread, read anew: what follows from it is not kept in registers for a whole round.
__device__ __forceinline__ int thread() {
#ifdef __CUDA_ARCH__
    int number;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
    return number;
#else
    return threadIdx.x;
#endif
}

__host__ __device__ constexpr int lanes_each(int items) {  // of a warp that share a sum
    return items * 8 <= THREADS ? 8 : items * 4 <= THREADS ? 4 : items * 2 <= THREADS ? 2 : 1;
}

// For `dual.hpp`.
#define HERE __device__ __forceinline__
typedef float real;
HERE real least(real a, real b) { return fminf(a, b); }
HERE real most(real a, real b) { return fmaxf(a, b); }
