// Layers after the first, in shared memory: forward, backward and update.

// Iterate over the `padded` values of rows from b0 on: every KS-th group of four and its weights are read one
// iteration before they are used.
template <int padded, int KS, int RB, class Weights, class Use>
__device__ __forceinline__ void for_each_four(float *rows, int b0, int ks, Weights weights, Use use) {
    float4 w[2][4], a[2][RB];
    auto read = [&](int i, float4 *w_, float4 *a_) {
#pragma unroll
        for (int j = 0; j < 4; ++j) w_[j] = weights(i, j);
#pragma unroll
        for (int r = 0; r < RB; ++r) a_[r] = as_float4(rows + (b0 + r < B ? b0 + r : B - 1) * padded + i);
    };
    if (4 * ks < padded) read(4 * ks, w[0], a[0]);
#pragma unroll
    for (int t = 0; t < (padded / 4 + KS - 1) / KS; ++t) {
        const int i = 4 * (ks + t * KS);
        if (i + 4 * KS < padded) read(i + 4 * KS, w[(t + 1) % 2], a[(t + 1) % 2]);
        if (i >= padded) continue;
#pragma unroll
        for (int r = 0; r < RB; ++r) use(r, w[t % 2], a[t % 2][r]);
    }
}

// Outputs of the inner layer l.
template <int l> __device__ void forward(float *s) {
    constexpr int IP = Width<l>::padded, OP = Width<l + 1>::padded, OG = OP / 4;
    constexpr int RB = OG * B >= 2 * THREADS ? 4 : 1, ITEMS = OG * ((B + RB - 1) / RB), KS = lanes_per_sum(ITEMS);
    float *W = s + inner_offset(l), *bias = s + inner_bias_offset(l), *in = s + out_offset(l), *out = s + out_offset(l + 1);
    const int tid = thread(), ks = tid % KS;
    for (int first = 0; first < ITEMS; first += THREADS / KS) {
        const int item = first + tid / KS;
        const bool valid = item < ITEMS;
        const int og = valid ? item % OG : 0, b0 = valid ? item / OG * RB : 0;
        float4 sum[RB];
#pragma unroll
        for (int r = 0; r < RB; ++r) sum[r] = make_float4(0, 0, 0, 0);
        auto weights = [=](int i, int j) { return as_float4(W + (i + j) * OP + 4 * og); };
        for_each_four<IP, KS, RB>(in, b0, ks, weights, [&](int r, const float4 *w, const float4 &a) {
            add(sum[r], a.x, w[0]);
            add(sum[r], a.y, w[1]);
            add(sum[r], a.z, w[2]);
            add(sum[r], a.w, w[3]);
        });
#pragma unroll
        for (int r = 0; r < RB; ++r) {
#pragma unroll
            for (int off = 1; off < KS; off *= 2) {
                sum[r].x += __shfl_xor_sync(0xffffffffu, sum[r].x, off);
                sum[r].y += __shfl_xor_sync(0xffffffffu, sum[r].y, off);
                sum[r].z += __shfl_xor_sync(0xffffffffu, sum[r].z, off);
                sum[r].w += __shfl_xor_sync(0xffffffffu, sum[r].w, off);
            }
            if (valid && ks == 0 && b0 + r < B) {
                float z[4] = {sum[r].x, sum[r].y, sum[r].z, sum[r].w};
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    z[j] += bias[4 * og + j];
                    if (l + 1 < LAYERS) z[j] = z[j] <= 0 ? 0 : z[j];  // NaN stays NaN
                    out[(b0 + r) * OP + 4 * og + j] = z[j];
                }
            }
        }
    }
}

