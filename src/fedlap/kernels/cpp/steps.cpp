// All local steps of a round of dense networks on a CPU, the counterpart of `cuda/dense`. A thread takes one client
// at a time and computes its steps one after another, so that a model and its batch stay in the cache, and rows are
// read from the store without a copy. Compiled once per machine and floating-point type REAL; shapes are arguments.

#include <atomic>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

#include "layers.hpp"

#define INLINE inline
INLINE real smaller(real a, real b) { return std::min(a, b); }
INLINE real larger(real a, real b) { return std::max(a, b); }
using std::copysign, std::exp, std::log, std::log1p;
#include "dual.hpp"

// The first failure of a call, from any thread. Row numbers, places in the store and labels are checked where they
// are used, at the cost of one comparison each; `cpp_library.py` checks shapes and types before the call.
enum { MEMORY = 1, ROW = 2, PLACE = 3, LABEL = 4, DUAL = 5 };
struct Failure {
    std::atomic<integer> code{0};
    integer client = 0, value = 0;

    bool report(integer what, integer c, integer found) {
        integer none = 0;
        if (code.compare_exchange_strong(none, what)) client = c, value = found;
        return false;
    }
    integer write_to(integer *to) const {
        to[0] = client, to[1] = value;
        return code;
    }
};
inline bool in_range(integer number, integer end) { return number >= 0 && number < end; }

// The arguments of a round: data, models, batches and settings. Arrays per client begin with the active clients.
struct Round {
    const void *data;  // features, row by row, as bytes or as `real`
    const integer *place, *label;
    const real *feature_shift, *feature_factor;
    integer clients, batch, bytes, all_rows, stored, layers;
    const integer *widths;
    real *w = nullptr, *anchor = nullptr;
    const real *shift = nullptr;  // in the layout of w; null without a shift
    const integer *rows = nullptr, *begin = nullptr;
    const double *weight = nullptr;
    const real *lr = nullptr, *decay = nullptr, *pull = nullptr, *follow = nullptr;
    integer batches = 0, repeat = 0, row_step = 0, row_client = 0, weight_step = 0, weight_client = 0, kind = 0, alphas = 0,
          loss = 0;
};

enum { PLAIN = 0, ANCHORED = 1, MOVING_ANCHOR = 2, LOOKAHEAD = 3, TURNING = 4, BLOCK = 5 };

// Buffers of a thread: a batch of bytes converted to numbers, outputs of layers, derivatives, a second model and a shift.
struct Worker {
    const Round &round;
    Failure &failure;
    std::vector<integer> weight_offset, bias_offset;
    std::vector<int> stride;
    std::vector<real> features, original, turned;
    std::vector<std::vector<real>> outputs, slope;
    std::vector<const real *> x, next;  // rows of this batch and of the next
    std::vector<std::vector<const real *>> rows_of;
    integer size = 0;

    Worker(const Round &r, Failure &f) : round(r), failure(f), x(r.batch), next(r.batch), rows_of(r.layers) {
        for (integer l = 0; l < r.layers; ++l) {
            weight_offset.push_back(size);
            bias_offset.push_back(size + r.widths[l] * r.widths[l + 1]);
            size += (r.widths[l] + 1) * r.widths[l + 1];
            stride.push_back((int)((r.widths[l + 1] + LANES - 1) / LANES * LANES));
            outputs.emplace_back(r.batch * stride[l]);
            slope.emplace_back(r.batch * stride[l]);
            if (l)
                for (integer b = 0; b < r.batch; ++b) rows_of[l].push_back(outputs[l - 1].data() + b * stride[l - 1]);
        }
        if (r.bytes) features.resize(r.batch * r.widths[0]);
        if (r.kind == LOOKAHEAD) original.resize(size);
        if (r.kind == TURNING) turned.resize(size);
    }

