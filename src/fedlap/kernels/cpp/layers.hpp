// Layers of dense networks on a CPU: forward, backward and update.
//
// A layer's weights are [out][in], as in a flat row of parameters. Loops run along the inputs, one vector at a
// time, for a few rows and outputs at once. The order of sums depends on shapes only, so results are bitwise
// reproducible for any number of threads.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

typedef REAL real;
typedef long long integer;

#if defined(__AVX512F__)
constexpr int BYTES = 64, ROWS = 4, OUTS = 6;  // bytes per vector; rows and outputs whose sums fit in the registers
#elif defined(__AVX__)
constexpr int BYTES = 32, ROWS = 2, OUTS = 5;
#else
constexpr int BYTES = 16, ROWS = 4, OUTS = 5;
#endif
constexpr int LANES = BYTES / sizeof(real);
typedef real vec __attribute__((vector_size(BYTES)));

inline vec load(const real *from) {
    vec v;
    std::memcpy(&v, from, BYTES);
    return v;
}
inline void store(real *to, const vec &v) { std::memcpy(to, &v, BYTES); }
// The sum of a vector, by halves.
template <int N> inline real total(const real *part) {
    if constexpr (N == 1) {
        return part[0];
    } else {
        real half[N / 2];
        for (int i = 0; i < N / 2; ++i) half[i] = part[i] + part[i + N / 2];
        return total<N / 2>(half);
    }
}
inline real total(const vec &v) {
    real part[LANES];
    std::memcpy(part, &v, BYTES);
    return total<LANES>(part);
}
inline vec last(int n) {  // ones in the last n lanes, else zeros
    vec v = {};
    for (int i = LANES - n; i < LANES; ++i) v[i] = 1;
    return v;
}

// Call f(first, size) for blocks of MOST items, and for smaller blocks of the rest.
template <int MOST, class F> inline void for_blocks(int n, F f) {
    int first = 0;
    for (; first + MOST <= n; first += MOST) f(first, std::integral_constant<int, MOST>());
    if constexpr (MOST > 1)
        if (first < n) for_blocks<MOST / 2>(n - first, [&](int more, auto count) { f(first + more, count); });
}

// z = x Wᵀ + bias, for R rows and O outputs; the rows in `prefetch` are prefetched meanwhile. The inputs after the
// last complete vector are covered by a vector that overlaps it.
template <int R, int O>
void multiply(
    const real *const *x, const real *W, const real *bias, int ins, real *z, int stride, const real *const *prefetch) {
    vec sum[R][O] = {};
    int i = 0;
    for (; i + LANES <= ins; i += LANES) {
        vec w[O];
        for (int o = 0; o < O; ++o) w[o] = load(W + (integer)o * ins + i);
        for (int r = 0; r < R; ++r) {
            if (prefetch) __builtin_prefetch(prefetch[r] + i, 0, 2);
            const vec a = load(x[r] + i);
            for (int o = 0; o < O; ++o) sum[r][o] += a * w[o];
        }
    }
    if (i < ins && ins > LANES) {
        const vec mask = last(ins - i);
        for (int r = 0; r < R; ++r) {
            const vec a = load(x[r] + ins - LANES) * mask;
            for (int o = 0; o < O; ++o) sum[r][o] += a * load(W + (integer)(o + 1) * ins - LANES);
        }
        i = ins;
    }
    for (int r = 0; r < R; ++r)
        for (int o = 0; o < O; ++o) {
            real all = total(sum[r][o]) + bias[o];
            for (int k = i; k < ins; ++k) all += x[r][k] * W[(integer)o * ins + k];
            z[r * stride + o] = all;
        }
}

// An affine step, w ← decay·w + pull·(to − w) − shift + change, after which the anchor `to` may move by
// follow·(w − to). Differences are scaled, since rounded shares whose sum is not one would accumulate over steps.
struct AffineStep {
    real decay, pull, follow;
    bool has_anchor, moves_anchor;
    const real *shift;  // one value per parameter of the client, or null

    template <class T> T pull_to(const T &w, const T &to) const { return decay * w + pull * (to - w); }
    template <class T> T move_anchor(const T &w, const T &to) const { return to + follow * (w - to); }
};

