// Derivatives by the filters of both layers, and what is made of them.

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
