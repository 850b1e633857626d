"""How strongly a graph pulls models together, and how strongly it may."""

from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

from fedlap.errors import InputError, real
from fedlap.graph import Graph

Mixing = Literal["explicit", "implicit"]


@dataclass(frozen=True)
class Coupling:
    """How strongly neighbours are pulled together in a round of R local steps of length μ."""

    graph: Graph
    strength: float | None
    lr: float
    repeats: int
    smoothing: float = 1.0  # the pull of a neighbour is its distance over this, or less
    mixing: Mixing = "explicit"  # a step against the pull, or to where the pull afterwards leads back from

    @property
    def eta(self) -> float:
        """η as given, or min(0.01, 1/(μRρ)), ρ over the smoothing."""
        if self.strength is not None:
            return self.strength
        return min(0.01, 1 / self.unit) if self.unit > 0 else 0.01

    @property
    def step(self) -> float:
        """μRη, the length of a mixing step."""
        return self.lr * self.repeats * self.eta

    @property
    def unit(self) -> float:
        """μRρ, over the smoothing; mixing is stable where this times η is at most 2."""
        return self.lr * self.repeats * self.graph.rho / self.smoothing

    @property
    def formula(self) -> str:
        """What stability depends on, in the words of the settings."""
        return "lr·R·strength·ρ" if self.smoothing == 1 else "lr·R·strength·ρ/smoothing"

    @property
    def product(self) -> float:
        """μRηρ; mixing is stable up to 2."""
        return self.unit * self.eta

    @property
    def stable(self) -> bool:
        """Whether mixing alone makes no disagreement grow."""
        return self.mixing == "implicit" or self.product <= 2 * (1 + 1e-12)

    def check(self, name: str, allow_unstable: bool) -> None:
        """Refuse a negative strength, and one past the limit of stability unless that is wanted."""
        real("strength", self.eta, zero=True, scope=name)
        if self.mixing not in get_args(Mixing):
            raise InputError(
                f"mixing = {self.mixing!r}; it must be {' or '.join(get_args(Mixing))}",
                field="mixing",
                scope=name,
            )
        if not self.stable and not allow_unstable:
            other = "mixing = implicit or " if self.smoothing == 1 else ""
            raise InputError(
                f"strength = {self.eta:g} is too large: {self.formula} = {self.lr:g}·{self.repeats}·"
                f"{self.eta:g}·{self.graph.rho:g}{'' if self.smoothing == 1 else f'/{self.smoothing:g}'} = "
                f"{self.product:.4g} > 2 and mixing would not settle; take a strength of at most "
                f"{2 / self.unit:.4g}, or set {other}allow_unstable",
                field="strength",
                scope=name,
            )

    def check_sampling(self, name: str, degree: float, sampled: int, clients: int) -> None:
        """Refuse a strength by which mixing with all neighbours takes back more than local steps gain."""
        lost = self.step * degree * (1 - sampled / clients)
        if self.mixing == "explicit" and lost >= 1:
            raise InputError(
                f"strength = {self.eta:g} is too large for {sampled} of {clients} clients a "
                f"round: lr·R·strength·degree·(1 − S/N) = {lost:.4g}, and from 1 on mixing takes back more "
                f"than local steps gain; take a strength well below {self.eta / lost:.4g}, sample "
                "more clients, use mixing = implicit or neighbours = sampled, or set allow_unstable",
                field="strength",
                scope=name,
            )


@runtime_checkable
class Coupled(Protocol):
    """A method that pulls models together over a graph."""

    @property
    def coupling(self) -> Coupling:
        """The mixing of a round."""
        ...
