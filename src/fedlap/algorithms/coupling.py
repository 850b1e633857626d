"""Strength of the pull between neighbours on a graph, and its limits of stability."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.interface import Algorithm, Analysed, MergePlace
from fedlap.algorithms.local_work import LocalWork
from fedlap.errors import InputError, check_number
from fedlap.graph import Graph
from fedlap.graph.implicit import compute_chebyshev_steps, mix_implicitly
from fedlap.graph.weights import CompleteWeights

Mixing = Literal["explicit", "implicit"]
Strength = float | Literal["auto"]  # η, or cross-validation on training rows before training
BlockStrengths = dict[str, float]  # η of blocks of parameters by name
AUTO: Final = "auto"


@dataclass(frozen=True)
class Coupling:
    """Pull between neighbours in a round of R local steps of length μ."""

    graph: Graph
    strength: Strength | BlockStrengths | None
    lr: float
    repeats: int
    smoothing: float | None = None  # ε: a neighbour pulls with its distance over ε, and at most with force 1
    mixing: Mixing = "explicit"  # a gradient step on the penalty, or a backward Euler step

    @staticmethod
    def of(method: Any) -> "Coupling":
        """Return the coupling of a method with a graph, a strength, a mixing and local work."""
        repeats = LocalWork.of(method.local_steps, method.local_epochs).repeats
        return Coupling(method.graph, method.strength, method.lr, repeats, mixing=method.mixing)

    def mix_(
        self,
        w: Float[Tensor, "chosen param"],
        ids: Int64[Tensor, "chosen"] | None,
        others: Float[Tensor, "vertex param"] | None,
    ) -> Float[Tensor, "chosen param"]:
        """Return w_k − μRη Σ_ℓ a_kℓ (w_k − w_ℓ) of the vertices `ids`, or with w⁺ in the sum (implicit).

        Without `ids` these are all vertices.
        `others` has the models of neighbours outside `ids`; without it the sum runs over `ids` only. Explicit
        mixing overwrites w.
        """
        if self.mixing == "implicit":
            return mix_implicitly(self.graph, w, self.step, ids, others)
        return self.graph.mix_(w, self.step, ids, others)

    def penalty(self, W: Float[Tensor, "vertex param"]) -> Float[Tensor, ""]:
        """Return (η/2) tr(WᵀLW)."""
        return self.eta / 2 * self.graph.smoothness(W)

    @property
    def eta(self) -> float:
        """η: the strength if it is given, else min(0.01, ε/(μRρ)) with the smoothing ε.

        Before training, `choose_strength` gives methods without smoothing a strength that suits the data.
        """
        if self.strength is not None:
            return require_number(self.strength)
        return min(0.01, 1 / self.product_per_strength) if self.product_per_strength > 0 else 0.01

    @property
    def is_by_block(self) -> bool:
        """True if blocks of parameters have strengths of their own, so that there is no single η."""
        return isinstance(self.strength, dict)

    @property
    def largest_eta(self) -> float:
        """η, or the largest one of all blocks, which decides stability."""
        if isinstance(self.strength, dict):
            return max(require_strengths(self.strength).values(), default=0.0)
        return self.eta

    @property
    def step(self) -> float:
        """μRη, the length of a mixing step; with strengths by block, of the longest one."""
        return self.lr * self.repeats * self.largest_eta

    @property
    def product_per_strength(self) -> float:
        """μRρ/ε with the smoothing ε; mixing is stable if this times η is at most 2."""
        return self.lr * self.repeats * self.graph.rho / (self.smoothing or 1)

    @property
    def formula(self) -> str:
        """Formula of the product that decides stability, in the names of the settings."""
        return "lr·R·strength·ρ" if self.smoothing is None else "lr·R·strength·ρ/smoothing"

    @property
    def product(self) -> float:
        """μRηρ/ε; mixing is stable up to 2."""
        return self.product_per_strength * self.largest_eta

    def list_exchange_steps(self, exchanges: int) -> list[tuple[float, float]]:
        """Return the step lengths of implicit mixing between peers, two per exchange."""
        return compute_chebyshev_steps(self.product, exchanges)

    @property
    def is_stable(self) -> bool:
        """True if mixing alone never increases the disagreement between clients."""
        return self.mixing == "implicit" or self.product <= 2 * (1 + 1e-12)

    @property
    def delay_product(self) -> float:
        """μRηd with the largest degree d; up to 1, a round takes weighted means of local results."""
        return self.step * self.graph.largest_degree

    @property
    def tolerates_delays(self) -> bool:
        """True if old models of neighbours lead to the models that current ones lead to.

        This needs strongly convex losses and full gradients as well (the page on theory, Late models).
        """
        plain = self.mixing == "explicit" and self.smoothing is None
        return plain and self.delay_product <= 1 + 1e-12

    def explain_delays(self) -> str | None:
        """Return why old models of neighbours may do harm, and what to do; None if they are tolerated."""
        if self.tolerates_delays:
            return None
        if self.mixing == "implicit":
            return (
                "mixing = implicit is not covered by the theorem on late models, so they may lead to other "
                "models or to divergence; use mixing = explicit, or staleness = 0"
            )
        if self.smoothing is not None:
            return "a smoothing is not covered by the theorem on late models; use staleness = 0"
        eta = self.largest_eta
        return (
            f"strength = {eta:g} is too large for late models: lr·R·strength·degree = {self.lr:g}·"
            f"{self.repeats}·{eta:g}·{self.graph.largest_degree:g} = {self.delay_product:.4g} > 1, so "
            f"they may lead to divergence; use a strength of at most {eta / self.delay_product:.4g}, or "
            "staleness = 0"
        )

    def check(self, name: str, allow_unstable: bool, *, by_block: bool = False) -> None:
        """Raise InputError for a negative strength, or an unstable one unless `allow_unstable`.

        by_block: whether blocks of parameters may have strengths of their own.
        """
        if isinstance(self.strength, dict) and not by_block:
            require_number(self.strength)
        check_strength(name, self.strength)
        if self.mixing not in get_args(Mixing):
            raise InputError(
                f"mixing = {self.mixing!r}; use {' or '.join(get_args(Mixing))}",
                field="mixing",
                scope=name,
            )
        if self.strength != AUTO and not self.is_stable and not allow_unstable:
            alternative = "mixing = implicit or " if self.smoothing is None else ""
            divisor = "" if self.smoothing is None else f"/{self.smoothing:g}"
            raise InputError(
                f"strength = {self.largest_eta:g} is too large: {self.formula} = {self.lr:g}·{self.repeats}·"
                f"{self.largest_eta:g}·{self.graph.rho:g}{divisor} = "
                f"{self.product:.4g} > 2, so mixing would diverge; use a strength of at most "
                f"{2 / self.product_per_strength:.4g}, or set {alternative}allow_unstable",
                field="strength",
                scope=name,
            )

    def check_sampling(
        self, name: str, degree: float, sampled: int, clients: int, *alternatives: str
    ) -> None:
        """Raise InputError if mixing with all neighbours would undo more than local steps gain.

        alternatives: further settings of the method that avoid this, after implicit mixing.
        """
        lost = self.step * degree * (1 - sampled / clients)
        if self.mixing == "explicit" and lost >= 1:
            advice = " or ".join(["mixing = implicit", *alternatives])
            raise InputError(
                f"strength = {self.largest_eta:g} is too large for {sampled} of {clients} clients per "
                f"round: lr·R·strength·degree·(1 − S/N) = {lost:.4g}, and from 1 on mixing undoes more "
                f"than local steps gain; use a strength well below {self.largest_eta / lost:.4g}, sample "
                f"more clients, use {advice}, or set allow_unstable",
                field="strength",
                scope=name,
            )


@dataclass(frozen=True)
class OneBlock:
    """All parameters of a model as one block: they cross the wire, and are mixed with one strength.

    `ParameterBlocks` is its counterpart for several blocks.
    """

    has_private: ClassVar[bool] = False

    def share(self, w: Float[Tensor, "row param"]) -> Float[Tensor, "row param"]:
        """Return the parameters that cross the wire, which are all."""
        return w

    def withhold(self, w: Float[Tensor, "row param"]) -> None:
        """Return the parameters that stay with the client: None."""

    def join(self, private: object, shared: Float[Tensor, "row param"]) -> Float[Tensor, "row param"]:
        """Return whole models: those that cross the wire."""
        return shared

    def mix_(
        self,
        coupling: Coupling,
        w: Float[Tensor, "chosen param"],
        ids: Int64[Tensor, "chosen"] | None,
        others: Float[Tensor, "vertex param"] | None,
    ) -> Float[Tensor, "chosen param"]:
        """Mix the models of the vertices `ids`; see `Coupling.mix_`."""
        return coupling.mix_(w, ids, others)

    def scale_pull(self, coupling: Coupling, pull: Float[Tensor, "row param"]) -> Float[Tensor, "row param"]:
        """Return μRη times a pull."""
        return coupling.step * pull

    def penalty(self, coupling: Coupling, W: Float[Tensor, "vertex param"]) -> Float[Tensor, ""]:
        """Return (η/2) tr(WᵀLW)."""
        return coupling.penalty(W)


@runtime_checkable
class Coupled(Protocol):
    """A method that pulls models together over a graph."""

    @property
    def coupling(self) -> Coupling:
        """Strength and step of the mixing in each round."""
        ...


@runtime_checkable
class LaplacianMethod(Algorithm, Coupled, Analysed, Protocol):
    """A method that descends on J(W) = Σ_k F_k(w_k) + (η/2) tr(WᵀLW), on a graph that stays the same."""


def find_merge_place(algorithm: Algorithm) -> MergePlace:
    """Return where the rows of a method meet, with its settings and its graph.

    Implicit mixing solves for all models at once. On a complete graph, or with a server vertex, a vertex has
    all others as its neighbours.
    """
    merges = algorithm.traits.merges
    if merges == "sum":
        return merges
    if merges == "server" or not isinstance(algorithm, Coupled):
        return "server"
    coupling = algorithm.coupling
    joins_all = coupling.graph.server or isinstance(coupling.graph.weights, CompleteWeights)
    return "server" if joins_all or coupling.mixing == "implicit" else "neighbours"


def compute_pull(
    w: Float[Tensor, "1 param"],
    models: Float[Tensor, "neighbour param"],
    weights: Float[Tensor, "neighbour 1"],
    smoothing: float | None,
) -> Float[Tensor, "1 param"]:
    """Return Σ a_ℓ (w − w_ℓ), the pull of neighbours; with smoothing ε over max(‖w − w_ℓ‖, ε)."""
    if smoothing is not None:
        weights = weights / compute_distances(w, models).clamp_min(smoothing).mT
    return (weights * (w - models)).sum(0, keepdim=True)


def require_number(strength: Strength | BlockStrengths) -> float:
    """Return a strength that is a number; raise InputError if it is still to be chosen, or by block."""
    if isinstance(strength, dict):
        raise InputError(
            f"strength = {strength!r} has a value per block of parameters; use one number, or method "
            "fedu or dfedu",
            field="strength",
        )
    if isinstance(strength, str):
        raise InputError(
            f"strength = {strength!r} is chosen from training rows; train the method by fedlap.fit, or set a "
            "number",
            field="strength",
        )
    return strength


def require_strengths(strength: Mapping[str, Any]) -> dict[str, float]:
    """Return strengths by block; raise InputError unless all are numbers from 0."""
    return {
        block: check_number(f"strength.{block}", value, zero=True, scope="algorithm")
        for block, value in strength.items()
    }


def check_strength(name: str, strength: Any) -> None:
    """Raise InputError unless a strength is a number from 0, numbers by block, "auto" or the default."""
    if isinstance(strength, dict):
        require_strengths(strength)
        return
    if isinstance(strength, str) and strength != AUTO:
        raise InputError(
            f"strength = {strength!r}; use a number, or {AUTO!r} to choose it by cross-validation",
            field="strength",
            scope=name,
        )
    if strength is not None and not isinstance(strength, str):
        check_number("strength", strength, zero=True, scope=name)


def compute_distances(
    w: Float[Tensor, "client param"], others: Float[Tensor, "near param"]
) -> Float[Tensor, "client near"]:
    """Return ‖w_k − w_ℓ‖ without storing the differences, and without cancellation for close models."""
    return torch.cdist(w, others, compute_mode="donot_use_mm_for_euclid_dist")
