// The two convolutions of the convolutional network on a GPU, each with its 2×2 maxima, bias and ReLU, and
// their derivatives (`images.cu`, `filters.cu`), for a stack of clients. `kernels.py` gives the constants
//
//   CHANNELS, HEIGHT, WIDTH   of an image                   FIRST, SECOND   filters of the two layers
//   SHARED                    bytes of shared memory that a block may have
//   RAISE_ROWS, RAISE_FILTERS, LOWER   the linear maps of Toom and Cook
//
// A client's parameters are a row of W, `stride` numbers after the row before; filters come first, then a bias,
// layer by layer.
//
// Images lie channel by channel, sample after sample. No window is ever written down: forward, a thread holds
// the sums of two cells (windows of the pooling) times eight filters in registers. Backward, a cell has one
// derivative, at the place of its maximum, where four values were; what that place is decides between four
// stretches of code whose registers are all known when they are compiled. So a fourth of the products is made,
// and less, since ReLU has left many cells out. Sums are taken in an order that depends on nothing but the
// constants and the batch: the same numbers every time.

constexpr int SIDE = 5, MARGIN = SIDE / 2, TAPS = SIDE * SIDE, WIDE = LANES + 1;
constexpr int FILLED = (TAPS + 3) / 4 * 4;  // taps that a thread reads four at a time

template <int channels, int height, int width, int filters> struct Layer {
    static constexpr int C = channels, H = height, W = width, O = filters;
    static constexpr int DOWN = H / 2, ACROSS = W / 2, CELLS = DOWN * ACROSS;  // the maxima
    static constexpr int ROWS = 2 * DOWN + SIDE - 1;  // of an image with its margins, as far as it is seen
};
using One = Layer<CHANNELS, HEIGHT, WIDTH, FIRST>;
using Two = Layer<FIRST, One::DOWN, One::ACROSS, SECOND>;
constexpr int W1 = 0, B1 = W1 + One::O * One::C * TAPS, W2 = B1 + One::O, B2 = W2 + Two::O * Two::C * TAPS;
static_assert(FIRST == LANES && SECOND % 32 == 0 && CHANNELS <= 4 && Two::CELLS > 0, "not made for these");

template <int threads> __device__ void copy_all(float *to, const float *from, int floats) {
    for (int at = 4 * threadIdx.x; at < floats; at += 4 * threads) copy(to + at, from + at);
}

template <int threads> __device__ void clear(float *at, int floats) {
    for (int k = threadIdx.x; k < floats; k += threads) at[k] = 0;
}

// An image into shared memory: value (c, y, x) to `c · plane + (y + 2) · row + (x + 2) · step`.
template <class L, int threads>
__device__ void take(float *to, const float *image, int plane, int row, int step) {
    for (int k = threadIdx.x; k < L::C * L::H * L::W; k += threads) {
        const int c = k / (L::H * L::W), place = k % (L::H * L::W), y = place / L::W, x = place % L::W;
        to[c * plane + (y + MARGIN) * row + (x + MARGIN) * step] = image[k];
    }
}

// Forward, one layer after the other ------------------------------------------------------------------------

struct Direct {
    static constexpr int THREADS = 256, EACH = 8;
    static constexpr int PAIRS = (One::ACROSS + 1) / 2, PLACES = One::DOWN * PAIRS;
    static constexpr int TILES = PLACES * One::O / EACH;
    static constexpr int ROW = up(4 * PAIRS + SIDE - 1, 8), PLANE = One::ROWS * ROW;
    static constexpr int FILTERS = One::C * TAPS * One::O, SIZE = One::C * PLANE + FILTERS;
    static_assert(SIZE <= SHARED / 4, "too large");
};

template <int columns> __device__ __forceinline__ void read(float (&to)[columns], float *from) {
#pragma unroll
    for (int k = 0; k < columns; k += 4) {
        const float4 v = four(from + k);
        to[k] = v.x, to[k + 1] = v.y, to[k + 2] = v.z, to[k + 3] = v.w;
    }
}