    // Check that the row exists, its features are in the store and its label is below the number of scores.
    bool check(integer c, integer row) {
        if (!in_range(row, round.all_rows)) return failure.report(ROW, c, row);
        if (!in_range(round.place[row], round.stored)) return failure.report(PLACE, c, round.place[row]);
        if (!in_range(round.label[row], round.widths[round.layers])) return failure.report(LABEL, c, round.label[row]);
        return true;
    }

    // Load the b-th row of a batch; false if it is out of range.
    bool load_row(integer c, int b, integer row) {
        if (!check(c, row)) return false;
        const integer ins = round.widths[0], at = round.place[row] * ins;
        if (!round.bytes) {
            x[b] = static_cast<const real *>(round.data) + at;
            return true;
        }
        const unsigned char *from = static_cast<const unsigned char *>(round.data) + at;
        real *to = features.data() + b * ins;
        const real shift = round.feature_shift[c], factor = round.feature_factor[c];
        for (integer i = 0; i < ins; ++i) to[i] = (from[i] - shift) * factor;
        x[b] = to;
        return true;
    }

    // Load all rows of a batch; return their number, or 0 if one of them is out of range.
    int load_batch(integer c, integer q, const integer *row) {
        const double *weight = round.weight + c * round.weight_client + q * round.weight_step;
        int n = 0;
        for (; n < round.batch && weight[n] > 0; ++n)
            if (!load_row(c, n, row[n])) return 0;
        return n;
    }

    // Register the b-th row of the next batch for prefetching, unless rows are bytes. A row that is out of range is
    // padding, or `load_row` will report it; it is replaced by the row of this batch.
    void prefetch_row(int b, integer row) {
        const bool exists = in_range(row, round.all_rows) && in_range(round.place[row], round.stored);
        next[b] = exists ? static_cast<const real *>(round.data) + round.place[row] * round.widths[0] : x[b];
    }

    // Register the first n rows of a batch for prefetching; false if there is no such batch.
    bool prefetch_batch(integer c, integer q, int n) {
        if (round.bytes || q >= round.batches) return false;
        const integer *row = round.rows + c * round.row_client + q * round.row_step;
        for (int b = 0; b < n; ++b) prefetch_row(b, row[b]);
        return true;
    }

    void forward(const real *w, int n, bool has_next) {
        for (integer l = 0; l < round.layers; ++l) {
            const int ins = (int)round.widths[l], outs = (int)round.widths[l + 1];
            const real *const *in = l ? rows_of[l].data() : x.data();
            real *z = outputs[l].data();
            for_blocks<OUTS>(outs, [&](int o, auto O) {
                for_blocks<ROWS>(n, [&](int b, auto R) {
                    multiply<R(), O()>(
                        in + b, w + weight_offset[l] + (integer)o * ins, w + bias_offset[l] + o, ins, z + b * stride[l] + o, stride[l],
                        l || o || !has_next ? nullptr : next.data() + b);
                });
            });
            if (l + 1 < round.layers)
                for (int at = 0; at < n * stride[l]; ++at) z[at] = z[at] <= 0 ? 0 : z[at];  // NaN stays NaN
        }
    }

    // Update the layers from `begin` to before `end`.
    template <bool HAS_ANCHOR, bool HAS_SHIFT>
    void step(real *w, real *to, const AffineStep &affine, int n, integer begin, integer end) {
        for (integer l = round.layers - 1; l >= begin; --l) {
            const int ins = (int)round.widths[l], outs = (int)round.widths[l + 1];
            const real *const *in = l ? rows_of[l].data() : x.data();
            const real *out = slope[l].data();
            real *W = w + weight_offset[l], *bias = w + bias_offset[l];
            if (l > begin)
                for_blocks<ROWS>(n, [&](int b, auto R) {
                    backward<R()>(
                        W, out + b * stride[l], stride[l], outs, outputs[l - 1].data() + b * stride[l - 1],
                        slope[l - 1].data() + b * stride[l - 1], stride[l - 1], ins);
                });
            if (l >= end) continue;
            for_blocks<OUTS>(outs, [&](int o, auto O) {
                const integer at = (integer)o * ins;
                real *anchor = HAS_ANCHOR ? to + weight_offset[l] + at : W + at;
                const real *shift = HAS_SHIFT ? affine.shift + weight_offset[l] + at : nullptr;
                LayerUpdate<O(), HAS_ANCHOR, HAS_SHIFT>{W + at, anchor, shift, affine, in, n, out + o, stride[l], ins}();
            });
            for (int o = 0; o < outs; ++o) {
                real change = 0;
                for (int b = 0; b < n; ++b) change += out[b * stride[l] + o];
                if (HAS_SHIFT) change -= affine.shift[bias_offset[l] + o];
                real &anchor = to[bias_offset[l] + o];
                bias[o] = (affine.has_anchor ? affine.pull_to(bias[o], anchor) : affine.decay * bias[o]) + change;
                if (affine.moves_anchor) anchor = affine.move_anchor(bias[o], anchor);
            }
        }
    }

