// A step of dual coordinate ascent on linear models, one against the rest, for a CPU and for a GPU. Before it stand
// `real`, the type of numbers, HERE, by which functions are declared, and `least` and `most` of two numbers.

enum { SQUARED = 1, HINGE = 2, LOGISTIC = 3 };  // the loss ℓ, the hinge smoothed

HERE real sigmoid(real t) { return 1 / (1 + exp(-t)); }
HERE real softplus(real t) { return t > 20 ? t : log1p(exp(t)); }

// The b with the least ℓ*(−b) + z b + (c/2)(b − a)²; for the logistic loss see `Logistic.best`.
HERE real best(int loss, real a, real z, real y, real c) {
    const real square = a + (y - z - a) / (1 + c);
    if (loss == SQUARED) return square;
    if (loss == HINGE) return y * least(most(y * square, real(0)), real(1));
    const real d = y * (c * a - z), other = c - d, low = least(d, other), over = 1 / c, much = log(c);
    const real sum = much + low, rest = softplus(-sum), near = sum + rest;
    real t = least(near * (log1p(near) / (2 + near)) - (rest + much), real(0));
    for (int step = 0; step < (sizeof(real) == 4 ? 3 : 4); ++step) {
        const real p = sigmoid(t);
        t -= (p + (t - low) * over) / (over + p - p * p);
        if (step == 0) t = least(t, real(0));
    }
    return sigmoid(copysign(t, d - other)) * y;
}
