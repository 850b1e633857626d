"""Adaptation: steps on a client's training rows that turn a model of the server into the client's own."""

from fedlap.algorithms.interface import Adapting, Algorithm, FineTuning
from fedlap.algorithms.task import Task
from fedlap.errors import check_integer
from fedlap.models.model import Stack


def is_adapting(algorithm: Algorithm) -> bool:
    """Return whether clients adapt the models that they are scored with to their training rows."""
    return isinstance(algorithm, Adapting) or count_fine_tune_steps(algorithm) > 0


def count_fine_tune_steps(algorithm: Algorithm) -> int:
    """Return the number of fine-tuning steps of a method, which is 0 by default."""
    return (algorithm.fine_tune_steps or 0) if isinstance(algorithm, FineTuning) else 0


def adapt_models(algorithm: Algorithm, w: Stack, task: Task) -> Stack:
    """Return the models that clients are scored with, from the result of `personal_models`.

    w_k ← w_k − μ ∇F_k(w_k)        for every fine-tuning step, over all training rows of the client
    """
    if isinstance(algorithm, Adapting):
        w = algorithm.adapt(w, task)
    for _ in range(count_fine_tune_steps(algorithm)):
        w = w - algorithm.lr * task.full_gradient(w)
    return w


def check_fine_tuning(name: str, steps: int | None) -> None:
    """Raise InputError for a negative number of fine-tuning steps."""
    if steps is not None:
        check_integer("fine_tune_steps", steps, 0, scope=name)
