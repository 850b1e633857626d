"""Compare fedu-passing with forms of it that were tried and not adopted, and with MOCHA.

    leak tuned      the leak of the graph is λD/(N − 1), and cross-validation chooses λ with lr and η
    leak learned    λ is the one of LEAKS with the smallest squared error so far if each sampled client's step
                    is estimated from those of the others that were sampled in the same round
    momentum        all models also move by β times the last move of their mean, by heavy-ball steps
    learned graph   steps are not passed along the graph of the pull but along exp(−‖w_k − w_ℓ‖²/(s·mean)),
                    with the last models and the mean squared distance of two of them

Data, rounds and tests are those of `benchmarks.passing`; all rows of a case choose from the same lr and η.

    python -m benchmarks.passing_variants --seeds 0-4 [--ledger runs/passing_variants.jsonl] [--folds 3]
        [--only har-linear-steps,…] [--methods momentum,…] [--results FILE] [--table]
"""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

import fedlap as fl
from benchmarks.passing import Case, Loaded, load_activity, load_synthetic, run_command
from benchmarks.passing_methods import METHODS, Entry, over_graph
from fedlap.algorithms.server_state import ClientModels, ClientTable, GlobalModel, Ids
from fedlap.models.model import Stack

LEDGER = Path("runs/passing_variants.jsonl")
LEAKS = (0.1, 0.3, 1.0, 3.0, 10.0)
Matrix = Float64[Tensor, "client client"]


class VariantServer(NamedTuple):
    """Every client's model, the last move of their mean, and the errors of each leak so far."""

    models: ClientTable
    velocity: GlobalModel
    errors: Float[Tensor, "1 leak"]


@dataclass(frozen=True)
class Variant(fl.FedUPassing):
    """FedU that passes steps, with further settings; the first three defaults are those of fedu-passing.

    leak: λ. momentum: β. reach: s of the learned graph, or zero for the graph of the pull.
    learns_leak: whether λ is learned from the steps.
    """

    leak: float = 1.0
    momentum: float = 0.0
    reach: float = 0.0
    learns_leak: bool = False

    @cached_property
    def weights(self) -> Matrix:
        """The weights of the graph."""
        return torch.from_numpy(self.graph.weights.matrix().toarray()).double()

    @cached_property
    def correlations(self) -> Float64[Tensor, "leak client client"]:
        """R for every leak of LEAKS."""
        return torch.stack([correlate(self.weights, leak) for leak in LEAKS])

    def init_server(self, start: Stack) -> VariantServer:
        """Store every client's model."""
        models = ClientModels.start(start, self.graph).models
        return VariantServer(models, torch.zeros_like(start[:1]), start.new_zeros(1, len(LEAKS)))

    def send(self, server: VariantServer, ids: Ids) -> Stack:
        """Send each sampled client its model."""
        return server.models.values[ids]

    def merge(self, server: VariantServer, ids: Ids, w: Stack) -> VariantServer:
        """Take one Laplacian step, pass the steps on, and add momentum to all models."""
        W = server.models.values
        d = self.coupling.mix_(w.clone(), ids, W) - W[ids]
        errors = server.errors
        if self.learns_leak and len(ids) > 1:
            errors = errors + torch.stack([leave_one_out(R, ids, d) for R in self.correlations]).to(errors)
        moved = extend(self.choose_correlation(W, errors), ids, d)
        velocity = moved.mean(0, keepdim=True) + self.momentum * server.velocity
        moved = W + moved + self.momentum * server.velocity
        everyone = torch.arange(len(W))
        return VariantServer(server.models.with_rows(everyone, moved), velocity, errors)

    def choose_correlation(self, W: Stack, errors: Float[Tensor, "1 leak"]) -> Matrix:
        """Return R, along which steps are passed."""
        if self.learns_leak:
            # If a single client was sampled in every round so far, there are no errors, and λ is 1.
            known = bool(errors.any())
            return self.correlations[int(errors.argmin()) if known else LEAKS.index(1.0)]
        if self.reach:
            squared = torch.cdist(W.double(), W.double()).square()
            scale = self.reach * squared.mean()
            a = torch.exp(-squared / scale) if scale > 0 else torch.ones_like(squared)
            return correlate(a.fill_diagonal_(0.0), self.leak)
        return self.fixed_correlation

    @cached_property
    def fixed_correlation(self) -> Matrix:
        """R of the graph of the pull."""
        return correlate(self.weights, self.leak)

    def penalty(self, server: VariantServer, private: None) -> Float[Tensor, ""]:
        """Return (η/2) tr(WᵀLW)."""
        return self.coupling.penalty(server.models.values)

    def personal_models(self, server: VariantServer, private: None, clients: int) -> Stack:
        """Return each client's model."""
        return server.models.values[:clients]


def correlate(a: Matrix, leak: float) -> Matrix:
    """Return the inverse of L + λD/(N − 1), scaled to a unit diagonal."""
    degrees = a.sum(1)
    diagonal = torch.where(degrees > 0, degrees * (1 + leak / (len(a) - 1)), 1.0)
    covariance = torch.linalg.inv(diagonal.diag() - a)
    scale = covariance.diagonal().rsqrt()
    return scale.unsqueeze(1) * covariance * scale


def extend(R: Matrix, ids: Ids, d: Stack) -> Stack:
    """Return R_VS R_SS⁻¹ d_S."""
    shares = torch.linalg.solve(R[ids][:, ids], R[ids]).mT
    return (shares.to(d) @ d).index_copy(0, ids, d)


def leave_one_out(R: Matrix, ids: Ids, d: Stack) -> Float[Tensor, ""]:
    """Return the squared error of every sampled step that is estimated from the other sampled ones."""
    precision = torch.linalg.inv(R[ids][:, ids])
    residual = (precision @ d.double()) / precision.diagonal().unsqueeze(1)
    return residual.square().sum()


def list_methods(couplings: tuple[float, ...]) -> dict[str, Entry]:
    """Return the rows of a case; `couplings` are the values of ηρ for all of them."""
    rates, pull = (0.03, 0.1, 0.3), {"strength": couplings}

    def build(values: dict[str, tuple[float, ...]], **settings: bool) -> Entry:
        return replace(over_graph(Variant, rates=rates, **settings), values={**pull, **values})

    return {
        "fedu-passing": replace(METHODS["fedu-passing"], values=pull, rates=rates),
        "leak tuned": build({"leak": (0.3, 1.0, 3.0)}),
        "leak learned": build({}, learns_leak=True),
        "momentum": build({"momentum": (0.0, 0.3, 0.6)}),
        "learned graph": build({"reach": (0.3, 1.0, 3.0)}),
        "mocha": replace(METHODS["mocha"], values=pull),
    }


def list_cases() -> dict[str, Case]:
    """Return Human Activity with linear models and both synthetic graphs, with five steps per round."""
    cases: dict[str, tuple[Callable[[int], Loaded], tuple[float, ...]]] = {
        "har-linear-steps": (load_activity, (0.03, 0.1)),
        "clusters": (functools.partial(load_synthetic, 5), (0.3, 1.0)),
        "ring": (functools.partial(load_synthetic, 0), (0.3, 1.0)),
    }
    work = {"local_steps": 5}
    return {
        name: Case(load, fl.models.linear, work, list_methods(couplings))
        for name, (load, couplings) in cases.items()
    }


if __name__ == "__main__":
    sys.exit(run_command(list_cases(), "passing variants", "benchmarks.passing_variants", LEDGER, __doc__))
