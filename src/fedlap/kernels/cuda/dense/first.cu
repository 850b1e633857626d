// The first layer, in tiles, and the features that it reads.

// Features of the next batch in transfer: asynchronous copies, or bytes held in registers.
#if BYTES
constexpr int PIECES = B * (D / 16), HELD = (PIECES + THREADS - 1) / THREADS;
struct NextFeatures {
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
                as_float4(to + 4 * j) = v;
            }
        }
    }
};
#else
struct NextFeatures {
    __device__ void begin(const void *store, const int *place, float *x) {
        constexpr int FLOATS_PER_COPY = D % 4 == 0 ? 4 : 1;
        for (int at = thread(); at < B * (D / FLOATS_PER_COPY); at += THREADS) {
            const int b = at / (D / FLOATS_PER_COPY), i = at % (D / FLOATS_PER_COPY) * FLOATS_PER_COPY;
            copy<FLOATS_PER_COPY>(x + b * DP + i, static_cast<const float *>(store) + (long long)place[b] * D + i);
        }
    }
    __device__ void end(float *, float, float) { wait_for_copies(); }
};
#endif

// A tile of the first layer: eight inputs times four outputs.
struct Tile {
    float4 w[8];

    __device__ __forceinline__ void load(float *scratch, int i0, int h0) {
#pragma unroll
        for (int i = 0; i < 8; ++i) w[i] = as_float4(scratch + (i0 + i) * HP + h0);
    }
    __device__ __forceinline__ void store(float *scratch, int i0, int h0) const {
#pragma unroll
        for (int i = 0; i < 8; ++i) as_float4(scratch + (i0 + i) * HP + h0) = w[i];
    }
    // w ← decay·w + pull·(anchor − w) − shift + Σ_b x_b ⊗ slope_b; `transposed` are the transposed copies of the
    // anchor and of the shift. The shift is read after the sums, when fewer registers are in use.
    __device__ __forceinline__ void update(
        float *x, float *slope, const AffineStep &affine, float *transposed, int i0, int h0) {
        if (affine.has_anchor) {
            Tile anchor_tile;
            anchor_tile.load(transposed, i0, h0);
#pragma unroll
            for (int i = 0; i < 8; ++i) w[i] = affine.pull_to(w[i], anchor_tile.w[i]);
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i)
                w[i] = make_float4(affine.decay * w[i].x, affine.decay * w[i].y, affine.decay * w[i].z, affine.decay * w[i].w);
        }
#pragma unroll
        for (int b = 0; b < B; ++b) {
            const float4 d = as_float4(slope + b * HP + h0), x0 = as_float4(x + b * DP + i0), x1 = as_float4(x + b * DP + i0 + 4);
            add(w[0], x0.x, d);
            add(w[1], x0.y, d);
            add(w[2], x0.z, d);
            add(w[3], x0.w, d);
            add(w[4], x1.x, d);
            add(w[5], x1.y, d);
            add(w[6], x1.z, d);
            add(w[7], x1.w, d);
        }
        if constexpr (SHIFT) {
            Tile shift_tile;
            shift_tile.load(transposed + TRANSPOSED_SIZE, i0, h0);
#pragma unroll
            for (int i = 0; i < 8; ++i) add(w[i], -1.f, shift_tile.w[i]);
        }
        if (affine.moves_anchor) {
            Tile anchor_tile;
            anchor_tile.load(transposed, i0, h0);
#pragma unroll
            for (int i = 0; i < 8; ++i) anchor_tile.w[i] = affine.move_anchor(w[i], anchor_tile.w[i]);
            anchor_tile.store(transposed, i0, h0);
        }
    }
    __device__ __forceinline__ void multiply(float *x, int i0, float4 *sum) const {
#pragma unroll
        for (int b = 0; b < B; ++b) {
            const float4 x0 = as_float4(x + b * DP + i0), x1 = as_float4(x + b * DP + i0 + 4);
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

// Transpose matrices of a flat row, and back. Threads run along inputs, with four outputs each.
template <int l> __device__ void transpose(const float *w, float *scratch) {
    constexpr int I = Width<l>::n, O = Width<l + 1>::n, IP = round_up(I, l ? 4 : 8), OP = Width<l + 1>::padded;
#pragma unroll 4
    for (int at = threadIdx.x; at < OP / 4 * IP; at += THREADS) {
        const int i = at % IP, o = at / IP * 4;
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) v[k] = i < I && o + k < O ? w[weight_offset(l) + (o + k) * I + i] : 0.f;
        as_float4(scratch + transposed_offset(l) + i * OP + o) = make_float4(v[0], v[1], v[2], v[3]);
    }
}

template <int l> __device__ void transpose_back(float *scratch, float *w) {
    constexpr int I = Width<l>::n, O = Width<l + 1>::n, IP = round_up(I, l ? 4 : 8), OP = Width<l + 1>::padded;
#pragma unroll 4
    for (int at = threadIdx.x; at < OP / 4 * IP; at += THREADS) {
        const int i = at % IP, o = at / IP * 4;
        if (i >= I) continue;
        const float4 v = as_float4(scratch + transposed_offset(l) + i * OP + o);
        float *to = w + weight_offset(l) + o * I + i;
        to[0] = v.x;
        if (o + 1 < O) to[I] = v.y;
        if (o + 2 < O) to[2 * I] = v.z;
        if (o + 3 < O) to[3 * I] = v.w;
    }
}

template <int l> __device__ void transpose_all(const float *w, float *scratch) {
    if constexpr (l < LAYERS) {
        transpose<l>(w, scratch);
        transpose_all<l + 1>(w, scratch);
    }
}

template <int l> __device__ void transpose_all_back(float *scratch, float *w) {
    if constexpr (l < LAYERS) {
        transpose_back<l>(scratch, w);
        transpose_all_back<l + 1>(scratch, w);
    }
}