// Of four values the largest, the first of equals, with bias and ReLU; what is no number stays none.
__device__ __forceinline__ void most(
    const float *above, const float *under, float bias, float *out, unsigned char *place
) {
    const float value[] = {above[0], above[1], under[0], under[1]};
    float best = value[0];
    int where = 0;
#pragma unroll
    for (int v = 1; v < 4; ++v)
        if (value[v] > best || value[v] != value[v]) best = value[v], where = v;
    best += bias;
    *out = best <= 0 ? 0 : best;
    *place = where;
}

// A block is a sample. x [sample][C][H][W], turned [client][C][tap][O]; out and places [sample][O][cell], the
// place of a maximum among 0, 1 (above), 2, 3 (below).
extern "C" __global__ void __launch_bounds__(Direct::THREADS, 2) first_forward(
    const float *x, const float *turned, const float *W, float *out, unsigned char *places, int batch,
    int stride
) {
    extern __shared__ float s[];
    using P = Direct;
    constexpr int T = P::THREADS;
    const long long sample = blockIdx.x;
    const int client = blockIdx.x / batch, tid = threadIdx.x;
    float *filters = s + One::C * P::PLANE;
    copy_all<T>(filters, turned + (long long)client * P::FILTERS, P::FILTERS);
    clear<T>(s, One::C * P::PLANE);
    __syncthreads();
    take<One, T>(s, x + sample * (One::C * One::H * One::W), P::PLANE, P::ROW, 1);
    copied();
    __syncthreads();
    for (int tile = tid; tile < P::TILES; tile += T) {
        const int place = tile / 4 % P::PLACES, o = P::EACH * (tile % 4 + 4 * (tile / (4 * P::PLACES)));
        const int i = place / P::PAIRS, j = place % P::PAIRS;
        float sum[2][4][P::EACH] = {};
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
                    float each[P::EACH];
                    read(each, w);
#pragma unroll
                    for (int r = 0; r < 2; ++r)
#pragma unroll
                        for (int p = 0; p < 4; ++p)
#pragma unroll
                            for (int k = 0; k < P::EACH; ++k)
                                sum[r][p][k] = fmaf(rows[r][p + dx], each[k], sum[r][p][k]);
                }
#pragma unroll
                for (int p = 0; p < 8; ++p) rows[0][p] = rows[1][p];
            }
        }
#pragma unroll
        for (int k = 0; k < P::EACH; ++k) {
            const float b = W[(long long)client * stride + B1 + o + k];
            const long long at = (sample * One::O + o + k) * One::CELLS + i * One::ACROSS + 2 * j;
#pragma unroll
            for (int q = 0; q < 2; ++q) {
                const float above[] = {sum[0][2 * q][k], sum[0][2 * q + 1][k]};
                const float under[] = {sum[1][2 * q][k], sum[1][2 * q + 1][k]};
                if (2 * j + q < One::ACROSS) most(above, under, b, out + at + q, places + at + q);
            }
        }
    }
}

// The same with many channels: along the width by the algorithm of Toom and Cook, which for four values makes
// eight products where windows have twenty. Values are raised when they are read, filters by `turn`.
struct Raised {
    static constexpr int THREADS = 256, EACH = 4, TILE = 4, POINTS = 8, TALL = 4;
    static constexpr int PAIRS = (Two::ACROSS + 1) / 2, GROUPS = (Two::DOWN + 1) / 2, PLACES = PAIRS * GROUPS;
    static constexpr int TILES = PLACES * Two::O / EACH;
    static constexpr int ROW = PAIRS * POINTS, ROWS = TALL * GROUPS + SIDE - 1, PLANE = ROWS * ROW;
    static constexpr int EACH_C = SIDE * POINTS * Two::O, INPUTS = Two::C * PLANE;
    static constexpr int CHUNK = INPUTS + 2 * 4 * EACH_C <= SHARED / 4 ? 4 : 2, CHUNKS = Two::C / CHUNK;
    static constexpr int FILTERS = CHUNK * EACH_C, SIZE = INPUTS + 2 * FILTERS;
    static_assert(Two::C % CHUNK == 0 && CHUNKS % 2 == 0 && SIZE <= SHARED / 4, "too large");
};
constexpr float raise_rows[Raised::POINTS][Raised::POINTS] = {RAISE_ROWS};
constexpr float raise_filters[Raised::POINTS][SIDE] = {RAISE_FILTERS};
constexpr float lower[Raised::TILE][Raised::POINTS] = {LOWER};

