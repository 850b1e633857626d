"""Late models: how fast rounds of dFedU converge if neighbours' models are old (the page on theory)."""

import math
from dataclasses import dataclass

from scipy.optimize import brentq

from fedlap.errors import InputError, check_integer, check_number


@dataclass(frozen=True)
class DelayTheorem:
    """A round of dFedU contracts towards its fixed point, whatever the ages of the models it uses.

    Errors are measured by the largest distance of a client's model from the fixed point. With ages of at most
    B rounds they fall like rᵗ, where r < 1 solves r^(B+1) = γ(|1 − x| r^B + x).

    contraction: γ, the Lipschitz constant of a round's local steps.
    product: x = μRηd with the largest degree d.
    """

    contraction: float
    product: float

    @property
    def gain(self) -> float:
        """γ(|1 − x| + x): the most by which a round multiplies the largest error among the models it uses."""
        return self.contraction * (abs(1 - self.product) + self.product)

    @property
    def holds(self) -> bool:
        """True if models of any age lead to the fixed point."""
        return self.gain < 1

    @property
    def largest_product(self) -> float:
        """The bound (1 + 1/γ)/2, below which the product must stay."""
        return (1 + 1 / self.contraction) / 2 if self.contraction else math.inf

    def compute_rate(self, age: int) -> float:
        """Return r for models that are at most `age` rounds old."""
        self_gain, neighbour_gain = self._gains
        if check_integer("age", age, 0) == 0 or neighbour_gain == 0:
            return self.gain
        return float(
            brentq(lambda r: r**age * (r - self_gain) - neighbour_gain, 0, max(1.0, self.gain), xtol=1e-15)
        )

    def compute_rate_at_losses(self, share: float) -> float:
        """Return r for expected errors if each message is lost with probability π.

        The last message that arrived stands in. The larger solution of (r − γ|1 − x|)(r − π) = γx(1 − π)r.
        """
        lost = check_number("share", share, zero=True)
        if lost > 1:
            raise InputError(f"share = {share}; expected a number from 0 to 1", field="share")
        self_gain, neighbour_gain = self._gains
        half = (self_gain + lost + neighbour_gain * (1 - lost)) / 2
        return half + math.sqrt(max(0.0, half**2 - self_gain * lost))

    @property
    def _gains(self) -> tuple[float, float]:
        """Return γ|1 − x| and γx, the factors of a client's own error and of its neighbours' errors."""
        return self.contraction * abs(1 - self.product), self.contraction * self.product


def compute_contraction(alpha: float, beta: float, lr: float, steps: int) -> float:
    """Return the Lipschitz constant of gradient steps on losses with curvature between α and β.

    It is (1 − μα)^R up to a step length μ of 2/(α + β), and below 1 up to 2/β.
    """
    return max(abs(1 - lr * alpha), abs(1 - lr * beta)) ** steps
