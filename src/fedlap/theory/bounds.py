"""Both theorems of the paper with all constants; the page on theory derives them and lists corrections."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """Constants that the theorems depend on, except the step size.

    alpha: α, the constant of strong convexity; None if the losses are not convex.
    beta: β, the constant of smoothness.
    coupling: ηρ.
    share: τ = S/N.
    repeats: R.
    sigma1: σ₁, the square root of the total variance of mini-batch gradients.
    sigma2: σ₂. For Theorem 1, ‖∇F(W*)‖; for Theorem 2, ‖∇F(W)‖² ≤ σ₂² + ‖∇J(W)‖² along the run.
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
        """β_J = β + ηρ, the constant of smoothness of J."""
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
        """α; raises ValueError if there is none, since the theorem then does not apply."""
        if not self.constants.alpha:
            raise ValueError(f"alpha = {self.constants.alpha}; Theorem 1 expects strong convexity, alpha > 0")
        return self.constants.alpha

    @property
    def p(self) -> float:
        """The weight of the drift of local steps."""
        c = self.constants
        curved = 8 * c.coupling**2 / self.alpha + 64 * c.beta**2 / self.alpha
        return (
            2 * c.beta_j
            + curved
            + 6 * c.coupling
            + _divide_by_coupling(12 * c.beta_j**2 + 48 * c.beta**2, c.coupling)
        )

    @property
    def q(self) -> float:
        """The reciprocal of the largest step that leaves half of the descent."""
        c, alpha = self.constants, self.alpha
        curved = 128 * c.coupling * c.beta**2 / alpha**2 + 96 * c.beta**2 / alpha
        return curved + 12 * c.beta_j + _divide_by_coupling(32 * self.p * c.beta**2 / alpha, c.coupling)

    @property
    def largest_step(self) -> float:
        """μ̃₁ = min{1/q, 2/(ηρ)}; zero without coupling, since the paper's constants are then infinite."""
        return min(1 / self.q, _divide_by_coupling(2.0, self.constants.coupling))

    @property
    def c1(self) -> float:
        """C₁, the error due to sampling, mini-batches and mixing."""
        c = self.constants
        return (64 * c.coupling / self.alpha + 48) * c.sigma2**2 + 15 * c.sigma1**2 / c.repeats

    @property
    def c2(self) -> float:
        """C₂, the error due to local steps."""
        c = self.constants
        return self.p * (8 * c.sigma2**2 + 2 * c.sigma1**2 / c.repeats) if self.has_noise else 0.0

    @property
    def has_noise(self) -> bool:
        """True if σ₁ or σ₂ is above zero."""
        return self.constants.sigma1 > 0 or self.constants.sigma2 > 0

    @property
    def least_rounds(self) -> float:
        """4N/(μ̃₁αS), the least number of rounds for which the paper states its rate."""
        step = self.largest_step
        return 4 / (step * self.alpha * self.constants.share) if step else math.inf

    def contraction(self, step: float) -> float:
        """Return a = μ̃τα/4: the bound falls by 1 − a per round, and θ(t) = (1 − a)^−(t + 1)."""
        return step * self.constants.share * self.alpha / 4

    def floor(self, step: float) -> float:
        """Return μ̃²τC₂ + μ̃C₁, the limit of the bound for many rounds."""
        return step**2 * self.constants.share * self.c2 + step * self.c1 if step else 0.0

    def bound(self, step: float, rounds: float, distance: float) -> float:
        """Return the bound after T rounds from Δ⁰ = ‖W⁰ − W*‖².

        With Θ_T = ((1 − a)^−T − 1)/a, the first term is Δ⁰ (α/4) / ((1 − a)^−T − 1).
        """
        exponent = -rounds * math.log1p(-self.contraction(step))
        factor = math.inf if exponent == 0 else 0.0 if exponent > 700 else 1 / math.expm1(exponent)
        return distance * self.alpha / 4 * factor + self.floor(step)

    def plan(self, accuracy: float, distance: float) -> tuple[float, float]:
        """Return a step that the theorem admits, and the rounds after which the bound reaches this accuracy.

        The floor takes half of the accuracy.
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

    It is conditional on the σ₂ measured along the run.
    """

    constants: Constants

    @property
    def u(self) -> float:
        """The weight of the drift of local steps, with the 16β² of the proof."""
        c = self.constants
        curved = c.beta_j**2 / 2 + 2 * c.coupling**2 + 16 * c.beta**2 + 3 * c.coupling * c.beta_j
        return curved + _divide_by_coupling(6 * c.beta_j**3 + 24 * c.beta_j * c.beta**2, c.coupling)

    @property
    def v(self) -> float:
        """The reciprocal of the largest step that leaves half of the descent."""
        c = self.constants
        return 8 * (8 * c.coupling + 15 * c.beta_j + _divide_by_coupling(8 * self.u, c.coupling))

    @property
    def largest_step(self) -> float:
        """μ̃₂ = min{1/v, 2/(ηρ)}."""
        return min(1 / self.v, _divide_by_coupling(2.0, self.constants.coupling))

    @property
    def c3(self) -> float:
        """C₃, the error due to sampling, mini-batches and mixing."""
        c = self.constants
        sampling = (8 * c.coupling + 12 * c.beta_j) * c.sigma2**2
        return sampling + 7.5 * c.beta_j * c.sigma1**2 / c.repeats

    @property
    def c4(self) -> float:
        """C₄, the error due to local steps."""
        c = self.constants
        noise = 4 * c.sigma2**2 + 2 * c.sigma1**2 / c.repeats
        return self.u * noise if noise else 0.0

    def floor(self, step: float) -> float:
        """Return 8 (μ̃²τC₄ + μ̃C₃), the limit of the bound for many rounds."""
        return 8 * (step**2 * self.constants.share * self.c4 + step * self.c3) if step else 0.0

    def bound(self, step: float, rounds: float, gap: float) -> float:
        """Return the bound on the mean of ‖∇J‖² over T rounds, if Δ_J = J(W⁰) − J* is at most `gap`."""
        length = step * self.constants.share * rounds
        return (8 * gap / length if length else math.inf) + self.floor(step)


def compute_lemma1_sigma2(gradient_at_zero: float, beta: float, coupling: float) -> float | None:
    """Return the σ₂ of the paper's Lemma 1, ‖∇F(0)‖ √(ηρ/(ηρ − 2β)), or None unless ηρ > 2β.

    The lemma is false: see the page on theory.
    """
    if coupling <= 2 * beta:
        return None
    return gradient_at_zero * math.sqrt(coupling / (coupling - 2 * beta))


def _divide_by_coupling(value: float, coupling: float) -> float:
    """Return a term of a bound that uses μ̃ ≤ 2/(ηρ): value / (ηρ), infinite without coupling."""
    return value / coupling if coupling > 0 else math.inf