extern "C" __global__ void __launch_bounds__(Raised::THREADS, 1) second_forward(
    const float *x, const float *turned, const float *W, float *out, unsigned char *places, int batch,
    int stride
) {
    extern __shared__ float s[];
    using P = Raised;
    constexpr int T = P::THREADS, TALL = P::TALL, E = P::EACH;
    const long long sample = blockIdx.x;
    const int client = blockIdx.x / batch, tid = threadIdx.x;
    float *filters = s + Two::C * P::PLANE;
    turned += (long long)client * Two::C * P::EACH_C;
    copy_all<T>(filters, turned, P::FILTERS);
    x += sample * (Two::C * Two::H * Two::W);
    for (int k = tid; k < Two::C * P::ROWS * P::PAIRS; k += T) {
        const int j = k % P::PAIRS, y = k / P::PAIRS % P::ROWS - MARGIN, c = k / (P::PAIRS * P::ROWS);
        float in[P::POINTS], sum[P::POINTS];
#pragma unroll
        for (int q = 0; q < P::POINTS; ++q) {
            const int at = P::TILE * j + q - MARGIN;
            in[q] = y >= 0 && y < Two::H && at >= 0 && at < Two::W ? x[(c * Two::H + y) * Two::W + at] : 0;
        }
#pragma unroll
        for (int p = 0; p < P::POINTS; ++p) {
            sum[p] = 0;
#pragma unroll
            for (int q = 0; q < P::POINTS; ++q)
                if (raise_rows[p][q] != 0) sum[p] = fmaf(raise_rows[p][q], in[q], sum[p]);
        }
        float *to = s + c * P::PLANE + (y + MARGIN) * P::ROW + j * P::POINTS;
        four(to) = make_float4(sum[0], sum[1], sum[2], sum[3]);
        four(to + 4) = make_float4(sum[4], sum[5], sum[6], sum[7]);
    }
    for (int first = 0; first < P::TILES; first += T) {
        const int tile = first + tid, o = tile % (Two::O / E) * E, place = tile / (Two::O / E);
        const int g = place / P::PAIRS, j = place % P::PAIRS;
        float sum[P::POINTS][TALL][E] = {};
        for (int chunk = 0; chunk < P::CHUNKS; ++chunk) {
            copied();
            __syncthreads();
            const int next = (chunk + 1) % P::CHUNKS;
            if (next || first + T < P::TILES)
                copy_all<T>(filters + (chunk + 1) % 2 * P::FILTERS, turned + next * P::FILTERS, P::FILTERS);
            if (tile >= P::TILES) continue;
            float *w = filters + chunk % 2 * P::FILTERS + o;
            float *in = s + chunk * P::CHUNK * P::PLANE + TALL * g * P::ROW + j * P::POINTS;
#pragma unroll 1
            for (int c = 0; c < P::CHUNK; ++c, in += P::PLANE, w += P::EACH_C) {
                float rows[TALL][P::POINTS];
#pragma unroll
                for (int r = 0; r < TALL - 1; ++r) read(rows[r], in + r * P::ROW);
#pragma unroll
                for (int dy = 0; dy < SIDE; ++dy) {
                    read(rows[(dy + TALL - 1) % TALL], in + (dy + TALL - 1) * P::ROW);
#pragma unroll
                    for (int p = 0; p < P::POINTS; ++p) {
                        float each[E];
                        read(each, w + (dy * P::POINTS + p) * Two::O);
#pragma unroll
                        for (int r = 0; r < TALL; ++r)
#pragma unroll
                            for (int e = 0; e < E; ++e)
                                sum[p][r][e] = fmaf(rows[(dy + r) % TALL][p], each[e], sum[p][r][e]);
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
                        most(value[0] + 2 * q, value[1] + 2 * q, b, out + at + q, places + at + q);
            }
        }
    }
}
