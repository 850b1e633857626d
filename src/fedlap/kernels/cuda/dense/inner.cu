// Layers behind the first, which lie in shared memory: forward, backward and changed.

// Along `wide` values of rows that begin with b0: every KS-th four of them, with the weights that meet them, are read
// before those of the turn before are used.
template <int wide, int KS, int RB, class Weights, class Use>
__device__ __forceinline__ void along(float *rows, int b0, int ks, Weights weights, Use use) {
    float4 w[2][4], a[2][RB];
    auto read = [&](int i, float4 *w_, float4 *a_) {
#pragma unroll
        for (int j = 0; j < 4; ++j) w_[j] = weights(i, j);
#pragma unroll
        for (int r = 0; r < RB; ++r) a_[r] = four(rows + (b0 + r < B ? b0 + r : B - 1) * wide + i);
    };
    if (4 * ks < wide) read(4 * ks, w[0], a[0]);
#pragma unroll
    for (int t = 0; t < (wide / 4 + KS - 1) / KS; ++t) {
        const int i = 4 * (ks + t * KS);
        if (i + 4 * KS < wide) read(i + 4 * KS, w[(t + 1) % 2], a[(t + 1) % 2]);
        if (i >= wide) continue;
#pragma unroll
        for (int r = 0; r < RB; ++r) use(r, w[t % 2], a[t % 2][r]);
    }
}

// What leaves the inner layer l.
template <int l> __device__ void forward(float *s) {
    constexpr int IP = Width<l>::wide, OP = Width<l + 1>::wide, OG = OP / 4;
    constexpr int RB = OG * B >= 2 * THREADS ? 4 : 1, ITEMS = OG * ((B + RB - 1) / RB), KS = lanes_each(ITEMS);
    float *W = s + inner_at(l), *bias = s + inner_bias_at(l), *in = s + out_at(l), *out = s + out_at(l + 1);
    const int tid = thread(), ks = tid % KS;
    for (int first = 0; first < ITEMS; first += THREADS / KS) {
        const int item = first + tid / KS;
        const bool mine = item < ITEMS;
        const int og = mine ? item % OG : 0, b0 = mine ? item / OG * RB : 0;
        float4 sum[RB];
#pragma unroll
        for (int r = 0; r < RB; ++r) sum[r] = make_float4(0, 0, 0, 0);
        auto weights = [=](int i, int j) { return four(W + (i + j) * OP + 4 * og); };
        along<IP, KS, RB>(in, b0, ks, weights, [&](int r, const float4 *w, const float4 &a) {
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
            if (mine && ks == 0 && b0 + r < B) {
                float z[4] = {sum[r].x, sum[r].y, sum[r].z, sum[r].w};
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    z[j] += bias[4 * og + j];
                    if (l + 1 < LAYERS) z[j] = z[j] <= 0 ? 0 : z[j];  // what is no number stays so
                    out[(b0 + r) * OP + 4 * og + j] = z[j];
                }
            }
        }
    }
}

// The slope by what enters the inner layer l, from that by what leaves it; nothing where ReLU was zero.
template <int l> __device__ void backward(float *s) {
    constexpr int IP = Width<l>::wide, OP = Width<l + 1>::wide, IG = IP / 4;
    constexpr int RB = IG * B >= 2 * THREADS ? 4 : 1, ITEMS = IG * ((B + RB - 1) / RB), KS = lanes_each(ITEMS);
    float *W = s + inner_at(l), *out = s + slope_at(l + 1), *seen = s + out_at(l), *in = s + slope_at(l);
    const int tid = thread(), ks = tid % KS;
    for (int first = 0; first < ITEMS; first += THREADS / KS) {
        const int item = first + tid / KS;
        const bool mine = item < ITEMS;
        const int ig = mine ? item % IG : 0, b0 = mine ? item / IG * RB : 0;
        float sum[RB][4] = {};
        auto weights = [=](int o, int j) { return four(W + (ig + IG * j) * OP + o); };
        along<OP, KS, RB>(out, b0, ks, weights, [&](int r, const float4 *w, const float4 &d) {
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
                if (mine && ks == 0 && b0 + r < B) in[at] = seen[at] <= 0 ? 0 : sum[r][j];
            }
        }
    }
}

// Parameters that are drawn to others, w ← keep·w + pull·(anchor − w) + change, which follow where `drag` says so:
// differences are what is scaled, or a sum of rounded shares that is not one would add up over steps. It lies
// in shared memory: registers are scarce where most of the time goes.
struct Pull {
    float *anchor;
    float keep, pull, drag;
    bool drawn, follows;

    __device__ __forceinline__ float near(float w, float to) const { return fmaf(pull, to - w, keep * w); }
    __device__ __forceinline__ float4 near(const float4 &w, const float4 &to) const {
        return make_float4(near(w.x, to.x), near(w.y, to.y), near(w.z, to.z), near(w.w, to.w));
    }
    __device__ __forceinline__ float after(float w, float to) const { return fmaf(drag, w - to, to); }
    __device__ __forceinline__ float4 after(const float4 &w, const float4 &to) const {
        return make_float4(after(w.x, to.x), after(w.y, to.y), after(w.z, to.z), after(w.w, to.w));
    }
    __device__ __forceinline__ float moved(float w, float change, int at) const {
        if (!drawn) return fmaf(keep, w, change);
        const float to = anchor[at];
        w = near(w, to) + change;
        if (follows) anchor[at] = after(w, to);
        return w;
    }
};

