// Layers of dense networks on a CPU: forward, backward and changed.
//
// A layer's weights are [out][in], as they lie in a flat row of parameters, and go along the inputs, a vector at a
// time, for a few rows and outputs at once. Sums are taken in an order that depends on shapes alone: the same
// numbers every time, whichever thread makes them.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

typedef REAL real;
typedef long long whole;

#if defined(__AVX512F__)
constexpr int BYTES = 64, ROWS = 4, OUTS = 6;  // of a vector; sums of so many rows and outputs fit the registers
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
inline vec last(int n) {  // one in the last n places
    vec v = {};
    for (int i = LANES - n; i < LANES; ++i) v[i] = 1;
    return v;
}

// f(first, n): for n = MOST things at once, and for those that are left.
template <int MOST, class F> inline void in_blocks(int n, F f) {
    int first = 0;
    for (; first + MOST <= n; first += MOST) f(first, std::integral_constant<int, MOST>());
    if constexpr (MOST > 1)
        if (first < n) in_blocks<MOST / 2>(n - first, [&](int more, auto some) { f(first + more, some); });
}

// z = x Wᵀ + bias, for R rows and O outputs; rows that will be `wanted` are brought nearer meanwhile. What is left
// of the inputs behind whole vectors is the end of one that overlaps the last.
template <int R, int O>
void multiply(
    const real *const *x, const real *W, const real *bias, int ins, real *z, int wide, const real *const *wanted) {
    vec sum[R][O] = {};
    int i = 0;
    for (; i + LANES <= ins; i += LANES) {
        vec w[O];
        for (int o = 0; o < O; ++o) w[o] = load(W + (whole)o * ins + i);
        for (int r = 0; r < R; ++r) {
            if (wanted) __builtin_prefetch(wanted[r] + i, 0, 2);
            const vec a = load(x[r] + i);
            for (int o = 0; o < O; ++o) sum[r][o] += a * w[o];
        }
    }
    if (i < ins && ins > LANES) {
        const vec mask = last(ins - i);
        for (int r = 0; r < R; ++r) {
            const vec a = load(x[r] + ins - LANES) * mask;
            for (int o = 0; o < O; ++o) sum[r][o] += a * load(W + (whole)(o + 1) * ins - LANES);
        }
        i = ins;
    }
    for (int r = 0; r < R; ++r)
        for (int o = 0; o < O; ++o) {
            real all = total(sum[r][o]) + bias[o];
            for (int k = i; k < ins; ++k) all += x[r][k] * W[(whole)o * ins + k];
            z[r * wide + o] = all;
        }
}

// Parameters that are drawn to others, w ← keep·w + pull·(to − w) + change, which follow by drag·(w − to):
// differences are what is scaled, or a sum of rounded shares that is not one would add up over steps.
struct Pull {
    real keep, pull, drag;
    bool drawn, follows;

    template <class T> T begin(const T &w, const T &to) const { return keep * w + pull * (to - w); }
    template <class T> T after(const T &w, const T &to) const { return to + drag * (w - to); }
};

// W ← pulled W + Σ_b slope_b ⊗ x_b, for O outputs.
template <int O, bool DRAWN> struct Change {
    real *W, *to;
    const Pull &pull;
    const real *const *x;
    int rows;
    const real *slope;
    int wide, ins;

    // N vectors at input i, of weights (and those they are drawn to) that are or were there.
    template <int N> inline void at(int i, const real *before, const real *to_before, int apart) const {
        vec w[O][N];
        for (int o = 0; o < O; ++o)
            for (int v = 0; v < N; ++v) {
                w[o][v] = load(before + (whole)o * apart + v * LANES);
                if constexpr (DRAWN) w[o][v] = pull.begin(w[o][v], load(to_before + (whole)o * apart + v * LANES));
                else w[o][v] *= pull.keep;
            }
        for (int b = 0; b < rows; ++b) {
            vec a[N];
            for (int v = 0; v < N; ++v) a[v] = load(x[b] + i + v * LANES);
            for (int o = 0; o < O; ++o)
                for (int v = 0; v < N; ++v) w[o][v] += slope[b * wide + o] * a[v];
        }
        for (int o = 0; o < O; ++o)
            for (int v = 0; v < N; ++v) {
                const whole here = (whole)o * ins + i + v * LANES;
                if (DRAWN && pull.follows)
                    store(to + here, pull.after(w[o][v], load(to_before + (whole)o * apart + v * LANES)));
                store(W + here, w[o][v]);
            }
    }
    void operator()() const {
        constexpr int V = 2;
        const int end = ins - LANES;
        real before[O * LANES], to_before[O * LANES];  // of a last vector that overlaps the one before it
        const bool overlaps = ins % LANES && end > 0;
        for (int o = 0; o < O && overlaps; ++o) {
            store(before + o * LANES, load(W + (whole)o * ins + end));
            if (DRAWN) store(to_before + o * LANES, load(to + (whole)o * ins + end));
        }
        int i = 0;
        for (; i + V * LANES <= ins; i += V * LANES) at<V>(i, W + i, to + i, ins);
        for (; i + LANES <= ins; i += LANES) at<1>(i, W + i, to + i, ins);
        if (overlaps) {
            at<1>(end, before, to_before, LANES);
            i = ins;
        }
        for (; i < ins; ++i)
            for (int o = 0; o < O; ++o) {
                real &w = W[(whole)o * ins + i], &there = to[(whole)o * ins + i];
                w = DRAWN ? pull.begin(w, there) : pull.keep * w;
                for (int b = 0; b < rows; ++b) w += slope[b * wide + o] * x[b][i];
                if (DRAWN && pull.follows) there = pull.after(w, there);
            }
    }
};

// The slope by what enters a layer, from that by what leaves it, for R rows; nothing where ReLU was zero.
template <int R>
void backward(const real *W, const real *out, int out_wide, int outs, const real *seen, real *in, int wide, int ins) {
    const auto at = [&](int i) {
        vec sum[R] = {};
        for (int o = 0; o < outs; ++o) {
            const vec w = load(W + (whole)o * ins + i);
            for (int r = 0; r < R; ++r) sum[r] += out[r * out_wide + o] * w;
        }
        for (int r = 0; r < R; ++r) store(in + r * wide + i, sum[r]);
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
            for (int o = 0; o < outs; ++o) sum += out[r * out_wide + o] * W[(whole)o * ins + i];
            in[r * wide + i] = sum;
        }
    for (int r = 0; r < R; ++r)
        for (int k = 0; k < ins; ++k)
            if (seen[r * wide + k] <= 0) in[r * wide + k] = 0;
}

// softmax(scores) − the one-hot vector of the label, times the row's weight and −lr.
void loss_slope(const real *z, real *slope, int outs, real weight, whole label, real lr) {
    real most = z[0], sum = 0;
    for (int k = 1; k < outs; ++k) most = std::max(most, z[k]);
    for (int k = 0; k < outs; ++k) sum += slope[k] = std::exp(z[k] - most);
    for (int k = 0; k < outs; ++k) slope[k] = -lr * weight * (slope[k] / sum - (k == label));
}
