"""The Federation: whose rows are whose."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from fedlap.errors import InputError
from fedlap.models import CrossEntropy, Loss, SquaredError
from fedlap.parts import UNSCALED, Part, Scale, Scaling
from fedlap.randomness import digests, draws

Rows = tuple[Any, Any]  # features and labels of one client, as arrays or tensors


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients and their rows, training and test kept apart; integer labels mean classification."""

    clients: tuple[str, ...]
    train: Part
    test: Part
    labels: tuple[str, ...] | None  # names of the classes; None where targets are real numbers
    scale: Scale = UNSCALED

    def __post_init__(self) -> None:
        for name, times in Counter(self.clients).items():
            if times > 1:
                raise InputError(f"data: client {name!r} appears twice; give every client its own name")
        if not self.clients:
            raise InputError("data: there are no clients; a federation needs at least one")
        for place in (self.train.count == 0).nonzero().flatten().tolist():
            raise InputError(
                f"data: client {self.clients[place]!r} has no training rows; "
                "leave the client out, or lower test_share"
            )
        for what, part in (("training", self.train), ("test", self.test)):
            self._check(what, part)

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, Rows],
        test_share: float = 0.25,
        seed: int = 0,
        *,
        test: Mapping[str, Rows] | None = None,
        labels: Sequence[str] | int | None = None,
    ) -> "Federation":
        """A federation from each client's own arrays: {name: (x, y)}.

        `test_share` of each client's rows, drawn by `seed` and the client's name, become test rows, unless
        `test` gives them. Whole-number labels 0, 1, … mean classification (`labels` names or counts them);
        real ones mean regression. Nothing is scaled.
        """
        if not 0 <= test_share < 1:
            raise InputError(f"data: test_share = {test_share}; it must be in [0, 1)")
        if not arrays:
            raise InputError("data: there are no clients; a federation needs at least one")
        names = tuple(str(name) for name in arrays)
        given = [_rows(name, rows) for name, rows in zip(names, arrays.values(), strict=True)]
        _same_kind(names, given)
        if test is None:
            split = [_split(name, x, y, test_share, seed) for name, (x, y) in zip(names, given, strict=True)]
            train_rows, test_rows = [pair[0] for pair in split], [pair[1] for pair in split]
        else:
            if extra := {str(name) for name in test} - set(names):
                raise InputError(f"data: client {min(extra)!r} has test rows but no training rows")
            of = {str(name): _rows(str(name), rows) for name, rows in test.items()}
            train_rows, test_rows = (
                given,
                [of.get(n, (x[:0], y[:0])) for n, (x, y) in zip(names, given, strict=True)],
            )
            _same_kind((names[0], *names), [train_rows[0], *test_rows])
        train, held_out = _joined(train_rows), _joined(test_rows)
        return cls(names, train, held_out, _label_names(labels, train, held_out))

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
        """The same rows, to be standardised: constants from training rows only, pooled or client by client.

        Every feature gets its own mean and standard deviation; images (uint8) one pair for each channel.
        """
        if kind == "none":
            return replace(self, scale=UNSCALED)
        if kind not in ("pooled", "client"):
            raise InputError(f"data: scale = {kind!r}; it must be none, pooled or client")
        over = [0, *range(2, self.train.x.dim())] if self.train.x.dtype == torch.uint8 else [0]
        if kind == "pooled":
            groups = [self.train.x]
        else:
            groups = [self.train.client(place)[0] for place in range(len(self.clients))]
        # A feature that never changes is only shifted; a client with one row has no spread to divide by.
        pairs = [torch.std_mean(x.double(), dim=over, correction=0, keepdim=True) for x in groups]
        std, mean = (torch.cat(constants) for constants in zip(*pairs, strict=True))
        return replace(self, scale=Scale(kind, mean, torch.where(std > 0, 1 / std.clamp_min(1e-300), 1.0)))

    def resident(self, device: torch.device, dtype: torch.dtype) -> "Federation":
        """The same federation where it will be used: real features scaled once, images left as bytes."""
        if self.train.x.dtype == torch.uint8:
            return replace(self, train=_moved(self.train, self.train.x, device, dtype),
                           test=_moved(self.test, self.test.x, device, dtype))  # fmt: skip
        parts = []
        for part in (self.train, self.test):
            # Every row is a stack of one here, so that each meets its own client's constants.
            x = self.scale.apply(part.x.unsqueeze(1), part.owner(), dtype).squeeze(1)
            parts.append(_moved(part, x, device, dtype))
        return replace(self, train=parts[0], test=parts[1], scale=UNSCALED)

    def pooled(self) -> "Federation":
        """One client that owns every row, in an order that depends on clients' names, not their places."""
        by_name = self.digests.argsort().tolist()
        if self.scale.kind == "client":
            # Each client's own constants cannot be told from a pooled row: apply them before pooling.
            dtype = torch.float64 if self.train.x.dtype == torch.float64 else torch.float32
            return self.resident(self.train.x.device, dtype).pooled()
        parts = (part.reordered(by_name) for part in (self.train, self.test))
        train, test = (Part(part.x, part.y, part.count.sum(0, keepdim=True)) for part in parts)
        return replace(self, clients=("pooled",), train=train, test=test)

    def reordered(self, clients: Sequence[str]) -> "Federation":
        """The same federation with its clients in another order."""
        if sorted(clients) != sorted(self.clients):
            raise InputError("data: a new order must name each client exactly once")
        places = [self.clients.index(name) for name in clients]
        scale = self.scale
        if scale.kind == "client":
            scale = Scale("client", scale.shift[places], scale.factor[places])
        train, test = (part.reordered(places) for part in (self.train, self.test))
        return Federation(tuple(clients), train, test, self.labels, scale)

    def _check(self, what: str, part: Part) -> None:
        for name, values in (("features", part.x), ("labels", part.y)):
            if values.is_floating_point() and not bool(values.isfinite().all()):
                row = int((~values.isfinite().flatten(1).all(1)).nonzero()[0])
                client, at = self._place(part, row)
                raise InputError(
                    f"data: {name} of client {client!r}, {what} row {at}, hold NaN or infinity; "
                    "fill in or drop such rows first"
                )
        if self.labels is not None and len(part.y):
            bad = (part.y < 0) | (part.y >= len(self.labels))
            if bool(bad.any()):
                row = int(bad.nonzero()[0])
                client, at = self._place(part, row)
                raise InputError(
                    f"data: label {int(part.y[row])} of client {client!r}, {what} row {at}, is out of range; "
                    f"labels are 0 to {len(self.labels) - 1}"
                )

    def _place(self, part: Part, row: int) -> tuple[str, int]:
        place = int(part.owner()[row])
        return self.clients[place], row - int(part.first[place])


