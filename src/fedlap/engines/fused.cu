// All steps of a round of dense networks on a GPU: a block of threads takes a client and makes its steps one
// after another, so that models and activations stay on the chip. `fused.py` gives the constants
//
//   WIDTHS   of the layers, features first            BATCH    rows of a mini-batch
//   BYTES    1 where features are stored as bytes      SHARED   bytes of shared memory that a block may have
//   THREADS  of a block, whole warps                  ASCENT   0, or the loss of dual coordinate ascent (below)
//
// Layer l goes from width(l) to width(l + 1) values. Matrices are kept turned, [in][out], their widths filled
// up with zeros to whole float4. The first layer, the largest, lies in `room`, which is small enough for the
// cache: in one pass over it a thread takes tiles of eight inputs times four outputs, changes them by one batch
// and multiplies them with the next; where it has few tiles, it holds them for the whole round. Sums are taken
// in an order that depends on nothing but these constants: the same numbers every time.

constexpr int widths[] = {WIDTHS};
constexpr int LAYERS = sizeof(widths) / sizeof(int) - 1;
constexpr int B = BATCH, WARPS = THREADS / 32;

__host__ __device__ constexpr int up(int n, int to) { return (n + to - 1) / to * to; }
template <int l> struct Width { static constexpr int n = widths[l], wide = up(widths[l], 4); };

constexpr int D = widths[0], DP = up(D, 8), H = widths[1], HP = up(H, 4);

// Where parameters are in a flat row: weight [out][in], then bias, layer by layer.
__host__ __device__ constexpr int weight_at(int l) {
    int at = 0;
    for (int k = 0; k < l; ++k) at += (widths[k] + 1) * widths[k + 1];
    return at;
}
__host__ __device__ constexpr int bias_at(int l) { return weight_at(l) + widths[l] * widths[l + 1]; }
constexpr int SIZE = weight_at(LAYERS);
__host__ __device__ constexpr int turned_at(int l) {  // of matrices that are turned, without biases
    int at = 0;
    for (int k = 0; k < l; ++k) at += up(widths[k], k ? 4 : 8) * up(widths[k + 1], 4);
    return at;
}
constexpr int TURNED = turned_at(LAYERS);

// Shared memory, in floats: two batches of features; inner layers with their biases; what leaves the first
// layer, and the derivative by it; and room for partial sums of the first layer, which the values of later
// layers take in turn.
__host__ __device__ constexpr int inner_at(int l) {
    int at = 2 * B * DP;
    for (int k = 1; k < l; ++k) at += up(widths[k], 4) * up(widths[k + 1], 4);
    return at;
}
__host__ __device__ constexpr int inner_bias_at(int l) {
    int at = inner_at(LAYERS);
    for (int k = 0; k < l; ++k) at += up(widths[k + 1], 4);
    return at;
}
constexpr int OUT1 = inner_bias_at(LAYERS), SLOPE1 = OUT1 + B * HP, META = SLOPE1 + B * HP;
constexpr int LATER = META + up(8 * B, 4);
__host__ __device__ constexpr int out_at(int l) {  // what leaves layer l − 1; its slope lies behind it
    if (l == 1) return OUT1;
    int at = LATER;
    for (int k = 2; k < l; ++k) at += 2 * B * up(widths[k], 4);
    return at;
}
__host__ __device__ constexpr int slope_at(int l) { return out_at(l) + B * up(widths[l], 4); }
constexpr int LATER_SIZE = ASCENT ? B * B : out_at(LAYERS + 1 > 2 ? LAYERS + 1 : 2) - LATER;
constexpr int GROUPS = HP / 4, SLICES = THREADS / GROUPS, CHUNKS = DP / 8;
constexpr int TURNS = (CHUNKS + SLICES - 1) / SLICES;  // tiles of a thread
constexpr bool RESIDENT = TURNS <= 2;
constexpr int FITTING = (SHARED / 4 - LATER) / (B * HP);
constexpr int PARTS = FITTING < SLICES ? FITTING : SLICES;
static_assert(GROUPS <= THREADS && PARTS >= 1 && LATER + LATER_SIZE <= SHARED / 4, "too large");

__device__ __forceinline__ float4 &four(float *at) { return *reinterpret_cast<float4 *>(at); }

