// Derivatives by the filters of both layers, and the update of parameters.

// The derivative by the filters of the second layer ---------------------------------------------------------

struct SecondFilters {
    static constexpr int WARPS = 4, THREADS = LANES * WARPS, PER_THREAD = 4, GROUP = WARPS * PER_THREAD;
    static constexpr int GROUPS = Two::O / GROUP, PAIRS = (Two::ACROSS + 1) / 2, COLUMNS_SEEN = 4 + SIDE - 1;
    static constexpr int ROW = 4 * PAIRS + SIDE - 1, ROWS = LANES * ROW, IMAGE = Two::ROWS * ROWS;
    static constexpr int CELLS = Two::DOWN * 2 * PAIRS, DELTAS = GROUP * CELLS;
    static constexpr int SIZE = IMAGE + DELTAS + DELTAS / 4;
    static_assert(SIZE <= SHARED / 4, "too large");
};

template <int cell, int place>
__device__ __forceinline__ void gather_cell(float (&sum)[TAPS], const float (&x)[WINDOW][8], float delta) {
#pragma unroll
    for (int t = 0; t < TAPS; ++t)
        sum[t] = fmaf(delta, x[place / 2 + t / SIDE][2 * cell + place % 2 + t % SIDE], sum[t]);
}

template <int cell>
__device__ __forceinline__ void gather_cell(
    float (&sum)[TAPS], const float (&x)[WINDOW][8], float delta, unsigned place
) {
    switch (delta == 0 ? 4 : place) {
    case 0: return gather_cell<cell, 0>(sum, x, delta);
    case 1: return gather_cell<cell, 1>(sum, x, delta);
    case 2: return gather_cell<cell, 2>(sum, x, delta);
    case 3: return gather_cell<cell, 3>(sum, x, delta);
    }
}

// One block per sixteen filters of a client and every `parts`-th of its samples, one warp per four filters, one
// lane per channel. sums [part][client][O][tap][C].
extern "C" __global__ void __launch_bounds__(SecondFilters::THREADS, 3) second_filters(
    const float *x, const float *delta, const unsigned char *places, float *sums, int clients, int batch,
    int parts
) {
    extern __shared__ float s[];
    using P = SecondFilters;
    constexpr int T = P::THREADS;
    const int group = blockIdx.x % P::GROUPS, part = blockIdx.x / P::GROUPS % parts;
    const int client = blockIdx.x / P::GROUPS / parts;
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    float *deltas = s + P::IMAGE;
    unsigned char *place_of = reinterpret_cast<unsigned char *>(deltas + P::DELTAS);
    float sum[P::PER_THREAD][TAPS] = {};
    clear<T>(s, P::IMAGE);
    for (int b = part; b < batch; b += parts) {
        const long long sample = (long long)client * batch + b;
        __syncthreads();
        load_image<Two, T>(s, x + sample * (Two::C * Two::H * Two::W), P::ROW, P::ROWS, 1);
        for (int k = threadIdx.x; k < P::DELTAS; k += T) {
            const int o = k / P::CELLS, i = k % P::CELLS / (2 * P::PAIRS), j = k % (2 * P::PAIRS);
            const int to = 2 * ((i * P::PAIRS + j / 2) * P::GROUP + o) + j % 2;
            const long long from = (sample * Two::O + group * P::GROUP + o) * Two::CELLS + i * Two::ACROSS + j;
            const bool inside = j < Two::ACROSS;
            deltas[to] = inside ? delta[from] : 0;
            place_of[to] = inside ? places[from] : 0;
        }
        __syncthreads();
#pragma unroll 1
        for (int pair = 0; pair < Two::DOWN * P::PAIRS; ++pair) {
            float *in = s + 2 * (pair / P::PAIRS) * P::ROWS + lane * P::ROW + 4 * (pair % P::PAIRS);
            float seen[WINDOW][P::COLUMNS_SEEN], d[2 * P::PER_THREAD];
#pragma unroll
            for (int r = 0; r < WINDOW; ++r) read(seen[r], in + r * P::ROWS);
            const int at = 2 * (pair * P::GROUP + warp * P::PER_THREAD);
            read(d, deltas + at);
#pragma unroll
            for (int e = 0; e < P::PER_THREAD; e += 2) {  // reads the places of four cells at a time
                const unsigned two = *reinterpret_cast<const unsigned *>(place_of + at + 2 * e);
                gather_cell<0>(sum[e], seen, d[2 * e], two & 255);
                gather_cell<1>(sum[e], seen, d[2 * e + 1], two >> 8 & 255);
                gather_cell<0>(sum[e + 1], seen, d[2 * e + 2], two >> 16 & 255);
                gather_cell<1>(sum[e + 1], seen, d[2 * e + 3], two >> 24);
            }
        }
    }
    float *to = sums + (((long long)part * clients + client) * Two::O + group * P::GROUP + warp * P::PER_THREAD) *
                           (TAPS * LANES) + lane;
#pragma unroll
    for (int e = 0; e < P::PER_THREAD; ++e)
#pragma unroll
        for (int t = 0; t < TAPS; ++t) to[(e * TAPS + t) * LANES] = sum[e][t];
}

