// The two convolutions of the convolutional network on a GPU, each with its 2×2 maxima, bias and ReLU, and
// their derivatives, for a stack of clients. `kernels.py` gives the constants
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

__host__ __device__ constexpr int up(int n, int to) { return (n + to - 1) / to * to; }

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

// The derivative by what enters the second layer ------------------------------------------------------------

// Cells of a unit, which a warp takes, and the values around them that they see.
constexpr int UNIT = 4, SEEN = SIDE + 1, BROAD = 2 * UNIT + SIDE - 1;

struct Spread {
    static constexpr int UNITS_ACROSS = (Two::ACROSS + UNIT - 1) / UNIT, UNITS = Two::DOWN * UNITS_ACROSS;
    static constexpr int WARPS = UNITS < 16 ? UNITS : 16, THREADS = LANES * WARPS;
    static constexpr int ROW = 2 * UNIT * UNITS_ACROSS + SIDE - 1, IMAGE = Two::ROWS * ROW * WIDE;
    static constexpr int DELTAS = Two::O * UNITS * UNIT, BESIDE = up(IMAGE, 4) + DELTAS + DELTAS / 4;
    static constexpr int CHUNK = BESIDE + 2 * 16 * LANES * FILLED <= SHARED / 4 ? 16 : 8;
    static constexpr int CHUNKS = Two::O / CHUNK, FILTERS = CHUNK * LANES * FILLED;
    static constexpr int FILTERS_AT = up(IMAGE, 4), DELTAS_AT = FILTERS_AT + 2 * FILTERS;
    static constexpr int PLACES_AT = DELTAS_AT + DELTAS, SIZE = PLACES_AT + DELTAS / 4;
    static_assert(CHUNKS % 2 == 0 && SIZE <= SHARED / 4, "too large");
};

template <int cell, int place>
__device__ __forceinline__ void spread_cell(float (&sum)[SEEN][BROAD], const float (&w)[FILLED], float delta) {
#pragma unroll
    for (int t = 0; t < TAPS; ++t) {
        float &to = sum[place / 2 + t / SIDE][2 * cell + place % 2 + t % SIDE];
        to = fmaf(delta, w[t], to);
    }
}

template <int cell>
__device__ __forceinline__ void spread_cell(
    float (&sum)[SEEN][BROAD], const float (&w)[FILLED], float delta, unsigned places
) {
    if (delta == 0) return;
    const unsigned place = places >> 8 * cell & 255;
    if (place == 0) spread_cell<cell, 0>(sum, w, delta);
    else if (place == 1) spread_cell<cell, 1>(sum, w, delta);
    else if (place == 2) spread_cell<cell, 2>(sum, w, delta);
    else spread_cell<cell, 3>(sum, w, delta);
}