__device__ __forceinline__ void add(float4 &sum, float a, const float4 &b) {
    sum.x = fmaf(a, b.x, sum.x);
    sum.y = fmaf(a, b.y, sum.y);
    sum.z = fmaf(a, b.z, sum.z);
    sum.w = fmaf(a, b.w, sum.w);
}

__device__ __forceinline__ float dot(const float4 &a, const float4 &b, float sum) {
    return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
}

// The number of the thread, read anew: what follows from it is not kept in registers for a whole round.
__device__ __forceinline__ int thread() {
#ifdef __CUDA_ARCH__
    int number;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
    return number;
#else
    return threadIdx.x;
#endif
}

__host__ __device__ constexpr int lanes_each(int items) {  // of a warp that share a sum
    return items * 8 <= THREADS ? 8 : items * 4 <= THREADS ? 4 : items * 2 <= THREADS ? 2 : 1;
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
        // What the next turn needs is read before this one is computed.
        float4 w[2][4], a[2][RB];
        auto read = [&](int i, float4 *w_, float4 *a_) {
#pragma unroll
            for (int j = 0; j < 4; ++j) w_[j] = four(W + (i + j) * OP + 4 * og);
#pragma unroll
            for (int r = 0; r < RB; ++r) a_[r] = four(in + (b0 + r < B ? b0 + r : B - 1) * IP + i);
        };
        if (4 * ks < IP) read(4 * ks, w[0], a[0]);
#pragma unroll
        for (int t = 0; t < (IP / 4 + KS - 1) / KS; ++t) {
            const int i = 4 * (ks + t * KS);
            if (i + 4 * KS < IP) read(i + 4 * KS, w[(t + 1) % 2], a[(t + 1) % 2]);
            if (i >= IP) continue;
#pragma unroll
            for (int r = 0; r < RB; ++r) {
                add(sum[r], a[t % 2][r].x, w[t % 2][0]);
                add(sum[r], a[t % 2][r].y, w[t % 2][1]);
                add(sum[r], a[t % 2][r].z, w[t % 2][2]);
                add(sum[r], a[t % 2][r].w, w[t % 2][3]);
            }
        }
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
        float4 w[2][4], d[2][RB];
        auto read = [&](int o, float4 *w_, float4 *d_) {
#pragma unroll
            for (int j = 0; j < 4; ++j) w_[j] = four(W + (ig + IG * j) * OP + o);
#pragma unroll
            for (int r = 0; r < RB; ++r) d_[r] = four(out + (b0 + r < B ? b0 + r : B - 1) * OP + o);
        };
        if (4 * ks < OP) read(4 * ks, w[0], d[0]);
#pragma unroll
        for (int t = 0; t < (OP / 4 + KS - 1) / KS; ++t) {
            const int o = 4 * (ks + t * KS);
            if (o + 4 * KS < OP) read(o + 4 * KS, w[(t + 1) % 2], d[(t + 1) % 2]);
            if (o >= OP) continue;
#pragma unroll
            for (int r = 0; r < RB; ++r)
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[r][j] = dot(w[t % 2][j], d[t % 2][r], sum[r][j]);
        }
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

// softmax(scores) − the one-hot vector of the label, times the row's weight and −lr: what is added to
// parameters is linear in it.
__device__ void loss_slope(float *s, const float *weight, const int *label, float lr) {
    constexpr int K = Width<LAYERS>::n, KP = Width<LAYERS>::wide;
    const float *z = s + out_at(LAYERS);
    float *d = s + slope_at(LAYERS);
    constexpr int EACH = (KP + 31) / 32;  // outputs of a lane
    const int tid = thread(), lane = tid % 32;
#pragma unroll
    for (int turn = 0; turn < (B + WARPS - 1) / WARPS; ++turn) {
        const int own = tid / 32 + turn * WARPS, b = own < B ? own : B - 1;
        float most = -3.402823466e38f, sum = 0, e[EACH];
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            e[k] = lane + 32 * k < K ? z[b * KP + lane + 32 * k] : -3.402823466e38f;
            most = fmaxf(most, e[k]);
        }
#pragma unroll
        for (int off = 16; off; off /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, off));
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            e[k] = lane + 32 * k < K ? expf(e[k] - most) : 0.f;
            sum += e[k];
        }
