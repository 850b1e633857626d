// All steps of a round of dense networks on a CPU: a thread takes a client and makes its steps one after another,
// so that a model and its batch stay in the cache and rows are read where they are stored. Compiled once for a
// machine, with REAL the type of all numbers; shapes are given. What `cuda/` is for a GPU.

#include <atomic>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

#include "layers.hpp"

#define HERE inline
HERE real least(real a, real b) { return std::min(a, b); }
HERE real most(real a, real b) { return std::max(a, b); }
using std::copysign, std::exp, std::log, std::log1p;
#include "dual.hpp"

// The first failure of a call, whichever thread meets it. Row numbers, places in the store and labels are checked
// where they are used, which costs a comparison each; `host.py` checks all that is known of them before.
enum { MEMORY = 1, ROW = 2, PLACE = 3, LABEL = 4, DUAL = 5 };
struct Failure {
    std::atomic<whole> code{0};
    whole client = 0, value = 0;

    bool report(whole what, whole c, whole found) {
        whole none = 0;
        if (code.compare_exchange_strong(none, what)) client = c, value = found;
        return false;
    }
    whole tell(whole *to) const {
        to[0] = client, to[1] = value;
        return code;
    }
};
inline bool within(whole number, whole end) { return number >= 0 && number < end; }

// What clients have and do; of what is there for each, the clients that are at work come first.
struct Round {
    const void *data;  // features, row by row, as bytes or as they are
    const whole *place, *label;
    const real *shift, *factor;
    whole clients, batch, bytes, all_rows, stored, layers;
    const whole *widths;
    real *w = nullptr, *anchor = nullptr;
    const whole *rows = nullptr, *begin = nullptr;
    const double *weight = nullptr;
    const real *lr = nullptr, *keep = nullptr, *pull = nullptr, *drag = nullptr;
    whole batches = 0, repeat = 0, row_step = 0, row_client = 0, weight_step = 0, weight_client = 0, kind = 0, alphas = 0,
          loss = 0;
};

enum { FREE = 0, DRAWN = 1, FOLLOWED = 2, AHEAD = 3 };

// What a thread needs beside models: a batch of bytes as numbers, what leaves layers, slopes, and another model.
struct Worker {
    const Round &round;
    Failure &failure;
    std::vector<whole> weight_at, bias_at;
    std::vector<int> wide;
    std::vector<real> features, other;
    std::vector<std::vector<real>> seen, slope;
    std::vector<const real *> x, next;  // rows of this batch and of that after it
    std::vector<std::vector<const real *>> rows_of;
    whole size = 0;

    Worker(const Round &r, Failure &f) : round(r), failure(f), x(r.batch), next(r.batch), rows_of(r.layers) {
        for (whole l = 0; l < r.layers; ++l) {
            weight_at.push_back(size);
            bias_at.push_back(size + r.widths[l] * r.widths[l + 1]);
            size += (r.widths[l] + 1) * r.widths[l + 1];
            wide.push_back((int)((r.widths[l + 1] + LANES - 1) / LANES * LANES));
            seen.emplace_back(r.batch * wide[l]);
            slope.emplace_back(r.batch * wide[l]);
            if (l)
                for (whole b = 0; b < r.batch; ++b) rows_of[l].push_back(seen[l - 1].data() + b * wide[l - 1]);
        }
        if (r.bytes) features.resize(r.batch * r.widths[0]);
        if (r.kind == AHEAD) other.resize(size);
    }

    // Whether there is such a row, its features are in the store and its label is one that the model scores.
    bool check(whole c, whole row) {
        if (!within(row, round.all_rows)) return failure.report(ROW, c, row);
        if (!within(round.place[row], round.stored)) return failure.report(PLACE, c, round.place[row]);
        if (!within(round.label[row], round.widths[round.layers])) return failure.report(LABEL, c, round.label[row]);
        return true;
    }