    // Add a step of length `pull` along (v − (v·w) w/‖w‖²)/‖w‖, the gradient of v·w/‖w‖, to an affine step at w.
    void turn(const real *w, const real *v, real pull, AffineStep &affine) {
        const real none = 0;
        real square, along;
        multiply<1, 1>(&w, w, &none, (int)size, &square, 1, nullptr);
        multiply<1, 1>(&w, v, &none, (int)size, &along, 1, nullptr);
        const real inverse = square > 0 ? 1 / std::sqrt(square) : 0, length = pull * inverse;
        for (integer i = 0; i < size; ++i) turned[i] = -length * v[i];
        affine.shift = turned.data();
        affine.decay -= length * (along * inverse) * inverse;
    }

    void descend(integer c) {
        real *w = round.w + c * size, *to = round.kind == PLAIN ? w : round.anchor + c * size;
        if (round.kind == LOOKAHEAD) {
            to = original.data();
            std::copy(w, w + size, to);
        }
        const integer last = round.layers - 1;
        const integer begin = round.kind == BLOCK ? (integer)round.pull[c] : 0;
        const integer end = round.kind == BLOCK ? (integer)round.follow[c] : round.layers;
        for (integer q = 0; q < round.batches; ++q) {
            const integer *row = round.rows + c * round.row_client + q * round.row_step;
            const double *weight = round.weight + c * round.weight_client + q * round.weight_step;
            const int n = load_batch(c, q, row);
            if (!n) break;
            const bool meta_step = round.kind == LOOKAHEAD && q % 2;
            const real lr = meta_step ? round.pull[c] : round.lr[c];
            AffineStep affine{
                .decay = meta_step ? round.follow[c] : round.decay[c], .pull = meta_step ? 1 : round.pull[c],
                .follow = meta_step ? 1 : round.follow[c],
                .has_anchor = meta_step || round.kind == ANCHORED || round.kind == MOVING_ANCHOR, .moves_anchor = false,
                .shift = round.shift ? round.shift + c * size : nullptr};
            for (integer repetition = 0; repetition < round.repeat; ++repetition) {
                affine.moves_anchor = meta_step || (round.kind == MOVING_ANCHOR && repetition == round.repeat - 1);
                forward(w, n, repetition == round.repeat - 1 && prefetch_batch(c, q + 1, n));
                for (int b = 0; b < n; ++b)
                    loss_slope(
                        outputs[last].data() + b * stride[last], slope[last].data() + b * stride[last],
                        (int)round.widths[last + 1], (real)weight[b], round.label[row[b]], lr);
                if (round.kind == TURNING) {
                    affine.decay = round.decay[c];
                    turn(w, to, round.pull[c], affine);
                }
                if (affine.shift)
                    affine.has_anchor ? step<true, true>(w, to, affine, n, begin, end) : step<false, true>(w, to, affine, n, begin, end);
                else affine.has_anchor ? step<true, false>(w, to, affine, n, begin, end) : step<false, false>(w, to, affine, n, begin, end);
            }
        }
    }

