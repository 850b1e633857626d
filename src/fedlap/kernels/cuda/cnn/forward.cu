// The two convolutions of the convolutional network on a GPU, each with 2×2 max-pooling, bias and ReLU, and
// their derivatives (`images.cu`, `filters.cu`), for a stack of clients. `cnn.py` defines the constants
//
//   CHANNELS, HEIGHT, WIDTH   of an image                   FIRST, SECOND   filters of the two layers
//   SHARED                    bytes of shared memory per block
//   RAISE_ROWS, RAISE_FILTERS, LOWER   the linear maps of the Toom-Cook algorithm
//
// A client's parameters are a row of W, `stride` values after the previous row; filters come first, then a bias,
// layer by layer.
//
// Images are stored channel by channel, sample after sample. Windows are never stored: in the forward pass, a
// thread holds the sums of two cells (windows of the pooling) times eight filters in registers. In the backward
// pass, a cell has one derivative, at the place of its maximum among four; this place selects one of four code
// paths whose registers are known at compile time. So at most a quarter of the products is computed, and fewer
// where ReLU is zero. The order of sums depends on the constants and the batch only, so results are bitwise
// reproducible.

constexpr int SIDE = 5, PADDING = SIDE / 2, TAPS = SIDE * SIDE, PADDED_LANES = LANES + 1;
constexpr int PADDED_TAPS = (TAPS + 3) / 4 * 4;  // taps, which a thread reads four at a time

template <int channels, int height, int width, int filters> struct Layer {
    static constexpr int C = channels, H = height, W = width, O = filters;
    static constexpr int DOWN = H / 2, ACROSS = W / 2, CELLS = DOWN * ACROSS;  // of the pooled image
    static constexpr int ROWS = 2 * DOWN + SIDE - 1;  // of the padded image, as far as the filters reach
};
using One = Layer<CHANNELS, HEIGHT, WIDTH, FIRST>;
using Two = Layer<FIRST, One::DOWN, One::ACROSS, SECOND>;
constexpr int W1 = 0, B1 = W1 + One::O * One::C * TAPS, W2 = B1 + One::O, B2 = W2 + Two::O * Two::C * TAPS;
static_assert(FIRST == LANES && SECOND % 32 == 0 && CHANNELS <= 4 && Two::CELLS > 0, "unsupported sizes");

template <int threads> __device__ void copy_all(float *to, const float *from, int floats) {
    for (int at = 4 * threadIdx.x; at < floats; at += 4 * threads) copy(to + at, from + at);
}

template <int threads> __device__ void clear(float *at, int floats) {
    for (int k = threadIdx.x; k < floats; k += threads) at[k] = 0;
}

// Copy an image to shared memory: value (c, y, x) to `c · plane + (y + 2) · row + (x + 2) · step`.
template <class L, int threads>
__device__ void load_image(float *to, const float *image, int plane, int row, int step) {
    for (int k = threadIdx.x; k < L::C * L::H * L::W; k += threads) {
        const int c = k / (L::H * L::W), place = k % (L::H * L::W), y = place / L::W, x = place % L::W;
        to[c * plane + (y + PADDING) * row + (x + PADDING) * step] = image[k];
    }
}

// Forward pass, layer by layer ------------------------------------------------------------------------------

struct FirstForward {
    static constexpr int THREADS = 256, PER_THREAD = 8;
    static constexpr int PAIRS = (One::ACROSS + 1) / 2, PLACES = One::DOWN * PAIRS;
    static constexpr int TILES = PLACES * One::O / PER_THREAD;
    static constexpr int ROW = round_up(4 * PAIRS + SIDE - 1, 8), PLANE = One::ROWS * ROW;
    static constexpr int FILTERS = One::C * TAPS * One::O, SIZE = One::C * PLANE + FILTERS;
    static_assert(SIZE <= SHARED / 4, "too large");
};

template <int columns> __device__ __forceinline__ void read(float (&to)[columns], float *from) {
#pragma unroll
    for (int k = 0; k < columns; k += 4) {
        const float4 v = as_float4(from + k);
        to[k] = v.x, to[k + 1] = v.y, to[k + 2] = v.z, to[k + 3] = v.w;
    }
}

// The largest of four values, the first of equal ones, with bias and ReLU; NaN stays NaN.
__device__ __forceinline__ void pool(
    const float *above, const float *below, float bias, float *out, unsigned char *place
) {
    const float value[] = {above[0], above[1], below[0], below[1]};
    float best = value[0];
    int place_of = 0;
#pragma unroll
    for (int v = 1; v < 4; ++v)
        if (value[v] > best || value[v] != value[v]) best = value[v], place_of = v;
    best += bias;
    *out = best <= 0 ? 0 : best;
    *place = place_of;
}