    // The row that is the b-th of a batch; false where it is out of range.
    bool bring(whole c, int b, whole row) {
        if (!check(c, row)) return false;
        const whole ins = round.widths[0], at = round.place[row] * ins;
        if (!round.bytes) {
            x[b] = static_cast<const real *>(round.data) + at;
            return true;
        }
        const unsigned char *from = static_cast<const unsigned char *>(round.data) + at;
        real *to = features.data() + b * ins;
        const real shift = round.shift[c], factor = round.factor[c];
        for (whole i = 0; i < ins; ++i) to[i] = (from[i] - shift) * factor;
        x[b] = to;
        return true;
    }

    // All rows of a batch, and how many there are; none where one of them is out of range.
    int read(whole c, whole q, const whole *row) {
        const double *weight = round.weight + c * round.weight_client + q * round.weight_step;
        int n = 0;
        for (; n < round.batch && weight[n] > 0; ++n)
            if (!bring(c, n, row[n])) return 0;
        return n;
    }

    // The row that will be the b-th of the next batch; nothing is done about it where rows are bytes. One that is
    // out of range is padding, or `bring` will report it: until then the row of this batch stands for it.
    void expect(int b, whole row) {
        const bool there = within(row, round.all_rows) && within(round.place[row], round.stored);
        next[b] = there ? static_cast<const real *>(round.data) + round.place[row] * round.widths[0] : x[b];
    }

    // As many rows of a batch as now are at work, if there are any.
    bool look(whole c, whole q, int n) {
        if (round.bytes || q >= round.batches) return false;
        const whole *row = round.rows + c * round.row_client + q * round.row_step;
        for (int b = 0; b < n; ++b) expect(b, row[b]);
        return true;
    }

    void forward(const real *w, int n, bool coming) {
        for (whole l = 0; l < round.layers; ++l) {
            const int ins = (int)round.widths[l], outs = (int)round.widths[l + 1];
            const real *const *in = l ? rows_of[l].data() : x.data();
            real *z = seen[l].data();
            in_blocks<OUTS>(outs, [&](int o, auto O) {
                in_blocks<ROWS>(n, [&](int b, auto R) {
                    multiply<R(), O()>(
                        in + b, w + weight_at[l] + (whole)o * ins, w + bias_at[l] + o, ins, z + b * wide[l] + o, wide[l],
                        l || o || !coming ? nullptr : next.data() + b);
                });
            });
            if (l + 1 < round.layers)
                for (int at = 0; at < n * wide[l]; ++at) z[at] = z[at] <= 0 ? 0 : z[at];  // what is no number stays so
        }
    }

    void step(real *w, real *to, const Pull &pull, int n) {
        for (whole l = round.layers - 1; l >= 0; --l) {
            const int ins = (int)round.widths[l], outs = (int)round.widths[l + 1];
            const real *const *in = l ? rows_of[l].data() : x.data();
            const real *out = slope[l].data();
            real *W = w + weight_at[l], *bias = w + bias_at[l];
            if (l)
                in_blocks<ROWS>(n, [&](int b, auto R) {
                    backward<R()>(
                        W, out + b * wide[l], wide[l], outs, seen[l - 1].data() + b * wide[l - 1],
                        slope[l - 1].data() + b * wide[l - 1], wide[l - 1], ins);
                });
            in_blocks<OUTS>(outs, [&](int o, auto O) {
                const whole at = (whole)o * ins;
                if (pull.drawn) Change<O(), true>{W + at, to + weight_at[l] + at, pull, in, n, out + o, wide[l], ins}();
                else Change<O(), false>{W + at, W + at, pull, in, n, out + o, wide[l], ins}();
            });
            for (int o = 0; o < outs; ++o) {
                real moved = 0;
                for (int b = 0; b < n; ++b) moved += out[b * wide[l] + o];
                real &there = to[bias_at[l] + o];
                bias[o] = (pull.drawn ? pull.begin(bias[o], there) : pull.keep * bias[o]) + moved;
                if (pull.follows) there = pull.after(bias[o], there);
            }
        }
    }

