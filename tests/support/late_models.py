"""Rounds of dFedU with quadratic losses in NumPy, in which neighbours' models may be old."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch

from fedlap.randomness import Draws, derive_keys, digest_names

Models = np.ndarray  # (client, param)
Ages = np.ndarray  # (client, neighbour): the age in rounds of the model that each client uses of each other
ChooseAges = Callable[[int, np.ndarray], Ages]  # from the round and the models sent in each round so far

ROUNDS = 128  # whose numbers are drawn together


@dataclass(frozen=True, eq=False)
class QuadraticPeers:
    """Peers with F_k(w) = ½ wᵀH_k w − b_kᵀw, R full-gradient steps of length μ, and a step s = μRη of mixing.

    hessian: H_k. target: b_k. matrix: a_kℓ.
    """

    hessian: np.ndarray
    target: np.ndarray
    matrix: np.ndarray
    lr: float
    steps: int
    strength: float

    @property
    def step(self):
        """μRη."""
        return self.lr * self.steps * self.strength

    @property
    def product(self):
        """μRηd with the largest degree d."""
        return float(self.step * self.matrix.sum(1).max())

    @cached_property
    def curvature(self):
        """The smallest and the largest eigenvalue of all H_k."""
        values = np.linalg.eigvalsh(self.hessian)
        return float(values.min()), float(values.max())

    @property
    def laplacian(self):
        return np.diag(self.matrix.sum(1)) - self.matrix

    @cached_property
    def local_map(self):
        """M_k and c_k of the local steps w_k ← M_k w_k + c_k."""
        identity = np.eye(self.hessian.shape[1])
        powers = [np.broadcast_to(identity, self.hessian.shape)]
        for _ in range(self.steps):
            powers.append(powers[-1] @ (identity - self.lr * self.hessian))
        return powers[-1], self.lr * np.einsum("kij,kj->ki", sum(powers[:-1]), self.target)

    def train(self, W):
        """Take the local steps of every client."""
        powers, shift = self.local_map
        return np.einsum("kij,kj->ki", powers, W) + shift

    def mix(self, trained, received):
        """Pull each client's model towards the received ones, of shape (client, neighbour, param)."""
        pull = self.matrix.sum(1)[:, None] * trained - np.einsum("kl,kld->kd", self.matrix, received)
        return trained - self.step * pull

    @cached_property
    def fixed_point(self):
        """The models that a round without delays does not change, from a linear system."""
        powers, shift = self.local_map
        clients, width = self.target.shape
        mixing = np.kron(np.eye(clients) - self.step * self.laplacian, np.eye(width))
        local = np.zeros((clients * width,) * 2)
        for k in range(clients):
            block = slice(k * width, (k + 1) * width)
            local[block, block] = powers[k]
        solution = np.linalg.solve(np.eye(len(local)) - mixing @ local, mixing @ shift.ravel())
        return solution.reshape(clients, width)

    @cached_property
    def optimum(self):
        """W*, the minimiser of J."""
        clients, width = self.target.shape
        system = self.strength * np.kron(self.laplacian, np.eye(width))
        for k in range(clients):
            block = slice(k * width, (k + 1) * width)
            system[block, block] += self.hessian[k]
        return np.linalg.solve(system, self.target.ravel()).reshape(clients, width)

    def objective(self, W):
        """J(W)."""
        losses = np.einsum("ki,kij,kj->", W, self.hessian, W) / 2 - (self.target * W).sum()
        return losses + self.strength / 2 * np.trace(W.T @ self.laplacian @ W)

    def run(self, start, rounds, choose_ages, train=None, awake=None):
        """Return the models after 0, 1, …, `rounds` rounds; the first round uses no old models.

        train: the local work in a round, by default `train`. awake: (round, client), False where a client
        does nothing.
        """
        W, path = start, [start]
        sent = np.empty((rounds, *start.shape))
        places = np.arange(len(start))
        for done in range(rounds):
            trained = self.train(W) if train is None else train(done, W)
            active = np.full((len(W), 1), True) if awake is None else awake[done][:, None]
            sent[done] = np.where(active, trained, sent[done - 1]) if done else trained
            ages = np.broadcast_to(choose_ages(done, sent[: done + 1]), self.matrix.shape).clip(0, done)
            W = np.where(active, self.mix(trained, sent[done - ages, places]), W)
            path.append(W)
        return np.array(path)

    def measure_errors(self, path):
        """Return the largest distance of a client's model from the fixed point, after each round."""
        return np.linalg.norm(path - self.fixed_point, axis=2).max(1)


def draw_peers(matrix, product, lr=0.1, steps=3, curvature=(0.5, 4.0), width=3, seed=0):
    """Draw peers whose H_k have eigenvalues between these, both included, at a strength with this μRηd."""
    rng = np.random.default_rng(seed)
    clients = len(matrix)
    values = rng.uniform(*curvature, (clients, width))
    values[:, 0], values[0, -1] = curvature[0], curvature[1]
    basis = np.linalg.qr(rng.normal(size=(clients, width, width)))[0]
    hessian = np.einsum("kij,kj,klj->kil", basis, values, basis)
    strength = product / (lr * steps * matrix.sum(1).max())
    return QuadraticPeers(hessian, rng.normal(size=(clients, width)), matrix, lr, steps, strength)


def fix_age(age):
    """Every client always uses models of this age."""
    return lambda done, sent: age


def draw_ages(most, seed=0):
    """Draw ages from 0 to `most` for every round, client and neighbour."""

    def choose(done, sent):
        return (draw_uniform(seed, done, sent.shape[1]) * (most + 1)).astype(int)

    return choose


def lose_messages(share, seed=0):
    """Lose this share of all messages; the last one that arrived stands in."""
    last = 0

    def choose(done, sent):
        nonlocal last
        last = np.where(draw_uniform(seed, done, sent.shape[1]) < share, last, done)
        return done - last

    return choose


def draw_uniform(seed, done, clients):
    """Draw a number between 0 and 1 for each client and neighbour: a function of seed, round and edge."""
    return draw_rounds(seed, done // ROUNDS, clients)[done % ROUNDS]


@cache
def draw_rounds(seed, block, clients):
    """Draw the numbers of several rounds together, which takes little more time than those of one."""
    edges = digest_names([f"{k} {other}" for k in range(clients) for other in range(clients)])
    rounds = range(block * ROUNDS, (block + 1) * ROUNDS)
    keys = derive_keys([seed], "coin", rounds, torch.device("cpu"))
    words = Draws(keys).words(edges.expand(ROUNDS, -1), 0, 1)
    return (words.numpy()[..., 0] + 0.5).reshape(ROUNDS, clients, clients) / 2**32