// The derivative by the inputs of the inner layer l, from that by its outputs; zero where ReLU was zero.
template <int l> __device__ void backward(float *s) {
    constexpr int IP = Width<l>::padded, OP = Width<l + 1>::padded, IG = IP / 4;
    constexpr int RB = IG * B >= 2 * THREADS ? 4 : 1, ITEMS = IG * ((B + RB - 1) / RB), KS = lanes_per_sum(ITEMS);
    float *W = s + inner_offset(l), *out = s + slope_offset(l + 1), *inputs = s + out_offset(l), *in = s + slope_offset(l);
    const int tid = thread(), ks = tid % KS;
    for (int first = 0; first < ITEMS; first += THREADS / KS) {
        const int item = first + tid / KS;
        const bool valid = item < ITEMS;
        const int ig = valid ? item % IG : 0, b0 = valid ? item / IG * RB : 0;
        float sum[RB][4] = {};
        auto weights = [=](int o, int j) { return as_float4(W + (ig + IG * j) * OP + o); };
        for_each_four<OP, KS, RB>(out, b0, ks, weights, [&](int r, const float4 *w, const float4 &d) {
#pragma unroll
            for (int j = 0; j < 4; ++j) sum[r][j] = dot(w[j], d, sum[r][j]);
        });
#pragma unroll
        for (int r = 0; r < RB; ++r) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
#pragma unroll
                for (int off = 1; off < KS; off *= 2)
                    sum[r][j] += __shfl_xor_sync(0xffffffffu, sum[r][j], off);
                const int at = (b0 + r) * IP + ig + IG * j;
                if (valid && ks == 0 && b0 + r < B) in[at] = inputs[at] <= 0 ? 0 : sum[r][j];
            }
        }
    }
}

// An affine step, w ← decay·w + pull·(anchor − w) − shift + change, after which the anchor may move by
// follow·(w − anchor). Differences are scaled, since rounded shares whose sum is not one would accumulate over
// steps. The struct is in shared memory, since registers are scarce in the innermost loops.
struct AffineStep {
    float *anchor;       // of the client, in the layout of w
#if SHIFT
    const float *shift;  // of the client, in the layout of w
#endif
    float decay, pull, follow;
    bool has_anchor, moves_anchor;

    __device__ __forceinline__ float pull_to(float w, float to) const { return fmaf(pull, to - w, decay * w); }
    __device__ __forceinline__ float4 pull_to(const float4 &w, const float4 &to) const {
        return make_float4(pull_to(w.x, to.x), pull_to(w.y, to.y), pull_to(w.z, to.z), pull_to(w.w, to.w));
    }
    __device__ __forceinline__ float move_anchor(float w, float to) const { return fmaf(follow, w - to, to); }
    __device__ __forceinline__ float4 move_anchor(const float4 &w, const float4 &to) const {
        return make_float4(move_anchor(w.x, to.x), move_anchor(w.y, to.y), move_anchor(w.z, to.z), move_anchor(w.w, to.w));
    }
    __device__ __forceinline__ float update(float w, float change, int at) const {
#if SHIFT
        change -= shift[at];
#endif
        if (!has_anchor) return fmaf(decay, w, change);
        const float to = anchor[at];
        w = pull_to(w, to) + change;
        if (moves_anchor) anchor[at] = move_anchor(w, to);
        return w;
    }
};