#pragma unroll
        for (int off = 16; off; off /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, off);
        const float scale = -lr * weight[b];
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            const int at = lane + 32 * k;
            if (at < KP && own < B) d[b * KP + at] = at < K ? scale * (e[k] / sum - (at == label[b] ? 1.f : 0.f)) : 0.f;
        }
    }
}

#if ASCENT
// Dual coordinate ascent on linear models: instead of a slope, what each row of a batch in turn, for every label,
// changes its dual variable by, with one against the rest. The loss ℓ is
constexpr int SQUARED = 1, HINGE = 2;  // (smoothed), or else the logistic one
static_assert(LAYERS == 1 && H <= 32, "for linear models of few labels");

__device__ __forceinline__ float sigmoid(float t) { return 1 / (1 + expf(-t)); }
__device__ __forceinline__ float softplus(float t) { return t > 20 ? t : log1pf(expf(t)); }

// The b with the least ℓ*(−b) + z b + (c/2)(b − a)²; for the logistic loss see `Logistic.best`.
__device__ float best(float a, float z, float y, float c) {
    if constexpr (ASCENT == SQUARED) return a + (y - z - a) / (1 + c);
    if constexpr (ASCENT == HINGE) return y * fminf(fmaxf(y * (a + (y - z - a) / (1 + c)), 0.f), 1.f);
    const float d = y * (c * a - z), other = c - d, low = fminf(d, other), over = 1 / c, log = logf(c);
    const float whole = log + low, rest = softplus(-whole), near = whole + rest;
    float t = fminf(near * (log1pf(near) / (2 + near)) - (rest + log), 0.f);
#pragma unroll
    for (int step = 0; step < 3; ++step) {
        const float p = sigmoid(t);
        t -= (p + (t - low) * over) / (over + p - p * p);
        if (step == 0) t = fminf(t, 0.f);
    }
    return sigmoid(copysignf(t, d - other)) * y;
}

// Products of a batch's rows with each other.
__device__ void products(float *s, float *x) {
    constexpr int HALF = (B + 1) / 2, ITEMS = HALF * (HALF + 1) / 2, KS = lanes_each(ITEMS);
    const int tid = thread(), ks = tid % KS;
    for (int first = 0; first < ITEMS; first += THREADS / KS) {
        const int item = first + tid / KS;
        int i = 0, j = item < ITEMS ? item : 0;
        while (j >= HALF - i) j -= HALF - i++;
        j += i;
        const int rows[4] = {2 * i, 2 * i + 1 < B ? 2 * i + 1 : B - 1, 2 * j, 2 * j + 1 < B ? 2 * j + 1 : B - 1};
        float sum[2][2] = {};
        for (int at = 4 * ks; at < DP; at += 4 * KS) {
            float4 v[4];
#pragma unroll
            for (int r = 0; r < 4; ++r) v[r] = four(x + rows[r] * DP + at);
#pragma unroll
            for (int r = 0; r < 4; ++r) sum[r / 2][r % 2] = dot(v[r / 2], v[2 + r % 2], sum[r / 2][r % 2]);
        }
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            float &total = sum[r / 2][r % 2];
#pragma unroll
            for (int off = 1; off < KS; off *= 2) total += __shfl_xor_sync(0xffffffffu, total, off);
            if (item >= ITEMS || ks) continue;
            s[LATER + rows[r / 2] * B + rows[2 + r % 2]] = s[LATER + rows[2 + r % 2] * B + rows[r / 2]] = total;
        }
    }
}

// α, of which there is one for each of the client's rows and labels, is changed; the slope is what the model
// changes by. `scale` is what a change of α adds to the model for each x, and only a share of the rows works.
__device__ void ascend(
    float *s, const float *weight, const int *label, const int *number, float *alpha, float scale, float share) {
    const int tid = thread();
    for (int at = tid; at < B * HP; at += THREADS)
        if (at % HP >= H) s[SLOPE1 + at] = 0;
    if (tid >= H) return;
    int size = 0;
    for (int b = 0; b < B; ++b) size += weight[b] > 0;
    const float todo = ceilf(share * size);
    float z[B], old[B];
#pragma unroll
    for (int b = 0; b < B; ++b) {
        z[b] = s[OUT1 + b * HP + tid];
        old[b] = b < size ? alpha[number[b] * H + tid] : 0.f;
    }
#pragma unroll
    for (int b = 0; b < B; ++b) {
        float moved = 0;
        if (b < todo) {
            const float y = label[b] == tid ? 1.f : -1.f;
            moved = best(old[b], z[b], y, (s[LATER + b * B + b] + 1) * scale) - old[b];
            alpha[number[b] * H + tid] = old[b] + moved;
        }
#pragma unroll
        for (int r = b + 1; r < B; ++r) z[r] = fmaf((s[LATER + r * B + b] + 1) * scale, moved, z[r]);
        s[SLOPE1 + b * HP + tid] = scale * moved;
    }
}
#endif

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

