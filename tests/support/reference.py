"""Algorithms 1 and 2 straight from the paper in plain Python and NumPy: loops, nothing of fedlap.

The draws are also rewritten from their definition (Philox4x32-10, Floyd's choice, the sort by draws), so
that agreement says something about them as well.
"""

import hashlib
import math

import numpy as np

LOW = 0xFFFFFFFF


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & LOW, (p0 >> 32) ^ c[3] ^ k[1], p0 & LOW]
        k = [(k[0] + 0x9E3779B9) & LOW, (k[1] + 0xBB67AE85) & LOW]
    return c


def stream(seed, purpose, round):
    key = hashlib.blake2b(f"{seed}/{purpose}/{round}".encode(), digest_size=8).digest()
    return int.from_bytes(key[:4], "little"), int.from_bytes(key[4:], "little")


def word(key, name, step, index):
    number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    return philox((number & LOW, number >> 32, index // 4, step), key)[index % 4]


def draw_cohort(names, seed, round, share):
    size = max(1, math.floor(share * len(names) + 0.5))
    key = stream(seed, "sample", round)
    by_draw = sorted(names, key=lambda name: (word(key, name, 0, 0) >> 1, word(key, name, 0, 1)))
    return by_draw[:size] if size < len(names) else list(names)


def batches(name, rows, seed, round, batch, steps=None, epochs=None):
    """The row numbers of each of a client's mini-batches in a round."""
    key = stream(seed, "batches", round)
    if batch == "all":
        return [list(range(rows))] * (steps or epochs)
    if epochs is not None:
        order = [sorted(range(rows), key=lambda i: (word(key, name, e, i), i)) for e in range(epochs)]
        return [o[i : i + batch] for o in order for i in range(0, rows, batch)]
    result = []
    for step in range(steps):
        chosen = []
        size = min(batch, rows)
        for j, top in enumerate(range(rows - size, rows)):
            guess = word(key, name, step, j) * (top + 1) >> 32
            chosen.append(top if guess in chosen else guess)
        result.append(chosen)
    return result


def gradient(w, x, y, labels, l2):
    """∇F̃ of multinomial logistic regression on a batch, sample by sample; w is weights, then biases."""
    weight, bias = w[:-labels].reshape(labels, -1), w[-labels:]
    total = np.zeros_like(w)
    for sample, label in zip(x, y, strict=True):
        scores = weight @ sample + bias
        p = np.exp(scores - scores.max())
        p /= p.sum()
        p[label] -= 1
        total += np.concatenate([np.outer(p, sample).ravel(), p])
    return total / len(x) + l2 * w


def local_steps(w, data, name, seed, round, lr, batch, labels, l2, work):
    x, y = data[name]
    for rows in batches(name, len(x), seed, round, batch, **work):
        w = w - lr * gradient(w, x[rows], y[rows], labels, l2)
    return w


def fedu(data, a, start, *, rounds, lr, eta, batch, share, seed, neighbours, labels, l2, work, server=None):
    """Algorithm 1. `data` maps names to (x, y), `a` maps pairs of names to weights.

    A `server` is one more vertex with F₀ = 0, always sampled, which starts at the mean of the clients.
    """
    names = list(data)
    vertices = names if server is None else [*names, server]
    w = {k: start.copy() for k in vertices}
    r = work.get("steps") or work["epochs"]
    for t in range(1, rounds + 1):
        clients = draw_cohort(names, seed, t, share)
        chosen = clients if server is None else [*clients, server]
        after = {
            k: local_steps(w[k], data, k, seed, t, lr, batch, labels, l2, work) if k in clients else w[k]
            for k in vertices
        }
        near = vertices if neighbours == "all" else chosen
        w = {
            k: after[k] - lr * r * eta * sum(a.get((k, o), 0.0) * (after[k] - after[o]) for o in near)
            if k in chosen
            else w[k]
            for k in vertices
        }
    return np.stack([w[k] for k in vertices])


def local(data, start, *, rounds, lr, batch, share, seed, labels, l2, work):
    """Every sampled client by itself."""
    w = {k: start.copy() for k in data}
    for t in range(1, rounds + 1):
        for k in draw_cohort(list(data), seed, t, share):
            w[k] = local_steps(w[k], data, k, seed, t, lr, batch, labels, l2, work)
    return np.stack(list(w.values()))


def everybody(data, start, *, rounds, lr, batch, share, seed, labels, l2, work):
    """One model on all rows, in the order of the clients' digests: R epochs, or R·S steps, a round."""

    def place(name):
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)

    order = sorted(data, key=place)
    pooled = {"pooled": tuple(np.concatenate([data[k][part] for k in order]) for part in (0, 1))}
    if "steps" in work:
        work = {"steps": work["steps"] * max(1, math.floor(share * len(data) + 0.5))}
    w = start.copy()
    for t in range(1, rounds + 1):
        w = local_steps(w, pooled, "pooled", seed, t, lr, batch, labels, l2, work)
    return np.stack([w] * len(data))


def dfedu(data, a, start, *, rounds, lr, eta, batch, seed, labels, l2, work):
    """Algorithm 2."""
    names = list(data)
    w = {k: start.copy() for k in names}
    r = work.get("steps") or work["epochs"]
    for t in range(1, rounds + 1):
        w = {k: local_steps(w[k], data, k, seed, t, lr, batch, labels, l2, work) for k in names}
        inbox = {k: {o: w[o] for o in names if a.get((k, o), 0.0) > 0} for k in names}
        w = {
            k: w[k] - lr * r * eta * sum(a[k, o] * (w[k] - model) for o, model in inbox[k].items())
            for k in names
        }
    return np.stack([w[k] for k in names])
