// A step of dual coordinate ascent on linear models, one against the rest, for CPU and GPU. The including file
// defines `real`, the floating-point type, INLINE, the specifier of functions, and `smaller` and `larger`.

enum { SQUARED = 1, HINGE = 2, LOGISTIC = 3 };  // the loss ℓ; the hinge loss is smoothed

INLINE real sigmoid(real t) { return 1 / (1 + exp(-t)); }
INLINE real softplus(real t) { return t > 20 ? t : log1p(exp(t)); }

// The b that minimises ℓ*(−b) + z b + (c/2)(b − a)²; for the logistic loss see `Logistic.best`.
INLINE real best_dual(int loss, real a, real z, real y, real c) {
    const real square = a + (y - z - a) / (1 + c);
    if (loss == SQUARED) return square;
    if (loss == HINGE) return y * smaller(larger(y * square, real(0)), real(1));
    const real d = y * (c * a - z), other = c - d, low = smaller(d, other), inverse_c = 1 / c, log_c = log(c);
    const real sum = log_c + low, rest = softplus(-sum), total = sum + rest;
    real t = smaller(total * (log1p(total) / (2 + total)) - (rest + log_c), real(0));
    for (int step = 0; step < (sizeof(real) == 4 ? 3 : 4); ++step) {
        const real p = sigmoid(t);
        t -= (p + (t - low) * inverse_c) / (inverse_c + p - p * p);
        if (step == 0) t = smaller(t, real(0));
    }
    return sigmoid(copysign(t, d - other)) * y;
}
