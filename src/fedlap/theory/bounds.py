"""Both theorems of the paper with all their constants; THEORY.md derives them and says what was corrected."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """What the theorems depend on, besides the step size.

    alpha: α, of strong convexity; None where the losses are not convex.
    beta: β, of smoothness.
    coupling: ηρ.
    share: τ = S/N.
    repeats: R.
    sigma1: σ₁, the root of the total variance of mini-batch gradients.
    sigma2: σ₂: for Theorem 1 ‖∇F(W*)‖; for Theorem 2 ‖∇F(W)‖² ≤ σ₂² + ‖∇J(W)‖² along the run.
    """

    alpha: float | None
    beta: float
    coupling: float
    share: float
    repeats: int
    sigma1: float
    sigma2: float

    @property
    def beta_j(self) -> float:
        """β_J = β + ηρ, of smoothness of J."""
        return self.beta + self.coupling

    @property
    def condition(self) -> float | None:
        """κ = β_J/α."""
        return self.beta_j / self.alpha if self.alpha else None


@dataclass(frozen=True)
class Theorem1:
    """E[J(W̃)] − J* ≤ Δ⁰/(μ̃τΘ_T) + μ̃²τC₂ + μ̃C₁ for μ̃ ≤ μ̃₁, in the strongly convex case."""

    constants: Constants

    @property
    def alpha(self) -> float:
        """α, without which there is no such theorem."""
        if not self.constants.alpha:
            raise ValueError("Theorem 1 needs strong convexity")
        return self.constants.alpha

    @property
    def p(self) -> float:
        """The weight of the drift of local steps."""
        c = self.constants
        curved = 8 * c.coupling**2 / self.alpha + 64 * c.beta**2 / self.alpha
        return 2 * c.beta_j + curved + 6 * c.coupling + _over(12 * c.beta_j**2 + 48 * c.beta**2, c.coupling)

    @property
    def q(self) -> float:
        """One over the largest step that leaves half of the descent."""
        c, alpha = self.constants, self.alpha
        curved = 128 * c.coupling * c.beta**2 / alpha**2 + 96 * c.beta**2 / alpha
        return curved + 12 * c.beta_j + _over(32 * self.p * c.beta**2 / alpha, c.coupling)

    @property
    def largest_step(self) -> float:
        """μ̃₁ = min{1/q, 2/(ηρ)}; zero without coupling, where the paper's constants are infinite."""
        return min(1 / self.q, _over(2.0, self.constants.coupling))

    @property
    def c1(self) -> float:
        """C₁, what sampling, mini-batches and mixing leave."""
        c = self.constants
        return (64 * c.coupling / self.alpha + 48) * c.sigma2**2 + 15 * c.sigma1**2 / c.repeats

    @property
    def c2(self) -> float:
        """C₂, what local steps leave."""
        c = self.constants
        return self.p * (8 * c.sigma2**2 + 2 * c.sigma1**2 / c.repeats) if self.noisy else 0.0

    @property
    def noisy(self) -> bool:
        """Whether anything is left at all."""
        return self.constants.sigma1 > 0 or self.constants.sigma2 > 0

    @property
    def least_rounds(self) -> float:
        """4N/(μ̃₁αS), from which on the paper states its rate."""
        step = self.largest_step
        return 4 / (step * self.alpha * self.constants.share) if step else math.inf

    def contraction(self, step: float) -> float:
        """a = μ̃τα/4: the bound falls by 1 − a a round, and θ(t) = (1 − a)^−(t + 1)."""
        return step * self.constants.share * self.alpha / 4

    def floor(self, step: float) -> float:
        """μ̃²τC₂ + μ̃C₁, which no number of rounds gets below."""
        return step**2 * self.constants.share * self.c2 + step * self.c1 if step else 0.0

    def bound(self, step: float, rounds: float, distance: float) -> float:
        """The bound after T rounds from Δ⁰ = ‖W⁰ − W*‖².

        Θ_T = ((1 − a)^−T − 1)/a, so that the first term is Δ⁰ (α/4) / ((1 − a)^−T − 1).
        """
        grown = -rounds * math.log1p(-self.contraction(step))
        first = math.inf if grown == 0 else 0.0 if grown > 700 else 1 / math.expm1(grown)
        return distance * self.alpha / 4 * first + self.floor(step)

    def plan(self, accuracy: float, distance: float) -> tuple[float, float]:
        """A step within the theorem and the rounds after which its bound is this accuracy.

        Half of it is left to the floor.
        """
        step, half = self.largest_step, accuracy / 2
        if self.floor(step) > half:
            linear, square = self.c1, self.constants.share * self.c2
            step = 2 * half / (linear + math.sqrt(linear**2 + 4 * square * half))
        if not step:
            return 0.0, math.inf
        rounds = math.log1p(distance * self.alpha / (4 * half)) / -math.log1p(-self.contraction(step))
        return step, math.ceil(rounds)


@dataclass(frozen=True)
class Theorem2:
    """(1/T) Σ_t E‖∇J(W_t)‖² ≤ 8 (Δ_J/(μ̃τT) + μ̃²τC₄ + μ̃C₃) for μ̃ ≤ μ̃₂, convex or not.

    Conditional on the σ₂ that was measured along the run.
    """

    constants: Constants

    @property
    def u(self) -> float:
        """The weight of the drift of local steps, with the 16β² of the proof."""
        c = self.constants
        curved = c.beta_j**2 / 2 + 2 * c.coupling**2 + 16 * c.beta**2 + 3 * c.coupling * c.beta_j
        return curved + _over(6 * c.beta_j**3 + 24 * c.beta_j * c.beta**2, c.coupling)

    @property
    def v(self) -> float:
        """One over the largest step that leaves half of the descent."""
        c = self.constants
        return 8 * (8 * c.coupling + 15 * c.beta_j + _over(8 * self.u, c.coupling))

    @property
    def largest_step(self) -> float:
        """μ̃₂ = min{1/v, 2/(ηρ)}."""
        return min(1 / self.v, _over(2.0, self.constants.coupling))

    @property
    def c3(self) -> float:
        """C₃, what sampling, mini-batches and mixing leave."""
        c = self.constants
        of_clients = (8 * c.coupling + 12 * c.beta_j) * c.sigma2**2
        return of_clients + 7.5 * c.beta_j * c.sigma1**2 / c.repeats

    @property
    def c4(self) -> float:
        """C₄, what local steps leave."""
        c = self.constants
        left = 4 * c.sigma2**2 + 2 * c.sigma1**2 / c.repeats
        return self.u * left if left else 0.0

    def floor(self, step: float) -> float:
        """8 (μ̃²τC₄ + μ̃C₃)."""
        return 8 * (step**2 * self.constants.share * self.c4 + step * self.c3) if step else 0.0

    def bound(self, step: float, rounds: float, fall: float) -> float:
        """The bound on the mean of ‖∇J‖² over T rounds, Δ_J = J(W⁰) − J* at most `fall`."""
        moved = step * self.constants.share * rounds
        return (8 * fall / moved if moved else math.inf) + self.floor(step)


def lemma1(slope_at_zero: float, beta: float, coupling: float) -> float | None:
    """The σ₂ of the paper's Lemma 1, ‖∇F(0)‖ √(ηρ/(ηρ − 2β)), where ηρ > 2β. It is false: see THEORY.md."""
    if coupling <= 2 * beta:
        return None
    return slope_at_zero * math.sqrt(coupling / (coupling - 2 * beta))


def _over(value: float, coupling: float) -> float:
    """A term that μ̃ ≤ 2/(ηρ) was used for."""
    return value / coupling if coupling > 0 else math.inf
