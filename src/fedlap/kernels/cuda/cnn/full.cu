// A full layer with ReLU on a GPU, for mini-batches of a stack of clients. It is bound by reading its weights,
// once in the forward and once in the backward pass. `cnn.py` defines the constants
//
//   FLAT    inputs                     HIDDEN   outputs, a multiple of 32
//   BATCH   rows per mini-batch        OFFSET   of the weights [HIDDEN][FLAT] in a client's row of W
//
// The bias follows the weights. The order of sums depends on these constants only.

constexpr int B = BATCH, BP = (B + 3) / 4 * 4, BIAS = OFFSET + HIDDEN * FLAT;

struct Forward {
    static constexpr int WARPS = 8, THREADS = LANES * WARPS, PER_THREAD = 4, ROWS = WARPS * PER_THREAD;
    static constexpr int CHUNK = 512, CHUNKS = (FLAT + CHUNK - 1) / CHUNK, SIZE = 2 * B * CHUNK;
    static_assert(HIDDEN % ROWS == 0 && FLAT % 4 == 0 && B <= 32, "unsupported sizes");
};

// One block per 32 rows of a client's weights, one warp per four rows, one lane per every 32nd value.
// features [client][B][FLAT], hidden [client][HIDDEN][B].
extern "C" __global__ void __launch_bounds__(Forward::THREADS, 2) full_forward(
    const float *W, const float *features, float *hidden, int stride
) {
    extern __shared__ float s[];
    using F = Forward;
    constexpr int PARTS = HIDDEN / F::ROWS;
    const long long client = blockIdx.x / PARTS;
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int row = blockIdx.x % PARTS * F::ROWS + warp * F::PER_THREAD;
    const float *w = W + client * stride + OFFSET + (long long)row * FLAT;
    features += client * B * FLAT;
    auto load = [&](int chunk) {
        float *to = s + chunk % 2 * (B * F::CHUNK);
        for (int k = 4 * threadIdx.x; k < B * F::CHUNK; k += 4 * F::THREADS) {
            const int b = k / F::CHUNK, at = chunk * F::CHUNK + k % F::CHUNK;
            if (at < FLAT) copy(to + k, features + b * FLAT + at);
        }
    };
    float sum[F::PER_THREAD][B] = {};
    load(0);
    for (int chunk = 0; chunk < F::CHUNKS; ++chunk) {
        wait_for_copies();
        __syncthreads();
        if (chunk + 1 < F::CHUNKS) load(chunk + 1);
        const float *in = s + chunk % 2 * (B * F::CHUNK);
#pragma unroll 4
        for (int k = lane; k < F::CHUNK; k += LANES) {
            const int at = chunk * F::CHUNK + k;
            if (FLAT % F::CHUNK && at >= FLAT) break;
            float weights[F::PER_THREAD];
#pragma unroll
            for (int e = 0; e < F::PER_THREAD; ++e) weights[e] = w[e * FLAT + at];
#pragma unroll
            for (int b = 0; b < B; ++b) {
                const float x = in[b * F::CHUNK + k];
#pragma unroll
                for (int e = 0; e < F::PER_THREAD; ++e) sum[e][b] = fmaf(weights[e], x, sum[e][b]);
            }
        }
    }
    float *to = hidden + (client * HIDDEN + row) * B;
#pragma unroll
    for (int e = 0; e < F::PER_THREAD; ++e) {
        const float bias = W[client * stride + BIAS + row + e];
        float result = 0;
#pragma unroll
        for (int b = 0; b < B; ++b) {
            float all = sum[e][b];
#pragma unroll
            for (int off = LANES / 2; off; off /= 2) all += __shfl_xor_sync(0xffffffffu, all, off);
            if (lane == b) result = all + bias;
        }
        if (lane < B) to[e * B + lane] = result <= 0 ? 0 : result;  // NaN stays NaN
    }
}

struct Backward {
    static constexpr int THREADS = 128, COLUMNS = 2, WIDTH = THREADS * COLUMNS, ROWS_AT_ONCE = 8;
    static constexpr int PARTS = (FLAT + WIDTH - 1) / WIDTH, SIZE = HIDDEN * BP;
    static_assert(HIDDEN % ROWS_AT_ONCE == 0, "unsupported sizes");
};