// One block per sample. x [sample][C][H][W], transformed [client][C][tap][O]; out and places [sample][O][cell],
// with the place of a maximum as 0, 1 (above), 2, 3 (below).
extern "C" __global__ void __launch_bounds__(FirstForward::THREADS, 2) first_forward(
    const float *x, const float *transformed, const float *W, float *out, unsigned char *places, int batch,
    int stride
) {
    extern __shared__ float s[];
    using P = FirstForward;
    constexpr int T = P::THREADS;
    const long long sample = blockIdx.x;
    const int client = blockIdx.x / batch, tid = threadIdx.x;
    float *filters = s + One::C * P::PLANE;
    copy_all<T>(filters, transformed + (long long)client * P::FILTERS, P::FILTERS);
    clear<T>(s, One::C * P::PLANE);
    __syncthreads();
    load_image<One, T>(s, x + sample * (One::C * One::H * One::W), P::PLANE, P::ROW, 1);
    wait_for_copies();
    __syncthreads();
    for (int tile = tid; tile < P::TILES; tile += T) {
        const int place = tile / 4 % P::PLACES, o = P::PER_THREAD * (tile % 4 + 4 * (tile / (4 * P::PLACES)));
        const int i = place / P::PAIRS, j = place % P::PAIRS;
        float sum[2][4][P::PER_THREAD] = {};
        float *w = filters + o, *in = s + 2 * i * P::ROW + 4 * j;
#pragma unroll 1
        for (int c = 0; c < One::C; ++c, in += P::PLANE) {
            float rows[2][8];
            read(rows[0], in);
#pragma unroll
            for (int dy = 0; dy < SIDE; ++dy) {
                read(rows[1], in + (dy + 1) * P::ROW);
#pragma unroll
                for (int dx = 0; dx < SIDE; ++dx, w += One::O) {
                    float values[P::PER_THREAD];
                    read(values, w);
#pragma unroll
                    for (int r = 0; r < 2; ++r)
#pragma unroll
                        for (int p = 0; p < 4; ++p)
#pragma unroll
                            for (int k = 0; k < P::PER_THREAD; ++k)
                                sum[r][p][k] = fmaf(rows[r][p + dx], values[k], sum[r][p][k]);
                }
#pragma unroll
                for (int p = 0; p < 8; ++p) rows[0][p] = rows[1][p];
            }
        }
#pragma unroll
        for (int k = 0; k < P::PER_THREAD; ++k) {
            const float b = W[(long long)client * stride + B1 + o + k];
            const long long at = (sample * One::O + o + k) * One::CELLS + i * One::ACROSS + 2 * j;
#pragma unroll
            for (int q = 0; q < 2; ++q) {
                const float above[] = {sum[0][2 * q][k], sum[0][2 * q + 1][k]};
                const float below[] = {sum[1][2 * q][k], sum[1][2 * q + 1][k]};
                if (2 * j + q < One::ACROSS) pool(above, below, b, out + at + q, places + at + q);
            }
        }
    }
}

// The convolution with many channels, by the Toom-Cook algorithm along the width, which takes eight products for
// four values instead of twenty. Values are transformed when they are read, filters by `transform_filters`.
struct SecondForward {
    static constexpr int THREADS = 256, PER_THREAD = 4, TILE = 4, POINTS = 8, ROWS_AT_ONCE = 4;
    static constexpr int PAIRS = (Two::ACROSS + 1) / 2, GROUPS = (Two::DOWN + 1) / 2, PLACES = PAIRS * GROUPS;
    static constexpr int TILES = PLACES * Two::O / PER_THREAD;
    static constexpr int ROW = PAIRS * POINTS, ROWS = ROWS_AT_ONCE * GROUPS + SIDE - 1, PLANE = ROWS * ROW;
    static constexpr int PER_CHANNEL = SIDE * POINTS * Two::O, INPUTS = Two::C * PLANE;
    static constexpr int CHUNK = INPUTS + 2 * 4 * PER_CHANNEL <= SHARED / 4 ? 4 : 2, CHUNKS = Two::C / CHUNK;
    static constexpr int FILTERS = CHUNK * PER_CHANNEL, SIZE = INPUTS + 2 * FILTERS;
    static_assert(Two::C % CHUNK == 0 && CHUNKS % 2 == 0 && SIZE <= SHARED / 4, "too large");
};
constexpr float raise_rows[SecondForward::POINTS][SecondForward::POINTS] = {RAISE_ROWS};
constexpr float raise_filters[SecondForward::POINTS][SIDE] = {RAISE_FILTERS};
constexpr float lower[SecondForward::TILE][SecondForward::POINTS] = {LOWER};