// The derivative by the filters of the first layer ----------------------------------------------------------

struct FirstFilters {
    static constexpr int WARPS = 8, THREADS = LANES * WARPS, SUMS = One::C * TAPS;
    static constexpr int ROW = 2 * One::ACROSS + SIDE - 1, PLANE = One::ROWS * ROW;
    static constexpr int IMAGE = round_up(One::C * PLANE, 4), DELTAS = One::CELLS * PADDED_LANES;
    static constexpr int REDUCED = WARPS / 2 * SUMS * LANES, LOADED = IMAGE + DELTAS + round_up(DELTAS, 4) / 4;
    static constexpr int SIZE = LOADED < REDUCED ? REDUCED : LOADED;
    static_assert(SIZE <= SHARED / 4, "too large");
};

// One block per sample, one lane per filter. sums [sample][C][tap][O].
extern "C" __global__ void __launch_bounds__(FirstFilters::THREADS, 2) first_filters(
    const float *x, const float *delta, const unsigned char *places, float *sums
) {
    extern __shared__ float s[];
    using P = FirstFilters;
    constexpr int T = P::THREADS;
    const long long sample = blockIdx.x;
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    float *deltas = s + P::IMAGE;
    unsigned char *place_of = reinterpret_cast<unsigned char *>(deltas + P::DELTAS);
    clear<T>(s, P::IMAGE);
    __syncthreads();
    load_image<One, T>(s, x + sample * (One::C * One::H * One::W), P::PLANE, P::ROW, 1);
    for (int k = threadIdx.x; k < LANES * One::CELLS; k += T) {
        const int o = k / One::CELLS, at = k % One::CELLS * PADDED_LANES + o;
        deltas[at] = delta[sample * (LANES * One::CELLS) + k];
        place_of[at] = places[sample * (LANES * One::CELLS) + k];
    }
    __syncthreads();
    float sum[P::SUMS] = {};
#pragma unroll 1
    for (int cell = warp; cell < One::CELLS; cell += P::WARPS) {
        const float d = deltas[cell * PADDED_LANES + lane];
        const int place = place_of[cell * PADDED_LANES + lane];
        const int y = 2 * (cell / One::ACROSS) + place / 2, column = 2 * (cell % One::ACROSS) + place % 2;
        const float *in = s + y * P::ROW + column;
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

// Transformed filters, and the update of parameters ---------------------------------------------------------

struct PerClient {
    static constexpr int THREADS = 256, PARTS = 32, STEP = THREADS * PARTS;
};

// One block per channel of a client's second layer, which also takes a part of the first layer. For the forward
// pass: first [C][tap][O] and second, transformed, [C][row][point][O]; for the backward pass: back [O][C][tap],
// padded.
extern "C" __global__ void __launch_bounds__(PerClient::THREADS) transform_filters(
    const float *W, float *first, float *second, float *back, int stride
) {
    __shared__ float filters[Two::O * TAPS];
    const long long client = blockIdx.x / PerClient::PARTS;
    const int c = blockIdx.x % PerClient::PARTS;
    constexpr int T = PerClient::THREADS, N1 = One::O * One::C * TAPS;
    static_assert(PerClient::PARTS == Two::C, "a part is a channel");
    W += client * stride;
    for (int k = threadIdx.x; k < Two::O * TAPS; k += T)
        filters[k] = W[W2 + (k / TAPS * Two::C + c) * TAPS + k % TAPS];
    for (int k = c * T + threadIdx.x; k < N1; k += PerClient::STEP) {
        const int o = k % One::O, channel = k / (One::O * TAPS), tap = k / One::O % TAPS;
        first[client * N1 + k] = W[W1 + (o * One::C + channel) * TAPS + tap];
    }
    __syncthreads();
    second += (client * Two::C + c) * SecondForward::PER_CHANNEL;
    for (int k = threadIdx.x; k < SIDE * Two::O; k += T) {
        const int o = k % Two::O, row = k / Two::O;
        const float *taps = filters + o * TAPS + row * SIDE;
#pragma unroll
        for (int p = 0; p < SecondForward::POINTS; ++p) {
            float sum = 0;
#pragma unroll
            for (int dx = 0; dx < SIDE; ++dx)
                if (raise_filters[p][dx] != 0) sum = fmaf(raise_filters[p][dx], taps[dx], sum);
            second[(row * SecondForward::POINTS + p) * Two::O + o] = sum;
        }
    }
    back += (client * Two::O * Two::C + c) * PADDED_TAPS;
    for (int k = threadIdx.x; k < Two::O * PADDED_TAPS; k += T) {
        const int o = k / PADDED_TAPS, tap = k % PADDED_TAPS;
        back[o * (Two::C * PADDED_TAPS) + tap] = tap < TAPS ? filters[o * TAPS + tap] : 0;
    }
}

// Sum the cells of filter o over a batch, by one warp.
template <class L> __device__ __forceinline__ float sum_cells(const float *delta, int batch, int o) {
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

// into ← decay · into − lr · gradient, for filters and biases; several blocks per client. Results of the other
// kernels: below and delta [sample][O][cell], by_first [sample][C][tap][O], by_second [part][client][O][tap][C].
extern "C" __global__ void __launch_bounds__(PerClient::THREADS) update_parameters(
    float *into, const float *below, const float *delta, const float *by_first, const float *by_second,
    const float *decays, int clients, int batch, int parts, int stride, int per_client, double common_decay, double lr_all
) {
    const long long client = blockIdx.x / PerClient::PARTS;
    const int begin = blockIdx.x % PerClient::PARTS * PerClient::THREADS + threadIdx.x;
    const float lr = lr_all, decay = per_client ? decays[client] : (float)common_decay;
    into += client * stride;
    constexpr int N1 = One::O * One::C * TAPS, N2 = Two::O * Two::C * TAPS;
    for (int k = begin; k < N2; k += PerClient::STEP) {
        const int c = k % Two::C, t = k / Two::C % TAPS, o = k / (Two::C * TAPS);
        float sum = 0;
        for (int r = 0; r < parts; ++r) sum += by_second[(r * clients + client) * N2 + k];
        float &to = into[W2 + (o * Two::C + c) * TAPS + t];
        to = decay * to - lr * sum;
    }
    for (int k = begin; k < N1; k += PerClient::STEP) {
        const int o = k % One::O, t = k / One::O % TAPS, c = k / (One::O * TAPS);
        float sum = 0;
#pragma unroll 4
        for (int b = 0; b < batch; ++b) sum += by_first[(client * batch + b) * N1 + k];
        float &to = into[W1 + (o * One::C + c) * TAPS + t];
        to = decay * to - lr * sum;
    }
    for (int o = begin / LANES; o < One::O + Two::O; o += PerClient::STEP / LANES) {
        const bool first = o < One::O;
        const float sum = first ? sum_cells<One>(below + client * batch * One::O * One::CELLS, batch, o)
                                : sum_cells<Two>(delta + client * batch * Two::O * Two::CELLS, batch, o - One::O);
        float &to = into[first ? B1 + o : B2 + o - One::O];
        if (threadIdx.x % LANES == 0) to = decay * to - lr * sum;
    }
}

// For the kernels in the order of `cnn.py`: threads per block, bytes of shared memory, blocks per unit.
extern "C" __global__ void sizes(int *to) {
    const int sizes_of[] = {
        FirstForward::THREADS, 4 * FirstForward::SIZE, 1,  // per sample
        SecondForward::THREADS, 4 * SecondForward::SIZE, 1,
        SecondImages::THREADS, 4 * SecondImages::SIZE, 1,
        SecondFilters::THREADS, 4 * SecondFilters::SIZE, SecondFilters::GROUPS,  // per client and part
        FirstFilters::THREADS, 4 * FirstFilters::SIZE, 1,
        PerClient::THREADS, 0, PerClient::PARTS,  // per client
        PerClient::THREADS, 0, PerClient::PARTS,
    };
    for (int k = 0; k < 21; ++k) to[k] = sizes_of[k];
}
