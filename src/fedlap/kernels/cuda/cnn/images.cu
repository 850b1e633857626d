// The derivative by the inputs of the second layer.

// Cells per unit (one warp), and rows and columns of the window that a unit depends on.
constexpr int UNIT = 4, WINDOW = SIDE + 1, SPAN = 2 * UNIT + SIDE - 1;

struct SecondImages {
    static constexpr int UNITS_ACROSS = (Two::ACROSS + UNIT - 1) / UNIT, UNITS = Two::DOWN * UNITS_ACROSS;
    static constexpr int WARPS = UNITS < 16 ? UNITS : 16, THREADS = LANES * WARPS;
    static constexpr int ROW = 2 * UNIT * UNITS_ACROSS + SIDE - 1, IMAGE = Two::ROWS * ROW * PADDED_LANES;
    static constexpr int DELTAS = Two::O * UNITS * UNIT, OTHERS = round_up(IMAGE, 4) + DELTAS + DELTAS / 4;
    static constexpr int CHUNK = OTHERS + 2 * 16 * LANES * PADDED_TAPS <= SHARED / 4 ? 16 : 8;
    static constexpr int CHUNKS = Two::O / CHUNK, FILTERS = CHUNK * LANES * PADDED_TAPS;
    static constexpr int FILTERS_AT = round_up(IMAGE, 4), DELTAS_AT = FILTERS_AT + 2 * FILTERS;
    static constexpr int PLACES_AT = DELTAS_AT + DELTAS, SIZE = PLACES_AT + DELTAS / 4;
    static_assert(CHUNKS % 2 == 0 && SIZE <= SHARED / 4, "too large");
};

template <int cell, int place>
__device__ __forceinline__ void spread_cell(float (&sum)[WINDOW][SPAN], const float (&w)[PADDED_TAPS], float delta) {
#pragma unroll
    for (int t = 0; t < TAPS; ++t) {
        float &to = sum[place / 2 + t / SIDE][2 * cell + place % 2 + t % SIDE];
        to = fmaf(delta, w[t], to);
    }
}

template <int cell>
__device__ __forceinline__ void spread_cell(
    float (&sum)[WINDOW][SPAN], const float (&w)[PADDED_TAPS], float delta, unsigned places
) {
    if (delta == 0) return;
    const unsigned place = places >> 8 * cell & 255;
    if (place == 0) spread_cell<cell, 0>(sum, w, delta);
    else if (place == 1) spread_cell<cell, 1>(sum, w, delta);
    else if (place == 2) spread_cell<cell, 2>(sum, w, delta);
    else spread_cell<cell, 3>(sum, w, delta);
}

// One block per sample, one warp per four cells in a row, one lane per channel. delta, zero where ReLU is zero,
// and places [sample][O][cell]; filters [client][O][C][tap], padded; below, the inputs, whose ReLU masks the
// result, [sample][C][H][W].
extern "C" __global__ void __launch_bounds__(SecondImages::THREADS, 1) second_images(
    const float *delta, const unsigned char *places, const float *filters, const float *below, float *by_images,
    int batch
) {
    extern __shared__ float s[];
    using P = SecondImages;
    constexpr int T = P::THREADS;
    const long long sample = blockIdx.x;
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    float *w_all = s + P::FILTERS_AT, *deltas = s + P::DELTAS_AT;
    unsigned *place_of = reinterpret_cast<unsigned *>(s + P::PLACES_AT);
    filters += (long long)(blockIdx.x / batch) * Two::O * LANES * PADDED_TAPS;
    copy_all<T>(w_all, filters, P::FILTERS);
    clear<T>(s, P::IMAGE);
    for (int k = threadIdx.x; k < P::DELTAS; k += T) {
        const int o = k / (P::UNITS * UNIT), i = k / (P::UNITS_ACROSS * UNIT) % Two::DOWN;
        const int j = k % (P::UNITS_ACROSS * UNIT);
        const long long from = (sample * Two::O + o) * Two::CELLS + i * Two::ACROSS + j;
        const bool inside = j < Two::ACROSS;
        deltas[k] = inside ? delta[from] : 0;
        reinterpret_cast<unsigned char *>(place_of)[k] = inside ? places[from] : 0;
    }
    for (int first = 0; first < P::UNITS; first += P::WARPS) {
        const int unit = first + warp, i = unit / P::UNITS_ACROSS, j = unit % P::UNITS_ACROSS;
        float sum[WINDOW][SPAN] = {};
        for (int chunk = 0; chunk < P::CHUNKS; ++chunk) {
            wait_for_copies();
            __syncthreads();
            const int next = (chunk + 1) % P::CHUNKS;
            if (next || first + P::WARPS < P::UNITS)
                copy_all<T>(w_all + (chunk + 1) % 2 * P::FILTERS, filters + next * P::FILTERS, P::FILTERS);
            if (unit < P::UNITS) {
                float *own = w_all + chunk % 2 * P::FILTERS + lane * PADDED_TAPS;
                for (int o = 0; o < P::CHUNK; ++o, own += LANES * PADDED_TAPS) {
                    const int at = (chunk * P::CHUNK + o) * P::UNITS + unit;
                    const float4 d = as_float4(deltas + UNIT * at);
                    if (d.x == 0 && d.y == 0 && d.z == 0 && d.w == 0) continue;
                    const unsigned values = place_of[at];
                    float w[PADDED_TAPS];
                    read(w, own);
                    spread_cell<0>(sum, w, d.x, values);
                    spread_cell<1>(sum, w, d.y, values);
                    spread_cell<2>(sum, w, d.z, values);
                    spread_cell<3>(sum, w, d.w, values);
                }
            }
        }
        for (int turn = 0; turn < 6; ++turn) {  // overlapping units add one after another
            if (unit < P::UNITS && i % 3 * 2 + j % 2 == turn) {
#pragma unroll
                for (int r = 0; r < WINDOW; ++r)
#pragma unroll
                    for (int k = 0; k < SPAN; ++k)
                        s[((2 * i + r) * P::ROW + 2 * UNIT * j + k) * PADDED_LANES + lane] += sum[r][k];
            }
            __syncthreads();
        }
    }
    constexpr int AREA = Two::H * Two::W;
    const long long image = sample * (LANES * AREA);
    for (int k = threadIdx.x; k < LANES * AREA; k += T) {
        const int c = k / AREA, y = k % AREA / Two::W, x = k % Two::W;
        const float sum = s[((y + PADDING) * P::ROW + x + PADDING) * PADDED_LANES + c];
        by_images[image + k] = below[image + k] > 0 ? sum : 0;
    }
}