extern "C" __global__ void __launch_bounds__(SecondForward::THREADS, 1) second_forward(
    const float *x, const float *transformed, const float *W, float *out, unsigned char *places, int batch,
    int stride
) {
    extern __shared__ float s[];
    using P = SecondForward;
    constexpr int T = P::THREADS, ROWS_AT_ONCE = P::ROWS_AT_ONCE, E = P::PER_THREAD;
    const long long sample = blockIdx.x;
    const int client = blockIdx.x / batch, tid = threadIdx.x;
    float *filters = s + Two::C * P::PLANE;
    transformed += (long long)client * Two::C * P::PER_CHANNEL;
    copy_all<T>(filters, transformed, P::FILTERS);
    x += sample * (Two::C * Two::H * Two::W);
    for (int k = tid; k < Two::C * P::ROWS * P::PAIRS; k += T) {
        const int j = k % P::PAIRS, y = k / P::PAIRS % P::ROWS - PADDING, c = k / (P::PAIRS * P::ROWS);
        float in[P::POINTS], sum[P::POINTS];
#pragma unroll
        for (int q = 0; q < P::POINTS; ++q) {
            const int at = P::TILE * j + q - PADDING;
            in[q] = y >= 0 && y < Two::H && at >= 0 && at < Two::W ? x[(c * Two::H + y) * Two::W + at] : 0;
        }
#pragma unroll
        for (int p = 0; p < P::POINTS; ++p) {
            sum[p] = 0;
#pragma unroll
            for (int q = 0; q < P::POINTS; ++q)
                if (raise_rows[p][q] != 0) sum[p] = fmaf(raise_rows[p][q], in[q], sum[p]);
        }
        float *to = s + c * P::PLANE + (y + PADDING) * P::ROW + j * P::POINTS;
        as_float4(to) = make_float4(sum[0], sum[1], sum[2], sum[3]);
        as_float4(to + 4) = make_float4(sum[4], sum[5], sum[6], sum[7]);
    }
    for (int first = 0; first < P::TILES; first += T) {
        const int tile = first + tid, o = tile % (Two::O / E) * E, place = tile / (Two::O / E);
        const int g = place / P::PAIRS, j = place % P::PAIRS;
        float sum[P::POINTS][ROWS_AT_ONCE][E] = {};
        for (int chunk = 0; chunk < P::CHUNKS; ++chunk) {
            wait_for_copies();
            __syncthreads();
            const int next = (chunk + 1) % P::CHUNKS;
            if (next || first + T < P::TILES)
                copy_all<T>(filters + (chunk + 1) % 2 * P::FILTERS, transformed + next * P::FILTERS, P::FILTERS);
            if (tile >= P::TILES) continue;
            float *w = filters + chunk % 2 * P::FILTERS + o;
            float *in = s + chunk * P::CHUNK * P::PLANE + ROWS_AT_ONCE * g * P::ROW + j * P::POINTS;
#pragma unroll 1
            for (int c = 0; c < P::CHUNK; ++c, in += P::PLANE, w += P::PER_CHANNEL) {
                float rows[ROWS_AT_ONCE][P::POINTS];
#pragma unroll
                for (int r = 0; r < ROWS_AT_ONCE - 1; ++r) read(rows[r], in + r * P::ROW);
#pragma unroll
                for (int dy = 0; dy < SIDE; ++dy) {
                    read(rows[(dy + ROWS_AT_ONCE - 1) % ROWS_AT_ONCE], in + (dy + ROWS_AT_ONCE - 1) * P::ROW);
#pragma unroll
                    for (int p = 0; p < P::POINTS; ++p) {
                        float values[E];
                        read(values, w + (dy * P::POINTS + p) * Two::O);
#pragma unroll
                        for (int r = 0; r < ROWS_AT_ONCE; ++r)
#pragma unroll
                            for (int e = 0; e < E; ++e)
                                sum[p][r][e] = fmaf(rows[(dy + r) % ROWS_AT_ONCE][p], values[e], sum[p][r][e]);
                    }
                }
            }
        }
        if (tile >= P::TILES) continue;
#pragma unroll
        for (int e = 0; e < E; ++e) {
            const float b = W[(long long)client * stride + B2 + o + e];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float value[2][P::TILE];
#pragma unroll
                for (int r = 0; r < 2; ++r)
#pragma unroll
                    for (int k = 0; k < P::TILE; ++k) {
                        value[r][k] = 0;
#pragma unroll
                        for (int p = 0; p < P::POINTS; ++p)
                            if (lower[k][p] != 0)
                                value[r][k] = fmaf(lower[k][p], sum[p][2 * half + r][e], value[r][k]);
                    }
                const int i = 2 * g + half;
                const long long at = (sample * Two::O + o + e) * Two::CELLS + i * Two::ACROSS + 2 * j;
#pragma unroll
                for (int q = 0; q < 2; ++q)
                    if (i < Two::DOWN && 2 * j + q < Two::ACROSS)
                        pool(value[0] + 2 * q, value[1] + 2 * q, b, out + at + q, places + at + q);
            }
        }
    }
}