// A block is a sample, a warp four cells in a row, a lane a channel. delta, zero where ReLU is, and places
// [sample][O][cell]; filters [client][O][C][tap], filled up; below, what entered, by whose ReLU the result is
// cut [sample][C][H][W].
extern "C" __global__ void __launch_bounds__(Spread::THREADS, 1) second_images(
    const float *delta, const unsigned char *places, const float *filters, const float *below, float *by_images,
    int batch
) {
    extern __shared__ float s[];
    using P = Spread;
    constexpr int T = P::THREADS;
    const long long sample = blockIdx.x;
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    float *w_all = s + P::FILTERS_AT, *deltas = s + P::DELTAS_AT;
    unsigned *where = reinterpret_cast<unsigned *>(s + P::PLACES_AT);
    filters += (long long)(blockIdx.x / batch) * Two::O * LANES * FILLED;
    copy_all<T>(w_all, filters, P::FILTERS);
    clear<T>(s, P::IMAGE);
    for (int k = threadIdx.x; k < P::DELTAS; k += T) {
        const int o = k / (P::UNITS * UNIT), i = k / (P::UNITS_ACROSS * UNIT) % Two::DOWN;
        const int j = k % (P::UNITS_ACROSS * UNIT);
        const long long from = (sample * Two::O + o) * Two::CELLS + i * Two::ACROSS + j;
        const bool inside = j < Two::ACROSS;
        deltas[k] = inside ? delta[from] : 0;
        reinterpret_cast<unsigned char *>(where)[k] = inside ? places[from] : 0;
    }
    for (int first = 0; first < P::UNITS; first += P::WARPS) {
        const int unit = first + warp, i = unit / P::UNITS_ACROSS, j = unit % P::UNITS_ACROSS;
        float sum[SEEN][BROAD] = {};
        for (int chunk = 0; chunk < P::CHUNKS; ++chunk) {
            copied();
            __syncthreads();
            const int next = (chunk + 1) % P::CHUNKS;
            if (next || first + P::WARPS < P::UNITS)
                copy_all<T>(w_all + (chunk + 1) % 2 * P::FILTERS, filters + next * P::FILTERS, P::FILTERS);
            if (unit < P::UNITS) {
                float *own = w_all + chunk % 2 * P::FILTERS + lane * FILLED;
                for (int o = 0; o < P::CHUNK; ++o, own += LANES * FILLED) {
                    const int at = (chunk * P::CHUNK + o) * P::UNITS + unit;
                    const float4 d = four(deltas + UNIT * at);
                    if (d.x == 0 && d.y == 0 && d.z == 0 && d.w == 0) continue;
                    const unsigned each = where[at];
                    float w[FILLED];
                    read(w, own);
                    spread_cell<0>(sum, w, d.x, each);
                    spread_cell<1>(sum, w, d.y, each);
                    spread_cell<2>(sum, w, d.z, each);
                    spread_cell<3>(sum, w, d.w, each);
                }
            }
        }
        for (int turn = 0; turn < 6; ++turn) {  // units that meet take turns
            if (unit < P::UNITS && i % 3 * 2 + j % 2 == turn) {
#pragma unroll
                for (int r = 0; r < SEEN; ++r)
#pragma unroll
                    for (int k = 0; k < BROAD; ++k)
                        s[((2 * i + r) * P::ROW + 2 * UNIT * j + k) * WIDE + lane] += sum[r][k];
            }
            __syncthreads();
        }
    }
    constexpr int AREA = Two::H * Two::W;
    const long long image = sample * (LANES * AREA);
    for (int k = threadIdx.x; k < LANES * AREA; k += T) {
        const int c = k / AREA, y = k % AREA / Two::W, x = k % Two::W;
        const float sum = s[((y + MARGIN) * P::ROW + x + MARGIN) * WIDE + c];
        by_images[image + k] = below[image + k] > 0 ? sum : 0;
    }
}

// The derivative by the filters of the second layer ---------------------------------------------------------

struct ByFilters {
    static constexpr int WARPS = 4, THREADS = LANES * WARPS, EACH = 4, GROUP = WARPS * EACH;
    static constexpr int GROUPS = Two::O / GROUP, PAIRS = (Two::ACROSS + 1) / 2, NEAR = 4 + SIDE - 1;
    static constexpr int ROW = 4 * PAIRS + SIDE - 1, ROWS = LANES * ROW, IMAGE = Two::ROWS * ROWS;
    static constexpr int CELLS = Two::DOWN * 2 * PAIRS, DELTAS = GROUP * CELLS;
    static constexpr int SIZE = IMAGE + DELTAS + DELTAS / 4;
    static_assert(SIZE <= SHARED / 4, "too large");
};

template <int cell, int place>
__device__ __forceinline__ void gather_cell(float (&sum)[TAPS], const float (&x)[SEEN][8], float delta) {
#pragma unroll
    for (int t = 0; t < TAPS; ++t)
        sum[t] = fmaf(delta, x[place / 2 + t / SIDE][2 * cell + place % 2 + t % SIDE], sum[t]);
}

template <int cell>
__device__ __forceinline__ void gather_cell(
    float (&sum)[TAPS], const float (&x)[SEEN][8], float delta, unsigned place
) {
    switch (delta == 0 ? 4 : place) {
    case 0: return gather_cell<cell, 0>(sum, x, delta);
    case 1: return gather_cell<cell, 1>(sum, x, delta);
    case 2: return gather_cell<cell, 2>(sum, x, delta);
    case 3: return gather_cell<cell, 3>(sum, x, delta);
    }
}