    void descend(whole c) {
        real *w = round.w + c * size, *to = round.kind == FREE ? w : round.anchor + c * size;
        if (round.kind == AHEAD) {
            to = other.data();
            std::copy(w, w + size, to);
        }
        const whole last = round.layers - 1;
        for (whole q = 0; q < round.batches; ++q) {
            const whole *row = round.rows + c * round.row_client + q * round.row_step;
            const double *weight = round.weight + c * round.weight_client + q * round.weight_step;
            const int n = read(c, q, row);
            if (!n) break;
            const bool back = round.kind == AHEAD && q % 2;
            const real lr = back ? round.pull[c] : round.lr[c];
            Pull pull{back ? round.drag[c] : round.keep[c], back ? 1 : round.pull[c], back ? 1 : round.drag[c], false, false};
            pull.drawn = back || round.kind == DRAWN || round.kind == FOLLOWED;
            for (whole again = 0; again < round.repeat; ++again) {
                pull.follows = back || (round.kind == FOLLOWED && again == round.repeat - 1);
                forward(w, n, again == round.repeat - 1 && look(c, q + 1, n));
                for (int b = 0; b < n; ++b)
                    loss_slope(
                        seen[last].data() + b * wide[last], slope[last].data() + b * wide[last],
                        (int)round.widths[last + 1], (real)weight[b], round.label[row[b]], lr);
                step(w, to, pull, n);
            }
        }
    }

    // Row by row: `pull` is what a change of α adds to the model for each x, `drag` the share of rows that work.
    void ascend(whole c) {
        real *w = round.w + c * size;
        const int ins = (int)round.widths[0], outs = (int)round.widths[1];
        const Pull free{1, 0, 0, false, false};
        for (whole q = 0; q < round.batches; ++q) {
            const whole *row = round.rows + c * round.row_client + q * round.row_step;
            const int n = read(c, q, row);
            if (!n) break;
            const real share = round.drag[c] * n;
            const int todo = share > 0 ? (int)std::min(std::ceil(share), (real)n) : 0;  // none where it is no number
            for (int b = 0; b < todo; ++b) {
                const real *own = x[b];
                const whole number = row[b] - round.begin[c];  // among the client's own
                if (!within(number, round.alphas)) {
                    failure.report(DUAL, c, number);
                    return;
                }
                real square = 1, *z = seen[0].data(), *moved = slope[0].data();
                const real none = 0;
                real norm;
                multiply<1, 1>(&own, own, &none, ins, &norm, 1, nullptr);
                square += norm;
                in_blocks<OUTS>(outs, [&](int o, auto O) {
                    multiply<1, O()>(&own, w + (whole)o * ins, w + bias_at[0] + o, ins, z + o, wide[0], nullptr);
                });
                real *alpha = round.anchor + (c * round.alphas + number) * outs;
                for (int k = 0; k < outs; ++k) {
                    const real y = round.label[row[b]] == k ? 1 : -1;
                    const real change = best(round.loss, alpha[k], z[k], y, square * round.pull[c]) - alpha[k];
                    alpha[k] += change;
                    moved[k] = round.pull[c] * change;
                    w[bias_at[0] + k] += moved[k];
                }
                in_blocks<OUTS>(outs, [&](int o, auto O) {
                    real *W = w + (whole)o * ins;
                    Change<O(), false>{W, W, free, &own, 1, moved + o, wide[0], ins}();
                });
            }
        }
    }

    // Sums of loss and of right answers over `count` rows from `first` on.
    void tally(whole c, const real *w, whole first, whole count, double &loss, double &hits) {
        const whole last = round.layers - 1;
        const int outs = (int)round.widths[last + 1];
        if (count < 0 || count > round.all_rows || first < 0 || first > round.all_rows - count) {
            failure.report(ROW, c, first);
            return;
        }
        for (whole done = 0; done < count; done += round.batch) {
            const int n = (int)std::min(round.batch, count - done);
            for (int b = 0; b < n; ++b)
                if (!bring(c, b, first + done + b)) return;
            const bool more = !round.bytes && done + n < count;
            for (int b = 0; b < n && more; ++b) expect(b, std::min(first + done + n + b, first + count - 1));
            forward(w, n, more);
            for (int b = 0; b < n; ++b) {
                const real *z = seen[last].data() + b * wide[last];
                const whole label = round.label[first + done + b];
                const int best = (int)(std::max_element(z, z + outs) - z);  // the first of equals
                real sum = 0;
                for (int k = 0; k < outs; ++k) sum += std::exp(z[k] - z[best]);
                loss += std::log(sum) + z[best] - z[label];
                hits += best == label;
            }
        }
    }
};