// Features of the next batch on their way: copied by the hardware, or bytes that wait in registers.
#if BYTES
constexpr int PIECES = B * (D / 16), HELD = (PIECES + THREADS - 1) / THREADS;
struct Coming {
    uint4 held[HELD];

    __device__ void begin(const void *store, const int *place, float *) {
        const int tid = thread();
#pragma unroll
        for (int h = 0; h < HELD; ++h) {
            const int at = tid + h * THREADS;
            if (at >= PIECES) continue;
            const auto *row = static_cast<const unsigned char *>(store) + (long long)place[at / (D / 16)] * D;
            held[h] = reinterpret_cast<const uint4 *>(row)[at % (D / 16)];
        }
    }
    __device__ void end(float *x, float shift, float factor) {
        const int tid = thread();
#pragma unroll
        for (int h = 0; h < HELD; ++h) {
            const int at = tid + h * THREADS;
            if (at >= PIECES) continue;
            float *to = x + at / (D / 16) * DP + at % (D / 16) * 16;
            const unsigned int words[4] = {held[h].x, held[h].y, held[h].z, held[h].w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float4 v;
                v.x = ((float)(words[j] & 255u) - shift) * factor;
                v.y = ((float)(words[j] >> 8 & 255u) - shift) * factor;
                v.z = ((float)(words[j] >> 16 & 255u) - shift) * factor;
                v.w = ((float)(words[j] >> 24) - shift) * factor;
                four(to + 4 * j) = v;
            }
        }
    }
};
#else
struct Coming {
    __device__ void begin(const void *store, const int *place, float *x) {
        constexpr int EACH = D % 4 == 0 ? 4 : 1;
        for (int at = thread(); at < B * (D / EACH); at += THREADS) {
            const int b = at / (D / EACH), i = at % (D / EACH) * EACH;
            copy<EACH>(x + b * DP + i, static_cast<const float *>(store) + (long long)place[b] * D + i);
        }
    }
    __device__ void end(float *, float, float) { copied(); }
    template <int EACH> static __device__ __forceinline__ void copy(float *to, const float *from) {
#ifdef __CUDA_ARCH__
        const unsigned int at = (unsigned int)__cvta_generic_to_shared(to);
        if constexpr (EACH == 4)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
#else
        for (int j = 0; j < EACH; ++j) to[j] = from[j];
#endif
    }
    static __device__ __forceinline__ void copied() {
#ifdef __CUDA_ARCH__
        asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
#endif
    }
};
#endif

// A tile of the first layer: eight inputs, four outputs of each.
struct Tile {
    float4 w[8];