def _rows(name: str, rows: Rows) -> tuple[Tensor, Tensor]:
    """One client's features and labels as tensors of a kind that training takes."""
    try:
        x, y = rows
        x, y = (torch.as_tensor(np.ascontiguousarray(v) if isinstance(v, np.ndarray) else v) for v in (x, y))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"data: client {name!r} needs (features, labels) as numeric arrays: {error}"
        ) from error
    if x.dim() == 1:
        x = x.unsqueeze(1)
    if x.dim() < 2 or len(x) != len(y):
        raise InputError(
            f"data: client {name!r} has features of shape {tuple(x.shape)} and labels of shape "
            f"{tuple(y.shape)}; both need one entry for each row"
        )
    if x.is_complex() or y.is_complex():
        raise InputError(f"data: client {name!r} has complex numbers; only real ones can be learned from")
    if x.dtype != torch.uint8 and not x.is_floating_point():
        x = x.float()
    if y.is_floating_point():
        return x, y.reshape(len(y), -1)
    if y.dim() != 1:
        raise InputError(
            f"data: client {name!r} has whole-number labels of shape {tuple(y.shape)}; give one a row"
        )
    return x, y.long()


def _same_kind(names: Sequence[str], given: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Refuse clients whose rows could not stand in one table."""

    def kind(rows: tuple[Tensor, Tensor]) -> str:
        x, y = rows
        features = f"{'byte' if x.dtype == torch.uint8 else 'real'} features {tuple(x.shape[1:])}"
        return f"{features} and {f'real targets {tuple(y.shape[1:])}' if y.is_floating_point() else 'labels'}"

    for name, rows in zip(names, given, strict=True):
        if kind(rows) != kind(given[0]):
            raise InputError(
                f"data: client {name!r} has {kind(rows)}, "
                f"client {names[0]!r} has {kind(given[0])}; make them alike"
            )


def _split(
    name: str, x: Tensor, y: Tensor, test_share: float, seed: int
) -> tuple[tuple[Tensor, Tensor], ...]:
    """Test rows are those with the smallest draws, ⌊share·n + ½⌋ of them; both parts keep their order."""
    held = int(test_share * len(x) + 0.5)
    if held == len(x):
        held = max(0, held - 1)  # a client always keeps a row to train on
    order = draws(seed, "split").permutation(int(digests([name])[0]), 0, len(x))
    test, train = order[:held].sort().values, order[held:].sort().values
    return (x[train], y[train]), (x[test], y[test])


def _joined(rows: Sequence[tuple[Tensor, Tensor]]) -> Part:
    x, y = (torch.cat(tensors) for tensors in zip(*rows, strict=True))
    return Part(x, y, torch.tensor([len(features) for features, _ in rows]))


def _label_names(labels: Sequence[str] | int | None, train: Part, test: Part) -> tuple[str, ...] | None:
    if train.y.is_floating_point():
        if labels is not None:
            raise InputError("data: labels were named but targets are real numbers; give whole-number labels")
        return None
    if labels is None:
        top = max((int(part.y.max()) for part in (train, test) if len(part.y)), default=0)
        labels = max(2, top + 1)
    return tuple(str(n) for n in range(labels)) if isinstance(labels, int) else tuple(map(str, labels))


def _moved(part: Part, x: Tensor, device: torch.device, dtype: torch.dtype) -> Part:
    y = part.y.to(device, dtype) if part.y.is_floating_point() else part.y.to(device)
    return Part(x.to(device), y, part.count)
