// The kinds of steps:
//   PLAIN           w ← decay·w − lr·∇
//   ANCHORED        w ← decay·w + pull·(anchor − w) − lr·∇
//   MOVING_ANCHOR   as ANCHORED; after each batch the anchor moves by follow·(w − anchor)
//   LOOKAHEAD       on alternating batches w̃ ← decay·w − lr·∇, then w ← w − (1 − follow)·w̃ − pull·∇ at w̃; the
//                   anchor stores w (it is w itself when the round begins)
// Compiled with SHIFT, PLAIN, ANCHORED and MOVING_ANCHOR steps also subtract `shift`, which has the shape of w. It is a
// constant of the compilation, since a test in the innermost loops would cost registers, hence time, in all kernels.
// In dual ascent `anchor` is α, with `alphas` rows per client, `pull` is the scale of a change, and `follow` the
// share of rows that take part.
constexpr int PLAIN = 0, ANCHORED = 1, MOVING_ANCHOR = 2, LOOKAHEAD = 3;

extern "C" __global__ void __launch_bounds__(THREADS, 1) steps(
    float *w, float *scratch, float *anchor, const float *shift, const void *store, const long long *place, const long long *label,
    const long long *rows, const double *weight, const float *lr, const float *decay, const float *pull,
    const float *follow, const float *feature_shift, const float *feature_factor, const long long *rows_begin,
    int *next, int clients, int batches, int repeat, int row_step, int row_client, int weight_step,
    int weight_client, int kind, int has_shift, int alphas) {
    extern __shared__ float s[];
    __shared__ AffineStep affine;
    __shared__ int c;  // the current client
    const int tid = threadIdx.x, slice = tid / GROUPS, h0 = tid % GROUPS * 4;
    const bool has_tiles = slice < SLICES;
    // The scratch of a block: the first layer, then the anchor and the shift, transposed.
    float *block_scratch = scratch + (long long)blockIdx.x * (DP * HP + (1 + SHIFT) * TRANSPOSED_SIZE);
    float *transposed = block_scratch + DP * HP;
    int *places = reinterpret_cast<int *>(s + META), *labels = places + 2 * B;  // for two batches
    int *numbers = labels + 2 * B;  // of a row among those of its client
    float *weights = reinterpret_cast<float *>(numbers + 2 * B);
    Tile tiles[RESIDENT ? TURNS : 1];

    // Columns that are padding stay zero.
    for (int at = tid; at < 2 * B * DP; at += THREADS) s[at] = 0;

    while (true) {
        __syncthreads();  // all threads have finished the previous client
        if (tid == 0) {
            c = atomicAdd(next, 1);
            if (c < clients) {
                affine.anchor = anchor + (long long)c * SIZE;
#if SHIFT
                affine.shift = shift + (long long)c * SIZE;
#endif
                affine.pull = kind == ANCHORED || kind == MOVING_ANCHOR ? pull[c] : 0.f;
                affine.decay = decay[c];
                affine.follow = kind == MOVING_ANCHOR ? follow[c] : 1.f;
                affine.has_anchor = kind != PLAIN;
                affine.moves_anchor = false;
            }
        }
        __syncthreads();
        if (c >= clients) return;

        // The first two batches are loaded at once. Later, places of rows are read two batches ahead, and row
        // numbers three batches ahead.
        const auto batch_weight = [&](int q, int at) {
            return (float)weight[(long long)c * weight_client + (long long)q * weight_step + at];
        };
        const auto row_of = [&](int q) {  // −1 if the client has no such batch
            if (batch_weight(q, 0) == 0) return -1LL;
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
                weights[q * B + tid] = r < 0 ? 0.f : batch_weight(q, tid);
            }
            if (2 < batches) {
                row = row_of(2);
                row_weight = batch_weight(2, tid);
            }
        }
        __syncthreads();
        if (weights[0] == 0) continue;  // no rows, no steps
        load_inner<0>(s, w + (long long)c * SIZE);
        transpose<0>(w + (long long)c * SIZE, block_scratch);
        if (kind != PLAIN) transpose_all<0>(affine.anchor, transposed);
#if SHIFT
        transpose_all<0>(affine.shift, transposed + TRANSPOSED_SIZE);
#endif
        NextFeatures next_features;
        next_features.begin(store, places, s);
        next_features.end(s, feature_shift[c], feature_factor[c]);
        __syncthreads();

        int q = 0, repetition = 0;
        float *x = s, *next_x = s;
        bool first = true, last = false;
        while (true) {
            // Pass over the first layer: update by the previous batch, multiply with the next.
            float4 sum[B];
#pragma unroll
            for (int b = 0; b < B; ++b) sum[b] = make_float4(0, 0, 0, 0);
            if (has_tiles) {
                if constexpr (RESIDENT) {
#pragma unroll
                    for (int t = 0; t < TURNS; ++t) {
                        const int i0 = (slice + t * SLICES) * 8;
                        if (i0 >= DP) continue;
                        if (first) tiles[t].load(block_scratch, i0, h0);
                        else tiles[t].update(x, s + SLOPE1, affine, transposed, i0, h0);
                        if (last) tiles[t].store(block_scratch, i0, h0);
                        else tiles[t].multiply(next_x, i0, sum);
                    }
                } else {
                    Tile next_tile;
                    next_tile.load(block_scratch, slice * 8, h0);
#pragma unroll 1
                    for (int i0 = slice * 8; i0 < DP; i0 += SLICES * 8) {
                        Tile tile = next_tile;
                        if (i0 + SLICES * 8 < DP) next_tile.load(block_scratch, i0 + SLICES * 8, h0);
                        if (!first) {
                            tile.update(x, s + SLOPE1, affine, transposed, i0, h0);
                            tile.store(block_scratch, i0, h0);
                        }
                        if (!last) tile.multiply(next_x, i0, sum);
                    }
                }
            }
            if (last) break;
            for (int first_part = 0; first_part < SLICES; first_part += PARTS) {
                if (first_part) __syncthreads();
                if (has_tiles && slice >= first_part && slice < first_part + PARTS) {
                    float *part = s + LATER + (slice - first_part) * B * HP + h0;
#pragma unroll
                    for (int b = 0; b < B; ++b) {
                        if (first_part == 0) {
                            as_float4(part + b * HP) = sum[b];
                        } else {
                            float4 &v = as_float4(part + b * HP);
                            v = make_float4(v.x + sum[b].x, v.y + sum[b].y, v.z + sum[b].z, v.w + sum[b].w);
                        }
                    }
                }
            }
            first = false;
            x = next_x;
            __syncthreads();

            // The next batch is transferred while the rest of the network is computed.
            const bool done = repetition == repeat - 1;
            const bool has_next = done && q + 1 < batches && weights[(q + 1) % 2 * B] > 0;
            float *other_x = x == s ? s + B * DP : s;
            int next_place = 0, next_label = 0, next_number = 0;
            float next_weight = 0;
            if (has_next) next_features.begin(store, places + (q + 1) % 2 * B, other_x);
            if (tid < B && done && row >= 0) {
                next_place = (int)place[row];
                next_label = (int)label[row];
                next_number = (int)(row - rows_begin[c]);
                next_weight = row_weight;
                row = q + 3 < batches ? row_of(q + 3) : -1;
                if (row >= 0) row_weight = batch_weight(q + 3, tid);
            }
            const bool meta_step = kind == LOOKAHEAD && q % 2;
            if (tid == 0) {  // the values are read after the next barrier
                affine.moves_anchor = meta_step || (kind == MOVING_ANCHOR && done);
                if (kind == LOOKAHEAD) {
                    affine.pull = meta_step;
                    affine.decay = meta_step ? follow[c] : decay[c];
                }
            }

            for (int at = 4 * thread(); at < B * HP; at += 4 * THREADS) {
                float4 z = as_float4(s + inner_bias_offset(0) + at % HP);
#pragma unroll 8
                for (int part = 0; part < PARTS; ++part) add(z, 1.f, as_float4(s + LATER + part * B * HP + at));
                if (LAYERS > 1) {
                    z = make_float4(z.x <= 0 ? 0 : z.x, z.y <= 0 ? 0 : z.y, z.z <= 0 ? 0 : z.z, z.w <= 0 ? 0 : z.w);
                }
                as_float4(s + OUT1 + at) = z;
            }
            __syncthreads();
            forward_all<1>(s);
#if ASCENT
            products(s, x);
            __syncthreads();
            float *client_alpha = anchor + (long long)c * alphas * H;
            const int now = q % 2 * B;
            ascend(s, weights + now, labels + now, numbers + now, client_alpha, pull[c], follow[c]);
#else
            loss_slope(s, weights + q % 2 * B, labels + q % 2 * B, meta_step ? pull[c] : lr[c]);
#endif
            __syncthreads();
            backward_all<LAYERS - 1>(s, affine, transposed);
            for (int h = thread(); h < H; h += THREADS) {
                float change = 0;
#pragma unroll
                for (int b = 0; b < B; ++b) change += s[SLOPE1 + b * HP + h];
                s[inner_bias_offset(0) + h] = affine.update(s[inner_bias_offset(0) + h], change, bias_offset(0) + h);
            }
            if (has_next) next_features.end(other_x, feature_shift[c], feature_factor[c]);
            if (done) {
                if (tid < B) {
                    places[q % 2 * B + tid] = next_place;
                    labels[q % 2 * B + tid] = next_label;
                    numbers[q % 2 * B + tid] = next_number;
                    weights[q % 2 * B + tid] = next_weight;
                }
                last = !has_next;
                next_x = has_next ? other_x : x;
                ++q;
                repetition = 0;
            } else {
                ++repetition;
            }
            __syncthreads();
        }
        __syncthreads();
        store_inner<0>(s, w + (long long)c * SIZE);
        transpose_back<0>(block_scratch, w + (long long)c * SIZE);
        if (kind == MOVING_ANCHOR) transpose_all_back<0>(transposed, affine.anchor);
    }
}