    __device__ __forceinline__ void from_room(float *room, int i0, int h0) {
#pragma unroll
        for (int i = 0; i < 8; ++i) w[i] = four(room + (i0 + i) * HP + h0);
    }
    __device__ __forceinline__ void to_room(float *room, int i0, int h0) const {
#pragma unroll
        for (int i = 0; i < 8; ++i) four(room + (i0 + i) * HP + h0) = w[i];
    }
    // w ← keep·w + pull·(to − w) + Σ_b x_b ⊗ slope_b
    __device__ __forceinline__ void change(float *x, float *slope, const Pull &pull, float *to, int i0, int h0) {
        if (pull.drawn) {
            Tile there;
            there.from_room(to, i0, h0);
#pragma unroll
            for (int i = 0; i < 8; ++i) w[i] = pull.near(w[i], there.w[i]);
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i)
                w[i] = make_float4(pull.keep * w[i].x, pull.keep * w[i].y, pull.keep * w[i].z, pull.keep * w[i].w);
        }
#pragma unroll
        for (int b = 0; b < B; ++b) {
            const float4 d = four(slope + b * HP + h0), x0 = four(x + b * DP + i0), x1 = four(x + b * DP + i0 + 4);
            add(w[0], x0.x, d);
            add(w[1], x0.y, d);
            add(w[2], x0.z, d);
            add(w[3], x0.w, d);
            add(w[4], x1.x, d);
            add(w[5], x1.y, d);
            add(w[6], x1.z, d);
            add(w[7], x1.w, d);
        }
        if (pull.follows) {
            Tile there;
            there.from_room(to, i0, h0);
#pragma unroll
            for (int i = 0; i < 8; ++i) there.w[i] = pull.after(w[i], there.w[i]);
            there.to_room(to, i0, h0);
        }
    }
    __device__ __forceinline__ void multiply(float *x, int i0, float4 *sum) const {
#pragma unroll
        for (int b = 0; b < B; ++b) {
            const float4 x0 = four(x + b * DP + i0), x1 = four(x + b * DP + i0 + 4);
            add(sum[b], x0.x, w[0]);
            add(sum[b], x0.y, w[1]);
            add(sum[b], x0.z, w[2]);
            add(sum[b], x0.w, w[3]);
            add(sum[b], x1.x, w[4]);
            add(sum[b], x1.y, w[5]);
            add(sum[b], x1.z, w[6]);
            add(sum[b], x1.w, w[7]);
        }
    }
};

// Matrices of a flat row, turned, and back again. Threads go along inputs, four outputs each.
template <int l> __device__ void turn(const float *w, float *room) {
    constexpr int I = Width<l>::n, O = Width<l + 1>::n, IP = up(I, l ? 4 : 8), OP = Width<l + 1>::wide;
#pragma unroll 4
    for (int at = threadIdx.x; at < OP / 4 * IP; at += THREADS) {
        const int i = at % IP, o = at / IP * 4;
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) v[k] = i < I && o + k < O ? w[weight_at(l) + (o + k) * I + i] : 0.f;
        four(room + turned_at(l) + i * OP + o) = make_float4(v[0], v[1], v[2], v[3]);
    }
}

template <int l> __device__ void turn_back(float *room, float *w) {
    constexpr int I = Width<l>::n, O = Width<l + 1>::n, IP = up(I, l ? 4 : 8), OP = Width<l + 1>::wide;
#pragma unroll 4
    for (int at = threadIdx.x; at < OP / 4 * IP; at += THREADS) {
        const int i = at % IP, o = at / IP * 4;
        if (i >= I) continue;
        const float4 v = four(room + turned_at(l) + i * OP + o);
        float *to = w + weight_at(l) + o * I + i;
        to[0] = v.x;
        if (o + 1 < O) to[I] = v.y;
        if (o + 2 < O) to[2 * I] = v.z;
        if (o + 3 < O) to[3 * I] = v.w;
    }
}

template <int l> __device__ void turn_all(const float *w, float *room) {
    if constexpr (l < LAYERS) {
        turn<l>(w, room);
        turn_all<l + 1>(w, room);
    }
}

template <int l> __device__ void turn_all_back(float *room, float *w) {
    if constexpr (l < LAYERS) {
        turn_back<l>(room, w);
        turn_all_back<l + 1>(room, w);
    }
}

// What the steps of a round are: w ← keep·w − lr·∇; the same and pull·(anchor − w); the same, and after each batch
// the anchor follows by drag·(w − anchor); or, with batches in turn, w̃ ← keep·w − lr·∇ from w, which the anchor
// holds (it is w itself when the round begins), and w ← w − (1 − drag)·w̃ − pull·∇ at w̃. In ascent `anchor` is
// α, with room for `alphas` rows of a client, `pull` the scale of a change, and `drag` the share of rows.
constexpr int FREE = 0, DRAWN = 1, FOLLOWED = 2, AHEAD = 3;