// W ← decay·W + pull·(to − W) − shift + Σ_b slope_b ⊗ x_b, for O outputs. Anchor and shift are parameters of the
// template, so that plain steps pay for neither.
template <int O, bool HAS_ANCHOR, bool HAS_SHIFT> struct LayerUpdate {
    real *W, *to;
    const real *shift;  // in the layout of W
    const AffineStep &affine;
    const real *const *x;
    int rows;
    const real *slope;
    int stride, ins;

    // Update N vectors at input i, from the weights and anchors `before` the update. The shift never changes, so it
    // is read at its place.
    template <int N> inline void at(int i, const real *before, const real *anchor_before, int row_stride) const {
        vec w[O][N];
        for (int o = 0; o < O; ++o)
            for (int v = 0; v < N; ++v) {
                w[o][v] = load(before + (integer)o * row_stride + v * LANES);
                if constexpr (HAS_ANCHOR) w[o][v] = affine.pull_to(w[o][v], load(anchor_before + (integer)o * row_stride + v * LANES));
                else w[o][v] *= affine.decay;
            }
        if constexpr (HAS_SHIFT)
            for (int o = 0; o < O; ++o)
                for (int v = 0; v < N; ++v) w[o][v] -= load(shift + (integer)o * ins + i + v * LANES);
        for (int b = 0; b < rows; ++b) {
            vec a[N];
            for (int v = 0; v < N; ++v) a[v] = load(x[b] + i + v * LANES);
            for (int o = 0; o < O; ++o)
                for (int v = 0; v < N; ++v) w[o][v] += slope[b * stride + o] * a[v];
        }
        for (int o = 0; o < O; ++o)
            for (int v = 0; v < N; ++v) {
                const integer here = (integer)o * ins + i + v * LANES;
                if (HAS_ANCHOR && affine.moves_anchor)
                    store(to + here, affine.move_anchor(w[o][v], load(anchor_before + (integer)o * row_stride + v * LANES)));
                store(W + here, w[o][v]);
            }
    }
    void operator()() const {
        constexpr int V = 2;
        const int end = ins - LANES;
        real before[O * LANES], anchor_before[O * LANES];  // of the last vector, which overlaps the previous one
        const bool overlaps = ins % LANES && end > 0;
        for (int o = 0; o < O && overlaps; ++o) {
            store(before + o * LANES, load(W + (integer)o * ins + end));
            if (HAS_ANCHOR) store(anchor_before + o * LANES, load(to + (integer)o * ins + end));
        }
        int i = 0;
        for (; i + V * LANES <= ins; i += V * LANES) at<V>(i, W + i, to + i, ins);
        for (; i + LANES <= ins; i += LANES) at<1>(i, W + i, to + i, ins);
        if (overlaps) {
            at<1>(end, before, anchor_before, LANES);
            i = ins;
        }
        for (; i < ins; ++i)
            for (int o = 0; o < O; ++o) {
                real &w = W[(integer)o * ins + i], &anchor = to[(integer)o * ins + i];
                w = HAS_ANCHOR ? affine.pull_to(w, anchor) : affine.decay * w;
                if (HAS_SHIFT) w -= shift[(integer)o * ins + i];
                for (int b = 0; b < rows; ++b) w += slope[b * stride + o] * x[b][i];
                if (HAS_ANCHOR && affine.moves_anchor) anchor = affine.move_anchor(w, anchor);
            }
    }
};

// The derivative by the inputs of a layer, from that by its outputs, for R rows; zero where ReLU was zero.
template <int R>
void backward(const real *W, const real *out, int out_stride, int outs, const real *inputs, real *in, int stride, int ins) {
    const auto at = [&](int i) {
        vec sum[R] = {};
        for (int o = 0; o < outs; ++o) {
            const vec w = load(W + (integer)o * ins + i);
            for (int r = 0; r < R; ++r) sum[r] += out[r * out_stride + o] * w;
        }
        for (int r = 0; r < R; ++r) store(in + r * stride + i, sum[r]);
    };
    int i = 0;
    for (; i + LANES <= ins; i += LANES) at(i);
    if (i < ins && ins > LANES) {
        at(ins - LANES);
        i = ins;
    }
    for (; i < ins; ++i)
        for (int r = 0; r < R; ++r) {
            real sum = 0;
            for (int o = 0; o < outs; ++o) sum += out[r * out_stride + o] * W[(integer)o * ins + i];
            in[r * stride + i] = sum;
        }
    for (int r = 0; r < R; ++r)
        for (int k = 0; k < ins; ++k)
            if (inputs[r * stride + k] <= 0) in[r * stride + k] = 0;
}

// softmax(scores) − the one-hot vector of the label, times the row's weight and −lr.
void loss_slope(const real *z, real *slope, int outs, real weight, integer label, real lr) {
    real most = z[0], sum = 0;
    for (int k = 1; k < outs; ++k) most = std::max(most, z[k]);
    for (int k = 0; k < outs; ++k) sum += slope[k] = std::exp(z[k] - most);
    for (int k = 0; k < outs; ++k) slope[k] = -lr * weight * (slope[k] / sum - (k == label));
}