// A block is sixteen filters of a client over every `splits`-th of its samples, a warp four of them, a lane a
// channel. sums [split][client][O][tap][C].
extern "C" __global__ void __launch_bounds__(ByFilters::THREADS, 3) second_filters(
    const float *x, const float *delta, const unsigned char *places, float *sums, int clients, int batch,
    int splits
) {
    extern __shared__ float s[];
    using P = ByFilters;
    constexpr int T = P::THREADS;
    const int group = blockIdx.x % P::GROUPS, split = blockIdx.x / P::GROUPS % splits;
    const int client = blockIdx.x / P::GROUPS / splits;
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    float *deltas = s + P::IMAGE;
    unsigned char *where = reinterpret_cast<unsigned char *>(deltas + P::DELTAS);
    float sum[P::EACH][TAPS] = {};
    clear<T>(s, P::IMAGE);
    for (int b = split; b < batch; b += splits) {
        const long long sample = (long long)client * batch + b;
        __syncthreads();
        take<Two, T>(s, x + sample * (Two::C * Two::H * Two::W), P::ROW, P::ROWS, 1);
        for (int k = threadIdx.x; k < P::DELTAS; k += T) {
            const int o = k / P::CELLS, i = k % P::CELLS / (2 * P::PAIRS), j = k % (2 * P::PAIRS);
            const int to = 2 * ((i * P::PAIRS + j / 2) * P::GROUP + o) + j % 2;
            const long long from = (sample * Two::O + group * P::GROUP + o) * Two::CELLS + i * Two::ACROSS + j;
            const bool inside = j < Two::ACROSS;
            deltas[to] = inside ? delta[from] : 0;
            where[to] = inside ? places[from] : 0;
        }
        __syncthreads();
#pragma unroll 1
        for (int pair = 0; pair < Two::DOWN * P::PAIRS; ++pair) {
            float *in = s + 2 * (pair / P::PAIRS) * P::ROWS + lane * P::ROW + 4 * (pair % P::PAIRS);
            float seen[SEEN][P::NEAR], d[2 * P::EACH];
#pragma unroll
            for (int r = 0; r < SEEN; ++r) read(seen[r], in + r * P::ROWS);
            const int at = 2 * (pair * P::GROUP + warp * P::EACH);
            read(d, deltas + at);
#pragma unroll
            for (int e = 0; e < P::EACH; e += 2) {  // the places of four cells at a time
                const unsigned two = *reinterpret_cast<const unsigned *>(where + at + 2 * e);
                gather_cell<0>(sum[e], seen, d[2 * e], two & 255);
                gather_cell<1>(sum[e], seen, d[2 * e + 1], two >> 8 & 255);
                gather_cell<0>(sum[e + 1], seen, d[2 * e + 2], two >> 16 & 255);
                gather_cell<1>(sum[e + 1], seen, d[2 * e + 3], two >> 24);
            }
        }
    }
    float *to = sums + (((long long)split * clients + client) * Two::O + group * P::GROUP + warp * P::EACH) *
                           (TAPS * LANES) + lane;
#pragma unroll
    for (int e = 0; e < P::EACH; ++e)
#pragma unroll
        for (int t = 0; t < TAPS; ++t) to[(e * TAPS + t) * LANES] = sum[e][t];
}

// The derivative by the filters of the first layer ----------------------------------------------------------

struct ByFirst {
    static constexpr int WARPS = 8, THREADS = LANES * WARPS, SUMS = One::C * TAPS;
    static constexpr int ROW = 2 * One::ACROSS + SIDE - 1, PLANE = One::ROWS * ROW;
    static constexpr int IMAGE = up(One::C * PLANE, 4), DELTAS = One::CELLS * WIDE;
    static constexpr int FOLDED = WARPS / 2 * SUMS * LANES, LAID = IMAGE + DELTAS + up(DELTAS, 4) / 4;
    static constexpr int SIZE = LAID < FOLDED ? FOLDED : LAID;
    static_assert(SIZE <= SHARED / 4, "too large");
};

