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
