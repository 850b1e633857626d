// The derivative of the loss by the scores of a batch.

// softmax(scores) − the one-hot vector of the label, times the row's weight and −lr, since updates are linear in
// this derivative.
__device__ void loss_slope(float *s, const float *weight, const int *label, float lr) {
    constexpr int K = Width<LAYERS>::n, KP = Width<LAYERS>::padded;
    const float *z = s + out_offset(LAYERS);
    float *d = s + slope_offset(LAYERS);
    constexpr int OUTPUTS_PER_LANE = (KP + 31) / 32;
    const int tid = thread(), lane = tid % 32;
#pragma unroll
    for (int turn = 0; turn < (B + WARPS - 1) / WARPS; ++turn) {
        const int row = tid / 32 + turn * WARPS, b = row < B ? row : B - 1;
        float largest = -3.402823466e38f, sum = 0, e[OUTPUTS_PER_LANE];
#pragma unroll
        for (int k = 0; k < OUTPUTS_PER_LANE; ++k) {
            e[k] = lane + 32 * k < K ? z[b * KP + lane + 32 * k] : -3.402823466e38f;
            largest = fmaxf(largest, e[k]);
        }
#pragma unroll
        for (int off = 16; off; off /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, off));
#pragma unroll
        for (int k = 0; k < OUTPUTS_PER_LANE; ++k) {
            e[k] = lane + 32 * k < K ? expf(e[k] - largest) : 0.f;
            sum += e[k];
        }
#pragma unroll
        for (int off = 16; off; off /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, off);
        const float scale = -lr * weight[b];
#pragma unroll
        for (int k = 0; k < OUTPUTS_PER_LANE; ++k) {
            const int at = lane + 32 * k;
            if (at < KP && row < B) d[b * KP + at] = at < K ? scale * (e[k] / sum - (at == label[b] ? 1.f : 0.f)) : 0.f;
        }
    }
}

#if ASCENT
// Dual coordinate ascent: rows of a batch change their dual variables in turn, one per label; these changes take
// the place of the derivative.
static_assert(LAYERS == 1 && H <= 32, "for linear models of few labels");

// Inner products of the rows of a batch with each other.
__device__ void products(float *s, float *x) {
    constexpr int HALF = (B + 1) / 2, ITEMS = HALF * (HALF + 1) / 2, KS = lanes_per_sum(ITEMS);
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
            for (int r = 0; r < 4; ++r) v[r] = as_float4(x + rows[r] * DP + at);
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

// Update α, with one value per row and label of the client, and write the change of the model as the derivative.
// A change of α adds `scale` times x to the model. Only a `share` of the rows takes part.
__device__ void ascend(
    float *s, const float *weight, const int *label, const int *number, float *alpha, float scale, float share) {
    const int tid = thread();
    for (int at = tid; at < B * HP; at += THREADS)
        if (at % HP >= H) s[SLOPE1 + at] = 0;
    if (tid >= H) return;
    int size = 0;
    for (int b = 0; b < B; ++b) size += weight[b] > 0;
    const float active_rows = ceilf(share * size);
    float z[B], old[B];
#pragma unroll
    for (int b = 0; b < B; ++b) {
        z[b] = s[OUT1 + b * HP + tid];
        old[b] = b < size ? alpha[number[b] * H + tid] : 0.f;
    }
#pragma unroll
    for (int b = 0; b < B; ++b) {
        float change = 0;
        if (b < active_rows) {
            const float y = label[b] == tid ? 1.f : -1.f;
            change = best_dual(ASCENT, old[b], z[b], y, (s[LATER + b * B + b] + 1) * scale) - old[b];
            alpha[number[b] * H + tid] = old[b] + change;
        }
#pragma unroll
        for (int r = b + 1; r < B; ++r) z[r] = fmaf((s[LATER + r * B + b] + 1) * scale, change, z[r]);
        s[SLOPE1 + b * HP + tid] = scale * change;
    }
}
#endif
