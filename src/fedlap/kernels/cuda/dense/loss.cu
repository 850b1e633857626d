// What the scores of a batch ask of the layer below them.

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
// Dual coordinate ascent: instead of a slope, what each row of a batch in turn, for every label, changes its dual
// variable by.
static_assert(LAYERS == 1 && H <= 32, "for linear models of few labels");

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
            moved = best(ASCENT, old[b], z[b], y, (s[LATER + b * B + b] + 1) * scale) - old[b];
            alpha[number[b] * H + tid] = old[b] + moved;
        }
#pragma unroll
        for (int r = b + 1; r < B; ++r) z[r] = fmaf((s[LATER + r * B + b] + 1) * scale, moved, z[r]);
        s[SLOPE1 + b * HP + tid] = scale * moved;
    }
}
#endif