// Update the inner layer l; `transposed` are the transposed copies of the anchor and of the shift.
template <int l> __device__ void update_layer(float *s, const AffineStep &affine, float *transposed) {
    constexpr int O = Width<l + 1>::n, IP = Width<l>::padded, OP = Width<l + 1>::padded;
    constexpr int OG = OP / 4, IG = IP / 4, GROUPS_AT_ONCE = THREADS / OG, TILES = (IG + GROUPS_AT_ONCE - 1) / GROUPS_AT_ONCE;
    static_assert(OG <= THREADS, "too wide");
    float *W = s + inner_offset(l), *bias = s + inner_bias_offset(l);
    float *anchor = transposed + transposed_offset(l), *shift = anchor + TRANSPOSED_SIZE;
    float *inputs = s + out_offset(l), *slope = s + slope_offset(l + 1);
    const int tid = thread(), og = tid % OG, ig0 = tid / OG;
    if (ig0 < GROUPS_AT_ONCE) {
        constexpr int TILES_AT_ONCE = TILES < 3 ? TILES : 3;
        for (int t0 = 0; t0 < TILES; t0 += TILES_AT_ONCE) {
            float4 sum[TILES_AT_ONCE][4];
#pragma unroll
            for (int t = 0; t < TILES_AT_ONCE; ++t)
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[t][j] = make_float4(0, 0, 0, 0);
#pragma unroll 4
            for (int b = 0; b < B; ++b) {
                const float4 d = as_float4(slope + b * OP + 4 * og);
#pragma unroll
                for (int t = 0; t < TILES_AT_ONCE; ++t) {
                    const int ig = ig0 + (t0 + t) * GROUPS_AT_ONCE;
                    const float4 a = as_float4(inputs + b * IP + 4 * (ig < IG ? ig : 0));
                    add(sum[t][0], a.x, d);
                    add(sum[t][1], a.y, d);
                    add(sum[t][2], a.z, d);
                    add(sum[t][3], a.w, d);
                }
            }
            if constexpr (SHIFT) {
#pragma unroll
                for (int t = 0; t < TILES_AT_ONCE; ++t)
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const int i = 4 * (ig0 + (t0 + t) * GROUPS_AT_ONCE) + j;
                        if (i < IP) add(sum[t][j], -1.f, as_float4(shift + i * OP + 4 * og));
                    }
            }
            if (affine.has_anchor) {
                float4 to[TILES_AT_ONCE][4];
#pragma unroll
                for (int t = 0; t < TILES_AT_ONCE; ++t)
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const int i = 4 * (ig0 + (t0 + t) * GROUPS_AT_ONCE) + j;
                        if (i < IP) to[t][j] = as_float4(anchor + i * OP + 4 * og);
                    }
#pragma unroll
                for (int t = 0; t < TILES_AT_ONCE; ++t)
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const int i = 4 * (ig0 + (t0 + t) * GROUPS_AT_ONCE) + j;
                        if (i >= IP) continue;
                        float4 &w = as_float4(W + i * OP + 4 * og);
                        add(sum[t][j], 1.f, affine.pull_to(w, to[t][j]));
                        w = sum[t][j];
                        if (affine.moves_anchor) as_float4(anchor + i * OP + 4 * og) = affine.move_anchor(w, to[t][j]);
                    }
            } else {
#pragma unroll
                for (int t = 0; t < TILES_AT_ONCE; ++t)
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const int i = 4 * (ig0 + (t0 + t) * GROUPS_AT_ONCE) + j;
                        if (i >= IP) continue;
                        float4 &w = as_float4(W + i * OP + 4 * og);
                        add(sum[t][j], affine.decay, w);
                        w = sum[t][j];
                    }
            }
        }
    }
    for (int o = tid; o < O; o += THREADS) {
        float sum = 0;
#pragma unroll
        for (int b = 0; b < B; ++b) sum += slope[b * OP + o];
        bias[o] = affine.update(bias[o], sum, bias_offset(l) + o);
    }
}

template <int l> __device__ void forward_all(float *s) {
    if constexpr (l < LAYERS) {
        forward<l>(s);
        __syncthreads();
        forward_all<l + 1>(s);
    }
}

template <int l> __device__ void backward_all(float *s, const AffineStep &affine, float *transposed) {
    if constexpr (l >= 1) {
        backward<l>(s);
        __syncthreads();
        update_layer<l>(s, affine, transposed);
        backward_all<l - 1>(s, affine, transposed);
    }
}

// Copy inner layers and biases from a flat row to shared memory, and back.
template <int l> __device__ void load_inner(float *s, const float *w) {
    if constexpr (l < LAYERS) {
        constexpr int I = Width<l>::n, O = Width<l + 1>::n, OP = Width<l + 1>::padded;
        if constexpr (l > 0) {
            for (int at = threadIdx.x; at < Width<l>::padded * OP; at += THREADS) {
                const int i = at / OP, o = at % OP;
                s[inner_offset(l) + at] = i < I && o < O ? w[weight_offset(l) + o * I + i] : 0.f;
            }
        }
        for (int o = threadIdx.x; o < OP; o += THREADS)
            s[inner_bias_offset(l) + o] = o < O ? w[bias_offset(l) + o] : 0.f;
        load_inner<l + 1>(s, w);
    }
}

template <int l> __device__ void store_inner(const float *s, float *w) {
    if constexpr (l < LAYERS) {
        constexpr int I = Width<l>::n, O = Width<l + 1>::n, OP = Width<l + 1>::padded;
        if constexpr (l > 0) {
            for (int at = threadIdx.x; at < I * O; at += THREADS)
                w[weight_offset(l) + at] = s[inner_offset(l) + at % I * OP + at / I];
        }
        for (int o = threadIdx.x; o < O; o += THREADS) w[bias_offset(l) + o] = s[inner_bias_offset(l) + o];
        store_inner<l + 1>(s, w);
    }
}