    // Update α row by row: a change of α adds `pull` times x to the model, and `follow` is the share of rows that
    // take part.
    void ascend(integer c) {
        real *w = round.w + c * size;
        const int ins = (int)round.widths[0], outs = (int)round.widths[1];
        const AffineStep free{.decay = 1, .pull = 0, .follow = 0, .has_anchor = false, .moves_anchor = false, .shift = nullptr};
        for (integer q = 0; q < round.batches; ++q) {
            const integer *row = round.rows + c * round.row_client + q * round.row_step;
            const int n = load_batch(c, q, row);
            if (!n) break;
            const real share = round.follow[c] * n;
            const int active_rows = share > 0 ? (int)std::min(std::ceil(share), (real)n) : 0;  // 0 for NaN
            for (int b = 0; b < active_rows; ++b) {
                const real *features_of_row = x[b];
                const integer number = row[b] - round.begin[c];  // among the client's rows
                if (!in_range(number, round.alphas)) {
                    failure.report(DUAL, c, number);
                    return;
                }
                real square = 1, *z = outputs[0].data(), *changes = slope[0].data();
                const real none = 0;
                real norm;
                multiply<1, 1>(&features_of_row, features_of_row, &none, ins, &norm, 1, nullptr);
                square += norm;
                for_blocks<OUTS>(outs, [&](int o, auto O) {
                    multiply<1, O()>(&features_of_row, w + (integer)o * ins, w + bias_offset[0] + o, ins, z + o, stride[0], nullptr);
                });
                real *alpha = round.anchor + (c * round.alphas + number) * outs;
                for (int k = 0; k < outs; ++k) {
                    const real y = round.label[row[b]] == k ? 1 : -1;
                    const real change = best_dual(round.loss, alpha[k], z[k], y, square * round.pull[c]) - alpha[k];
                    alpha[k] += change;
                    changes[k] = round.pull[c] * change;
                    w[bias_offset[0] + k] += changes[k];
                }
                for_blocks<OUTS>(outs, [&](int o, auto O) {
                    real *W = w + (integer)o * ins;
                    LayerUpdate<O(), false, false>{W, W, nullptr, free, &features_of_row, 1, changes + o, stride[0], ins}();
                });
            }
        }
    }

    // Sum losses and correct predictions over `count` rows from `first` on.
    void tally(integer c, const real *w, integer first, integer count, double &loss, double &hits) {
        const integer last = round.layers - 1;
        const int outs = (int)round.widths[last + 1];
        if (count < 0 || count > round.all_rows || first < 0 || first > round.all_rows - count) {
            failure.report(ROW, c, first);
            return;
        }
        for (integer done = 0; done < count; done += round.batch) {
            const int n = (int)std::min(round.batch, count - done);
            for (int b = 0; b < n; ++b)
                if (!load_row(c, b, first + done + b)) return;
            const bool has_next = !round.bytes && done + n < count;
            for (int b = 0; b < n && has_next; ++b) prefetch_row(b, std::min(first + done + n + b, first + count - 1));
            forward(w, n, has_next);
            for (int b = 0; b < n; ++b) {
                const real *z = outputs[last].data() + b * stride[last];
                const integer label = round.label[first + done + b];
                const int best = (int)(std::max_element(z, z + outs) - z);  // the first of equal scores
                real sum = 0;
                for (int k = 0; k < outs; ++k) sum += std::exp(z[k] - z[best]);
                loss += std::log(sum) + z[best] - z[label];
                hits += best == label;
            }
        }
    }
};

// OpenMP's function for parallel regions, or null: it reuses PyTorch's waiting threads, which would otherwise
// compete with new ones.
typedef void Parallel(void (*)(void *), void *, unsigned, unsigned);

