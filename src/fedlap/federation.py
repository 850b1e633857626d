"""The Federation: whose rows are whose."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, SupportsIndex

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlap.arrays import Given, check_alike, checked, joined, label_names, split
from fedlap.errors import InputError, whole
from fedlap.models import CrossEntropy, Loss, SquaredError
from fedlap.parts import UNSCALED, Part, Scale, Scaling
from fedlap.randomness import digests


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients and their rows, training and test kept apart; integer labels mean classification."""

    clients: tuple[str, ...]
    train: Part
    test: Part
    labels: tuple[str, ...] | None  # names of the classes; None where targets are real numbers
    scale: Scale = UNSCALED

    def __post_init__(self) -> None:
        _check_names(self.clients)
        for place in (self.train.count == 0).nonzero().flatten().tolist():
            raise InputError(
                f"data: client {self.clients[place]!r} has no training rows; leave it out or give it some"
            )

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[Any, Given],
        test_share: float = 0.25,
        seed: int = 0,
        *,
        test: Mapping[Any, Given] | None = None,
        labels: Iterable[str] | SupportsIndex | None = None,
    ) -> "Federation":
        """A federation from each client's own arrays: {name: (x, y)}.

        `test_share` of each client's rows, drawn by `seed` and the client's name, become test rows, unless
        `test` gives them. Whole-number labels 0, 1, … mean classification (`labels` names or counts them);
        real ones mean regression. Nothing is scaled.
        """
        if not 0 <= test_share < 1:
            raise InputError(f"data: test_share = {test_share}; it must be in [0, 1)")
        if not isinstance(arrays, Mapping):
            raise InputError(
                f"data: clients are given as {type(arrays).__name__}; give a dictionary name: (x, y)"
            )
        if not arrays:
            raise InputError("data: there are no clients; a federation needs at least one")
        _check_names(str(name) for name in arrays)
        if isinstance(labels, Iterable):
            named: tuple[str, ...] | int | None = tuple(str(name) for name in labels)
        else:
            named = None if labels is None else whole("data: labels", labels, 1)
        classes = len(named) if isinstance(named, tuple) else named
        given = {str(name): checked(str(name), rows, classes) for name, rows in arrays.items()}
        names = tuple(given)
        check_alike(names, list(given.values()))
        if test is None:
            pairs = [split(name, rows, test_share, seed) for name, rows in given.items()]
        else:
            held = {str(name): checked(str(name), rows, classes, "test row") for name, rows in test.items()}
            for extra in sorted(set(held) - set(names)):
                raise InputError(f"data: client {extra!r} has test rows but no training rows; add some")
            check_alike((names[0], *held), [given[names[0]], *held.values()])
            pairs = [((x, y), held.get(name, (x[:0], y[:0]))) for name, (x, y) in given.items()]
        train, kept = joined([pair[0] for pair in pairs]), joined([pair[1] for pair in pairs])
        return cls(names, train, kept, label_names(named, train, kept))

    @cached_property
    def digests(self) -> Int64[Tensor, "client"]:
        """The clients' numbers for random draws, from their names."""
        return digests(self.clients)

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of one row's features."""
        return tuple(self.train.x.shape[1:])

    @property
    def outputs(self) -> int:
        """How many scores a model gives for a row: one a class, or one a target."""
        return len(self.labels) if self.labels is not None else int(self.train.y.shape[1])

    @property
    def loss(self) -> Loss:
        """Cross-entropy for classes, squared error for real targets."""
        return CrossEntropy() if self.labels is not None else SquaredError()

    def scaled(self, kind: Scaling) -> "Federation":
        """The same rows, to be standardised by constants from training rows only."""
        return replace(self, scale=Scale.of(kind, self.train))

    def resident(self, device: torch.device, dtype: torch.dtype) -> "Federation":
        """The same federation where it will be used: real features scaled once, images left as bytes."""
        if self.train.x.dtype != torch.uint8:
            return self._scaled_for_good(device, dtype)
        train, test = (part.moved(part.x, device, dtype) for part in (self.train, self.test))
        return replace(self, train=train, test=test, scale=self.scale.moved(device, dtype))

    def pooled(self) -> "Federation":
        """One client that owns every row, in an order that depends on clients' names, not their places."""
        if self.scale.kind == "client":  # a pooled row does not tell whose constants are its own
            return self._scaled_for_good(self.train.x.device, torch.float64).pooled()
        by_name = self.digests.argsort().tolist()
        parts = (part.reordered(by_name) for part in (self.train, self.test))
        train, test = (Part(part.x, part.y, part.count.sum(0, keepdim=True)) for part in parts)
        return replace(self, clients=("pooled",), train=train, test=test)

    def reordered(self, clients: Sequence[str]) -> "Federation":
        """The same federation with its clients in another order."""
        if sorted(clients) != sorted(self.clients):
            raise InputError("data: a new order must name each client exactly once")
        at = {name: place for place, name in enumerate(self.clients)}
        places = [at[name] for name in clients]
        train, test = (part.reordered(places) for part in (self.train, self.test))
        return Federation(tuple(clients), train, test, self.labels, self.scale.reordered(places))

    def _scaled_for_good(self, device: torch.device, dtype: torch.dtype) -> "Federation":
        """Real features in the units that models see, and nothing left to scale."""
        parts = []
        for part in (self.train, self.test):
            # Every row is a stack of one here, so that each meets its own client's constants.
            x = self.scale.apply(part.x.unsqueeze(1), part.owner(), dtype).squeeze(1)
            parts.append(part.moved(x, device, dtype))
        return replace(self, train=parts[0], test=parts[1], scale=UNSCALED)


def _check_names(names: Iterable[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(f"data: client {name!r} appears twice; give every client its own name")