// One block per 256 columns of a client's weights, two columns per thread. From delta, the derivative by hidden,
// zero where ReLU is zero, [client][HIDDEN][B], compute below, the derivative by features, masked by their ReLU,
// [client][B][FLAT], and into ← decay · into − lr · gradient, where into may be W.
extern "C" __global__ void __launch_bounds__(Backward::THREADS, 3) full_backward(
    const float *W, float *into, const float *features, const float *delta, float *below, const float *decays,
    int stride, int into_stride, int per_client, double common_decay, double lr_all
) {
    extern __shared__ float s[];
    using P = Backward;
    const long long client = blockIdx.x / P::PARTS;
    const int part = blockIdx.x % P::PARTS;
    const float lr = lr_all, decay = per_client ? decays[client] : (float)common_decay;
    const bool in_place = W == into;
    W += client * stride;
    into += client * into_stride;
    features += client * B * FLAT;
    below += client * B * FLAT;
    for (int k = threadIdx.x; k < HIDDEN * BP; k += P::THREADS) {
        const int row = k / BP, b = k % BP;
        s[k] = b < B ? delta[(client * HIDDEN + row) * B + b] : 0;
    }
    int column[P::COLUMNS];
    float x[P::COLUMNS][BP], sum[P::COLUMNS][BP];
#pragma unroll
    for (int c = 0; c < P::COLUMNS; ++c) {
        const int at = part * P::WIDTH + c * P::THREADS + threadIdx.x;
        column[c] = at < FLAT ? at : FLAT - 1;
#pragma unroll
        for (int b = 0; b < BP; ++b) {
            x[c][b] = b < B ? features[b * FLAT + column[c]] : 0;
            sum[c][b] = 0;
        }
    }
    __syncthreads();
    if (part == 0) {
        for (int row = threadIdx.x; row < HIDDEN; row += P::THREADS) {
            float all = 0;
            for (int b = 0; b < B; ++b) all += s[row * BP + b];
            into[BIAS + row] = decay * into[BIAS + row] - lr * all;
        }
    }
    float next[P::ROWS_AT_ONCE][P::COLUMNS];
    auto load = [&](int row) {
#pragma unroll
        for (int a = 0; a < P::ROWS_AT_ONCE; ++a)
#pragma unroll
            for (int c = 0; c < P::COLUMNS; ++c) next[a][c] = W[OFFSET + (row + a) * FLAT + column[c]];
    };
    load(0);
#pragma unroll 1
    for (int first = 0; first < HIDDEN; first += P::ROWS_AT_ONCE) {
        float w[P::ROWS_AT_ONCE][P::COLUMNS];
#pragma unroll
        for (int a = 0; a < P::ROWS_AT_ONCE; ++a)
#pragma unroll
            for (int c = 0; c < P::COLUMNS; ++c) w[a][c] = next[a][c];
        if (first + P::ROWS_AT_ONCE < HIDDEN) load(first + P::ROWS_AT_ONCE);
#pragma unroll
        for (int a = 0; a < P::ROWS_AT_ONCE; ++a) {
            float change[P::COLUMNS] = {};
#pragma unroll
            for (int b = 0; b < BP; b += 4) {
                const float4 d = as_float4(s + (first + a) * BP + b);
                const float each_d[] = {d.x, d.y, d.z, d.w};
#pragma unroll
                for (int q = 0; q < 4; ++q)
#pragma unroll
                    for (int c = 0; c < P::COLUMNS; ++c) {
                        sum[c][b + q] = fmaf(each_d[q], w[a][c], sum[c][b + q]);
                        change[c] = fmaf(each_d[q], x[c][b + q], change[c]);
                    }
            }
#pragma unroll
            for (int c = 0; c < P::COLUMNS; ++c) {
                float *to = into + OFFSET + (first + a) * FLAT + column[c];
                const float old = in_place ? w[a][c] : *to;
                const bool valid = part * P::WIDTH + c * P::THREADS + (int)threadIdx.x < FLAT;
                if (valid) *to = decay * old - lr * change[c];
            }
        }
    }
#pragma unroll
    for (int c = 0; c < P::COLUMNS; ++c) {
        if (part * P::WIDTH + c * P::THREADS + (int)threadIdx.x >= FLAT) continue;
#pragma unroll
        for (int b = 0; b < B; ++b) below[b * FLAT + column[c]] = x[c][b] > 0 ? sum[c][b] : 0;
    }
}

// For the kernels in the order of `cnn.py`: threads per block, bytes of shared memory, blocks per client.
extern "C" __global__ void sizes(int *to) {
    const int sizes_of[] = {
        Forward::THREADS, 4 * Forward::SIZE, HIDDEN / Forward::ROWS,
        Backward::THREADS, 4 * Backward::SIZE, Backward::PARTS,
    };
    for (int k = 0; k < 6; ++k) to[k] = sizes_of[k];
}
