// The derivative by what enters the second layer.

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