// Call work(worker, c) for every client, until a failure. A thread without memory for a worker leaves its clients to
// other threads; a failure is reported only if clients remain.
template <class Work> void for_all(const Round &round, Failure &failure, integer threads, Parallel *parallel, Work work) {
    std::atomic<integer> next{0};
    auto work_loop = [&]() noexcept {
        std::optional<Worker> worker;
        try {
            worker.emplace(round, failure);
        } catch (const std::exception &) {
            return;
        }
        for (integer c; !failure.code && (c = next++) < round.clients;) work(*worker, c);
    };
    threads = std::min(threads, round.clients);
    if (threads > 1 && parallel) {
        parallel([](void *all) { (*static_cast<decltype(work_loop) *>(all))(); }, &work_loop, (unsigned)threads, 0);
    } else {
        std::vector<std::thread> others;
        try {
            for (integer t = 1; t < threads; ++t) others.emplace_back(work_loop);
        } catch (const std::exception &) {
            // The system provides no more threads; the existing ones do all of the work.
        }
        work_loop();
        for (auto &thread : others) thread.join();
    }
    if (next < round.clients) failure.report(MEMORY, next, 0);
}

// Places of the arguments of `steps`: the tensors and the numbers of `StepArguments` in `cpp_library.py`, in its order,
// then the numbers that `StepLibrary.steps` adds.
namespace tensor {
enum { w, scratch, anchor, shift, store, place, label, rows, weight, lr, decay, pull, follow, feature_shift, feature_factor, begin };
}
namespace number {
enum {
    clients, batches, repeat, row_step, row_client, weight_step, weight_client, kind, has_shift, alphas,
    all_rows, stored, batch, bytes, loss, layers, widths
};
}

// Returns the code of a failure, and writes its client and number to `to`.
extern "C" integer steps(void **p, const integer *n, integer threads, Parallel *parallel, integer *to) {
    const auto reals = [p](int place) { return static_cast<real *>(p[place]); };
    const auto integers = [p](int place) { return static_cast<const integer *>(p[place]); };
    const Round round{
        .data = p[tensor::store], .place = integers(tensor::place), .label = integers(tensor::label),
        .feature_shift = reals(tensor::feature_shift), .feature_factor = reals(tensor::feature_factor),
        .clients = n[number::clients], .batch = n[number::batch], .bytes = n[number::bytes],
        .all_rows = n[number::all_rows], .stored = n[number::stored], .layers = n[number::layers],
        .widths = n + number::widths, .w = reals(tensor::w), .anchor = reals(tensor::anchor),
        .shift = n[number::has_shift] ? reals(tensor::shift) : nullptr, .rows = integers(tensor::rows),
        .begin = integers(tensor::begin), .weight = static_cast<const double *>(p[tensor::weight]),
        .lr = reals(tensor::lr), .decay = reals(tensor::decay), .pull = reals(tensor::pull), .follow = reals(tensor::follow),
        .batches = n[number::batches], .repeat = n[number::repeat], .row_step = n[number::row_step],
        .row_client = n[number::row_client], .weight_step = n[number::weight_step],
        .weight_client = n[number::weight_client], .kind = n[number::kind], .alphas = n[number::alphas],
        .loss = n[number::loss]};
    Failure failure;
    for_all(round, failure, threads, parallel, [&](Worker &worker, integer c) {
        round.loss ? worker.ascend(c) : worker.descend(c);
    });
    return failure.write_to(to);
}

// Models are n[1] values apart; 0 stands for one common model.
extern "C" integer tally(void **p, const integer *n, integer threads, Parallel *parallel, integer *to) {
    const real *w = (real *)p[0];
    const integer *first = (integer *)p[4], *count = (integer *)p[5];
    double *loss = (double *)p[8], *hits = (double *)p[9];
    const Round round{
        .data = p[1], .place = (integer *)p[2], .label = (integer *)p[3],
        .feature_shift = (real *)p[6], .feature_factor = (real *)p[7],
        .clients = n[0], .batch = n[4], .bytes = n[5], .all_rows = n[2], .stored = n[3], .layers = n[6],
        .widths = n + 7};
    Failure failure;
    for_all(round, failure, threads, parallel, [&](Worker &worker, integer c) {
        worker.tally(c, w + c * n[1], first[c], count[c], loss[c], hits[c]);
    });
    return failure.write_to(to);
}