// `parallel` is OpenMP's, if there is one: threads of PyTorch that wait for work would be in the way of others.
typedef void Parallel(void (*)(void *), void *, unsigned, unsigned);

// work(worker, c) for every client, or for none after a failure. A thread without memory for a worker leaves its
// clients to the others; only where nobody takes them memory is lacking.
template <class Work> void for_all(const Round &round, Failure &failure, whole threads, Parallel *parallel, Work work) {
    std::atomic<whole> next{0};
    auto some = [&]() noexcept {
        std::optional<Worker> worker;
        try {
            worker.emplace(round, failure);
        } catch (const std::exception &) {
            return;
        }
        for (whole c; !failure.code && (c = next++) < round.clients;) work(*worker, c);
    };
    threads = std::min(threads, round.clients);
    if (threads > 1 && parallel) {
        parallel([](void *all) { (*static_cast<decltype(some) *>(all))(); }, &some, (unsigned)threads, 0);
    } else {
        std::vector<std::thread> others;
        try {
            for (whole t = 1; t < threads; ++t) others.emplace_back(some);
        } catch (const std::exception &) {
            // The system gives no more threads: those that there are do all of the work.
        }
        some();
        for (auto &each : others) each.join();
    }
    if (next < round.clients) failure.report(MEMORY, next, 0);
}

// As a GPU's kernel, with sizes behind its numbers: rows, places in the store, batch, bytes, loss of ascent, layers,
// widths. Returns what failed, and in `to` at which client and with which number.
extern "C" whole steps(void **p, const whole *n, whole threads, Parallel *parallel, whole *to) {
    const Round round{
        .data = p[3], .place = (whole *)p[4], .label = (whole *)p[5], .shift = (real *)p[12], .factor = (real *)p[13],
        .clients = n[0], .batch = n[11], .bytes = n[12], .all_rows = n[9], .stored = n[10], .layers = n[14],
        .widths = n + 15, .w = (real *)p[0], .anchor = (real *)p[2], .rows = (whole *)p[6], .begin = (whole *)p[14],
        .weight = (double *)p[7], .lr = (real *)p[8], .keep = (real *)p[9], .pull = (real *)p[10], .drag = (real *)p[11],
        .batches = n[1], .repeat = n[2], .row_step = n[3], .row_client = n[4], .weight_step = n[5],
        .weight_client = n[6], .kind = n[7], .alphas = n[8], .loss = n[13]};
    Failure failure;
    for_all(round, failure, threads, parallel, [&](Worker &worker, whole c) {
        round.loss ? worker.ascend(c) : worker.descend(c);
    });
    return failure.tell(to);
}

// Models lie n[1] numbers apart, or are one.
extern "C" whole tally(void **p, const whole *n, whole threads, Parallel *parallel, whole *to) {
    const real *w = (real *)p[0];
    const whole *first = (whole *)p[4], *count = (whole *)p[5];
    double *loss = (double *)p[8], *hits = (double *)p[9];
    const Round round{
        .data = p[1], .place = (whole *)p[2], .label = (whole *)p[3], .shift = (real *)p[6], .factor = (real *)p[7],
        .clients = n[0], .batch = n[4], .bytes = n[5], .all_rows = n[2], .stored = n[3], .layers = n[6],
        .widths = n + 7};
    Failure failure;
    for_all(round, failure, threads, parallel, [&](Worker &worker, whole c) {
        worker.tally(c, w + c * n[1], first[c], count[c], loss[c], hits[c]);
    });
    return failure.tell(to);
}