// A block is a sample, a lane a filter. sums [sample][C][tap][O].
extern "C" __global__ void __launch_bounds__(ByFirst::THREADS, 2) first_filters(
    const float *x, const float *delta, const unsigned char *places, float *sums
) {
    extern __shared__ float s[];
    using P = ByFirst;
    constexpr int T = P::THREADS;
    const long long sample = blockIdx.x;
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    float *deltas = s + P::IMAGE;
    unsigned char *where = reinterpret_cast<unsigned char *>(deltas + P::DELTAS);
    clear<T>(s, P::IMAGE);
    __syncthreads();
    take<One, T>(s, x + sample * (One::C * One::H * One::W), P::PLANE, P::ROW, 1);
    for (int k = threadIdx.x; k < LANES * One::CELLS; k += T) {
        const int o = k / One::CELLS, at = k % One::CELLS * WIDE + o;
        deltas[at] = delta[sample * (LANES * One::CELLS) + k];
        where[at] = places[sample * (LANES * One::CELLS) + k];
    }
    __syncthreads();
    float sum[P::SUMS] = {};
#pragma unroll 1
    for (int cell = warp; cell < One::CELLS; cell += P::WARPS) {
        const float d = deltas[cell * WIDE + lane];
        const int place = where[cell * WIDE + lane];
        const int y = 2 * (cell / One::ACROSS) + place / 2, across = 2 * (cell % One::ACROSS) + place % 2;
        const float *in = s + y * P::ROW + across;
#pragma unroll
        for (int c = 0; c < One::C; ++c)
#pragma unroll
            for (int t = 0; t < TAPS; ++t)
                sum[c * TAPS + t] =
                    fmaf(d, in[c * P::PLANE + t / SIDE * P::ROW + t % SIDE], sum[c * TAPS + t]);
    }
    for (int half = P::WARPS / 2; half; half /= 2) {
        __syncthreads();
        if (warp >= half && warp < 2 * half) {
#pragma unroll
            for (int k = 0; k < P::SUMS; ++k) s[((warp - half) * P::SUMS + k) * LANES + lane] = sum[k];
        }
        __syncthreads();
        if (warp < half) {
#pragma unroll
            for (int k = 0; k < P::SUMS; ++k) sum[k] += s[(warp * P::SUMS + k) * LANES + lane];
        }
    }
    if (warp == 0) {
#pragma unroll
        for (int k = 0; k < P::SUMS; ++k) sums[(sample * P::SUMS + k) * LANES + lane] = sum[k];
    }
}

// Filters, turned, and what is made of the derivatives ------------------------------------------------------

struct Whole {
    static constexpr int THREADS = 256, PARTS = 32, STEP = THREADS * PARTS;
};

// A block is a channel of a client's second layer, and a part of its first: first [C][tap][O] and second,
// raised, [C][row][point][O] for the way forward, back [O][C][tap], filled up.
extern "C" __global__ void __launch_bounds__(Whole::THREADS) turn(
    const float *W, float *first, float *second, float *back, int stride
) {
    __shared__ float own[Two::O * TAPS];
    const long long client = blockIdx.x / Whole::PARTS;
    const int c = blockIdx.x % Whole::PARTS;
    constexpr int T = Whole::THREADS, N1 = One::O * One::C * TAPS;
    static_assert(Whole::PARTS == Two::C, "a part is a channel");
    W += client * stride;
    for (int k = threadIdx.x; k < Two::O * TAPS; k += T)
        own[k] = W[W2 + (k / TAPS * Two::C + c) * TAPS + k % TAPS];
    for (int k = c * T + threadIdx.x; k < N1; k += Whole::STEP) {
        const int o = k % One::O, channel = k / (One::O * TAPS), tap = k / One::O % TAPS;
        first[client * N1 + k] = W[W1 + (o * One::C + channel) * TAPS + tap];
    }
    __syncthreads();
    second += (client * Two::C + c) * Raised::EACH_C;
    for (int k = threadIdx.x; k < SIDE * Two::O; k += T) {
        const int o = k % Two::O, row = k / Two::O;
        const float *taps = own + o * TAPS + row * SIDE;
#pragma unroll
        for (int p = 0; p < Raised::POINTS; ++p) {
            float sum = 0;
#pragma unroll
            for (int dx = 0; dx < SIDE; ++dx)
                if (raise_filters[p][dx] != 0) sum = fmaf(raise_filters[p][dx], taps[dx], sum);
            second[(row * Raised::POINTS + p) * Two::O + o] = sum;
        }
    }
    back += (client * Two::O * Two::C + c) * FILLED;
    for (int k = threadIdx.x; k < Two::O * FILLED; k += T) {
        const int o = k / FILLED, tap = k % FILLED;
        back[o * (Two::C * FILLED) + tap] = tap < TAPS ? own[o * TAPS + tap] : 0;
    }
}