extern "C" __global__ void __launch_bounds__(THREADS, 1) steps(
    float *w, float *room, float *anchor, const void *store, const long long *place, const long long *label,
    const long long *rows, const double *weight, const float *lr, const float *keep, const float *pull_,
    const float *drag, const float *shift, const float *factor, const long long *rows_begin, int *next,
    int clients, int batches, int repeat, int row_step, int row_client, int weight_step, int weight_client,
    int drawn, int alphas) {
    extern __shared__ float s[];
    __shared__ Pull pull;
    __shared__ int c;  // the client at work
    const int tid = threadIdx.x, slice = tid / GROUPS, h0 = tid % GROUPS * 4;
    const bool has = slice < SLICES;
    float *own_room = room + (long long)blockIdx.x * (DP * HP + TURNED), *to = own_room + DP * HP;
    int *places = reinterpret_cast<int *>(s + META), *labels = places + 2 * B;  // of two batches
    int *numbers = labels + 2 * B;  // among the client's own
    float *weights = reinterpret_cast<float *>(numbers + 2 * B);
    Tile held[RESIDENT ? TURNS : 1];

    // Columns that are padding stay zero.
    for (int at = tid; at < 2 * B * DP; at += THREADS) s[at] = 0;

    while (true) {
        __syncthreads();  // nobody uses anything of the client before
        if (tid == 0) {
            c = atomicAdd(next, 1);
            if (c < clients) {
                pull.anchor = anchor + (long long)c * SIZE;
                pull.pull = drawn == DRAWN || drawn == FOLLOWED ? pull_[c] : 0.f;
                pull.keep = keep[c];
                pull.drag = drawn == FOLLOWED ? drag[c] : 1.f;
                pull.drawn = drawn != FREE;
                pull.follows = false;
            }
        }
        __syncthreads();
        if (c >= clients) return;

        // The first two batches at once; of later ones, where rows are is asked for two batches ahead, and
        // which rows they are three.
        const auto weight_at_place = [&](int q, int at) {
            return (float)weight[(long long)c * weight_client + (long long)q * weight_step + at];
        };
        const auto row_of = [&](int q) {  // none where the client has no such batch
            if (weight_at_place(q, 0) == 0) return -1LL;
            return rows[(long long)c * row_client + (long long)q * row_step + tid];
        };
        long long row = -1;
        float row_weight = 0;
        if (tid < B) {
            for (int q = 0; q < 2; ++q) {
                const long long r = q < batches ? row_of(q) : -1;
                places[q * B + tid] = r < 0 ? 0 : (int)place[r];
                labels[q * B + tid] = r < 0 ? 0 : (int)label[r];
                numbers[q * B + tid] = r < 0 ? 0 : (int)(r - rows_begin[c]);
                weights[q * B + tid] = r < 0 ? 0.f : weight_at_place(q, tid);
            }
            if (2 < batches) {
                row = row_of(2);
                row_weight = weight_at_place(2, tid);
            }
        }
        __syncthreads();
        if (weights[0] == 0) continue;  // no rows, no steps
        fetch<0>(s, w + (long long)c * SIZE);
        turn<0>(w + (long long)c * SIZE, own_room);
        if (drawn != FREE) turn_all<0>(pull.anchor, to);
        Coming coming;
        coming.begin(store, places, s);
        coming.end(s, shift[c], factor[c]);
        __syncthreads();

        int q = 0, again = 0;
        float *x = s, *ahead = s;
        bool first = true, last = false;
        while (true) {
            // Pass over the first layer: a step with the batch behind, products with the batch ahead.
            float4 sum[B];
#pragma unroll
            for (int b = 0; b < B; ++b) sum[b] = make_float4(0, 0, 0, 0);
            if (has) {
                if constexpr (RESIDENT) {
#pragma unroll
                    for (int t = 0; t < TURNS; ++t) {
                        const int i0 = (slice + t * SLICES) * 8;
                        if (i0 >= DP) continue;
                        if (first) held[t].from_room(own_room, i0, h0);
                        else held[t].change(x, s + SLOPE1, pull, to, i0, h0);
                        if (last) held[t].to_room(own_room, i0, h0);
                        else held[t].multiply(ahead, i0, sum);
                    }
                } else {
                    Tile soon;
                    soon.from_room(own_room, slice * 8, h0);
#pragma unroll 1
                    for (int i0 = slice * 8; i0 < DP; i0 += SLICES * 8) {
                        Tile tile = soon;
                        if (i0 + SLICES * 8 < DP) soon.from_room(own_room, i0 + SLICES * 8, h0);
                        if (!first) {
                            tile.change(x, s + SLOPE1, pull, to, i0, h0);
                            tile.to_room(own_room, i0, h0);
                        }
                        if (!last) tile.multiply(ahead, i0, sum);
                    }
                }
            }
            if (last) break;
            for (int turn = 0; turn < SLICES; turn += PARTS) {
                if (turn) __syncthreads();
                if (has && slice >= turn && slice < turn + PARTS) {
                    float *part = s + LATER + (slice - turn) * B * HP + h0;
#pragma unroll
                    for (int b = 0; b < B; ++b) {
                        if (turn == 0) {
                            four(part + b * HP) = sum[b];
                        } else {
                            float4 &v = four(part + b * HP);
                            v = make_float4(v.x + sum[b].x, v.y + sum[b].y, v.z + sum[b].z, v.w + sum[b].w);
                        }
                    }
                }
            }
            first = false;
            x = ahead;
            __syncthreads();

            // What comes next is on its way while the rest of the network is at work.
            const bool done = again == repeat - 1;
            const bool more = done && q + 1 < batches && weights[(q + 1) % 2 * B] > 0;
            float *other = x == s ? s + B * DP : s;
            int next_place = 0, next_label = 0, next_number = 0;
            float next_weight = 0;
            if (more) coming.begin(store, places + (q + 1) % 2 * B, other);
            if (tid < B && done && row >= 0) {
                next_place = (int)place[row];
                next_label = (int)label[row];
                next_number = (int)(row - rows_begin[c]);
                next_weight = row_weight;
                row = q + 3 < batches ? row_of(q + 3) : -1;
                if (row >= 0) row_weight = weight_at_place(q + 3, tid);
            }
            const bool back = drawn == AHEAD && q % 2;
            if (tid == 0) {  // all this is read behind the next barrier
                pull.follows = back || (drawn == FOLLOWED && done);
                if (drawn == AHEAD) {
                    pull.pull = back;
                    pull.keep = back ? drag[c] : keep[c];
                }
            }

            for (int at = 4 * thread(); at < B * HP; at += 4 * THREADS) {
                float4 z = four(s + inner_bias_at(0) + at % HP);
#pragma unroll 8
                for (int part = 0; part < PARTS; ++part) add(z, 1.f, four(s + LATER + part * B * HP + at));
                if (LAYERS > 1) {
                    z = make_float4(z.x <= 0 ? 0 : z.x, z.y <= 0 ? 0 : z.y, z.z <= 0 ? 0 : z.z, z.w <= 0 ? 0 : z.w);
                }
                four(s + OUT1 + at) = z;
            }
            __syncthreads();
            forward_all<1>(s);
#if ASCENT
            products(s, x);
            __syncthreads();
            float *own = anchor + (long long)c * alphas * H;
            const int now = q % 2 * B;
            ascend(s, weights + now, labels + now, numbers + now, own, pull_[c], drag[c]);
#else
            loss_slope(s, weights + q % 2 * B, labels + q % 2 * B, back ? pull_[c] : lr[c]);
#endif
            __syncthreads();
            backward_all<LAYERS - 1>(s, pull, to);
            for (int h = thread(); h < H; h += THREADS) {
                float change = 0;
#pragma unroll
                for (int b = 0; b < B; ++b) change += s[SLOPE1 + b * HP + h];
                s[inner_bias_at(0) + h] = pull.moved(s[inner_bias_at(0) + h], change, bias_at(0) + h);
            }
            if (more) coming.end(other, shift[c], factor[c]);
            if (done) {
                if (tid < B) {
                    places[q % 2 * B + tid] = next_place;
                    labels[q % 2 * B + tid] = next_label;
                    numbers[q % 2 * B + tid] = next_number;
                    weights[q % 2 * B + tid] = next_weight;
                }
                last = !more;
                ahead = more ? other : x;
                ++q;
                again = 0;
            } else {
                ++again;
            }
            __syncthreads();
        }
        __syncthreads();
        bring<0>(s, w + (long long)c * SIZE);
        turn_back<0>(own_room, w + (long long)c * SIZE);
        if (drawn == FOLLOWED) turn_all_back<0>(to, pull.anchor);
    }
}