// A step of the inner layer l.
template <int l> __device__ void change(float *s, const Pull &pull, float *anchors) {
    constexpr int O = Width<l + 1>::n, IP = Width<l>::wide, OP = Width<l + 1>::wide;
    constexpr int OG = OP / 4, IG = IP / 4, BESIDE = THREADS / OG, TILES = (IG + BESIDE - 1) / BESIDE;
    static_assert(OG <= THREADS, "too wide");
    float *W = s + inner_at(l), *bias = s + inner_bias_at(l), *anchor = anchors + turned_at(l);
    float *seen = s + out_at(l), *slope = s + slope_at(l + 1);
    const int tid = thread(), og = tid % OG, ig0 = tid / OG;
    if (ig0 < BESIDE) {
        constexpr int AT_ONCE = TILES < 3 ? TILES : 3;
        for (int t0 = 0; t0 < TILES; t0 += AT_ONCE) {
            float4 sum[AT_ONCE][4];
#pragma unroll
            for (int t = 0; t < AT_ONCE; ++t)
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[t][j] = make_float4(0, 0, 0, 0);
#pragma unroll 4
            for (int b = 0; b < B; ++b) {
                const float4 d = four(slope + b * OP + 4 * og);
#pragma unroll
                for (int t = 0; t < AT_ONCE; ++t) {
                    const int ig = ig0 + (t0 + t) * BESIDE;
                    const float4 a = four(seen + b * IP + 4 * (ig < IG ? ig : 0));
                    add(sum[t][0], a.x, d);
                    add(sum[t][1], a.y, d);
                    add(sum[t][2], a.z, d);
                    add(sum[t][3], a.w, d);
                }
            }
            if (pull.drawn) {
                float4 to[AT_ONCE][4];
#pragma unroll
                for (int t = 0; t < AT_ONCE; ++t)
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const int i = 4 * (ig0 + (t0 + t) * BESIDE) + j;
                        if (i < IP) to[t][j] = four(anchor + i * OP + 4 * og);
                    }
#pragma unroll
                for (int t = 0; t < AT_ONCE; ++t)
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const int i = 4 * (ig0 + (t0 + t) * BESIDE) + j;
                        if (i >= IP) continue;
                        float4 &w = four(W + i * OP + 4 * og);
                        add(sum[t][j], 1.f, pull.near(w, to[t][j]));
                        w = sum[t][j];
                        if (pull.follows) four(anchor + i * OP + 4 * og) = pull.after(w, to[t][j]);
                    }
            } else {
#pragma unroll
                for (int t = 0; t < AT_ONCE; ++t)
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const int i = 4 * (ig0 + (t0 + t) * BESIDE) + j;
                        if (i >= IP) continue;
                        float4 &w = four(W + i * OP + 4 * og);
                        add(sum[t][j], pull.keep, w);
                        w = sum[t][j];
                    }
            }
        }
    }
    for (int o = tid; o < O; o += THREADS) {
        float sum = 0;
#pragma unroll
        for (int b = 0; b < B; ++b) sum += slope[b * OP + o];
        bias[o] = pull.moved(bias[o], sum, bias_at(l) + o);
    }
}

template <int l> __device__ void forward_all(float *s) {
    if constexpr (l < LAYERS) {
        forward<l>(s);
        __syncthreads();
        forward_all<l + 1>(s);
    }
}

template <int l> __device__ void backward_all(float *s, const Pull &pull, float *anchors) {
    if constexpr (l >= 1) {
        backward<l>(s);
        __syncthreads();
        change<l>(s, pull, anchors);
        backward_all<l - 1>(s, pull, anchors);
    }
}

// Inner layers and biases between a flat row and shared memory.
template <int l> __device__ void fetch(float *s, const float *w) {
    if constexpr (l < LAYERS) {
        constexpr int I = Width<l>::n, O = Width<l + 1>::n, OP = Width<l + 1>::wide;
        if constexpr (l > 0) {
            for (int at = threadIdx.x; at < Width<l>::wide * OP; at += THREADS) {
                const int i = at / OP, o = at % OP;
                s[inner_at(l) + at] = i < I && o < O ? w[weight_at(l) + o * I + i] : 0.f;
            }
        }
        for (int o = threadIdx.x; o < OP; o += THREADS)
            s[inner_bias_at(l) + o] = o < O ? w[bias_at(l) + o] : 0.f;
        fetch<l + 1>(s, w);
    }
}

template <int l> __device__ void bring(const float *s, float *w) {
    if constexpr (l < LAYERS) {
        constexpr int I = Width<l>::n, O = Width<l + 1>::n, OP = Width<l + 1>::wide;
        if constexpr (l > 0) {
            for (int at = threadIdx.x; at < I * O; at += THREADS)
                w[weight_at(l) + at] = s[inner_at(l) + at % I * OP + at / I];
        }
        for (int o = threadIdx.x; o < O; o += THREADS) w[bias_at(l) + o] = s[inner_bias_at(l) + o];
        bring<l + 1>(s, w);
    }
}