// A warp adds the cells of filter o over a batch.
template <class L> __device__ __forceinline__ float summed(const float *delta, int batch, int o) {
    float sum = 0;
#pragma unroll 4
    for (int b = 0; b < batch; ++b)
#pragma unroll
        for (int first = 0; first < L::CELLS; first += LANES) {
            const int cell = first + threadIdx.x % LANES;
            if (cell < L::CELLS) sum += delta[((long long)b * L::O + o) * L::CELLS + cell];
        }
#pragma unroll
    for (int off = LANES / 2; off; off /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, off);
    return sum;
}

// into ← keep · into − lr · gradient, for filters and biases. A block is a part of a client. Of the kernels
// before: below and delta [sample][O][cell], by_first [sample][C][tap][O], by_second
// [split][client][O][tap][C].
extern "C" __global__ void __launch_bounds__(Whole::THREADS) settle(
    float *into, const float *below, const float *delta, const float *by_first, const float *by_second,
    const float *keeps, int clients, int batch, int splits, int stride, int each, double keep_all, double lr_all
) {
    const long long client = blockIdx.x / Whole::PARTS;
    const int begin = blockIdx.x % Whole::PARTS * Whole::THREADS + threadIdx.x;
    const float lr = lr_all, keep = each ? keeps[client] : (float)keep_all;
    into += client * stride;
    constexpr int N1 = One::O * One::C * TAPS, N2 = Two::O * Two::C * TAPS;
    for (int k = begin; k < N2; k += Whole::STEP) {
        const int c = k % Two::C, t = k / Two::C % TAPS, o = k / (Two::C * TAPS);
        float sum = 0;
        for (int r = 0; r < splits; ++r) sum += by_second[(r * clients + client) * N2 + k];
        float &to = into[W2 + (o * Two::C + c) * TAPS + t];
        to = keep * to - lr * sum;
    }
    for (int k = begin; k < N1; k += Whole::STEP) {
        const int o = k % One::O, t = k / One::O % TAPS, c = k / (One::O * TAPS);
        float sum = 0;
#pragma unroll 4
        for (int b = 0; b < batch; ++b) sum += by_first[(client * batch + b) * N1 + k];
        float &to = into[W1 + (o * One::C + c) * TAPS + t];
        to = keep * to - lr * sum;
    }
    for (int o = begin / LANES; o < One::O + Two::O; o += Whole::STEP / LANES) {
        const bool first = o < One::O;
        const float sum = first ? summed<One>(below + client * batch * One::O * One::CELLS, batch, o)
                                : summed<Two>(delta + client * batch * Two::O * Two::CELLS, batch, o - One::O);
        float &to = into[first ? B1 + o : B2 + o - One::O];
        if (threadIdx.x % LANES == 0) to = keep * to - lr * sum;
    }
}

// Of the kernels in the order of `kernels.py`: threads of a block, bytes that they share, and how many blocks
// there are of each unit.
extern "C" __global__ void sizes(int *to) {
    const int each[] = {
        Direct::THREADS, 4 * Direct::SIZE, 1,  // of a sample
        Raised::THREADS, 4 * Raised::SIZE, 1,
        Spread::THREADS, 4 * Spread::SIZE, 1,
        ByFilters::THREADS, 4 * ByFilters::SIZE, ByFilters::GROUPS,  // of a client and split
        ByFirst::THREADS, 4 * ByFirst::SIZE, 1,
        Whole::THREADS, 0, Whole::PARTS,  // of a client
        Whole::THREADS, 0, Whole::PARTS,
    };
    for (int k = 0; k < 21; ++k) to[k] = each[k];
}
