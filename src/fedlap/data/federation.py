"""The Federation: whose rows are whose."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, SupportsIndex

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlap.data.client_rows import ClientRows, spans
from fedlap.data.frames import of_frame
from fedlap.data.standardize import UNSCALED, Scaling, Standardizer
from fedlap.data.table import Table, of_arrays, of_dataset, of_partitions
from fedlap.data.validate import Given, check_names, held_out, smallest
from fedlap.errors import DataWarning, InputError, real, whole
from fedlap.models import CrossEntropy, Loss, SquaredError
from fedlap.randomness import digests, draws


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients and their rows, training and test kept apart; integer labels mean classification."""

    clients: tuple[str, ...]
    train: ClientRows
    test: ClientRows
    labels: tuple[str, ...] | None  # names of the classes; None where targets are real numbers
    scale: Standardizer = UNSCALED
    features: tuple[str, ...] | None = None  # names of the features, where these are columns
    target: str | None = None  # the name of what is to be predicted

    def __post_init__(self) -> None:
        check_names(self.clients)
        self._check_rows()
        if (inputs := tuple(self.test.store.shape[1:])) != self.inputs:
            raise InputError(
                f"test rows have features of shape {inputs}, training rows {self.inputs}; give both the same",
                scope="data",
            )
        self.scale.check(len(self.clients), self.inputs)
        for place in (self.train.count == 0).nonzero().flatten().tolist():
            raise InputError(
                f"client {self.clients[place]!r} has no training rows; leave it out or give it some",
                scope="data",
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
        scale: Scaling = "pooled",
    ) -> "Federation":
        """A federation from each client's own arrays: {name: (x, y)}.

        `test_share` of each client's rows, drawn by `seed` and the client's name, become test rows, unless
        `test` gives them. Whole-number labels 0, 1, … mean classification (`labels` names or counts them);
        real ones mean regression.

        Features are standardised as by the command line: `scale="pooled"` takes mean and deviation of each
        feature (of each channel of byte pictures) from all clients' training rows, `"client"` from each
        client's own, and `"none"` leaves features as they are. `predict` takes raw features in every case.
        """
        return cls.from_table(of_arrays(arrays, test, _named(labels)), None, test_share, seed).scaled(scale)

    @classmethod
    def from_table(
        cls, table: Table, partition: Any = None, test_share: float = 0.25, seed: int = 0
    ) -> "Federation":
        """A table's rows cut into clients: those they belong to by nature, or as `partition` deals them.

        Features are not scaled: the rows may still be thinned (`scarce`), and `scaled` comes after that.
        """
        if not isinstance(test_share, int | float) or not 0 <= test_share < 1:
            raise InputError(
                f"test_share = {test_share}; it must be in [0, 1)", field="test_share", scope="data"
            )
        clients, row, count = table.dealt(partition, seed)
        test = table.test
        held = held_out(digests(clients), count, test_share, seed) if test is None else test[row]
        everything = ClientRows(table.x, row, table.y[row], count)
        train, held_back = everything.kept(~held), everything.kept(held)
        return cls(clients, train, held_back, table.labels, UNSCALED, table.features, table.target)

    @classmethod
    def from_dataframe(
        cls,
        frame: Any,
        client: Any,
        label: Any,
        *,
        test: Any | None = None,
        features: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        task: str = "auto",
        partition: Any = None,
        test_share: float = 0.25,
        seed: int = 0,
        scale: Scaling = "pooled",
    ) -> "Federation":
        """A federation from a data frame of pandas, or of any kind that turns into one (`to_pandas`).

        `client` is the column that says whose row it is, `label` the one to predict; `features` are the
        others, or those named, without `drop`. Text, true or false, and whole numbers are classes and keep
        their names; real numbers are targets (`task` overrides). `test` is a frame of test rows, instead of
        `test_share`. Without a column of clients, `partition` deals the rows out. Features are standardised
        by training rows, as in `from_arrays`: `scale` is "pooled", "client" or "none".
        """
        table = of_frame(frame, client, label, test=test, features=features, drop=drop, task=task)
        made = cls.from_table(table, partition, test_share, seed).scaled(scale)
        for remark in made.remarks():
            warnings.warn(remark, DataWarning, stacklevel=2)
        return made

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        client: Iterable[Any] | Mapping[Any, Iterable[int]],
        test_share: float = 0.25,
        seed: int = 0,
        *,
        labels: Iterable[str] | SupportsIndex | None = None,
        scale: Scaling = "pooled",
    ) -> "Federation":
        """A federation from a PyTorch dataset of pairs (features, label), read into memory once.

        `client` names each item's client, in order, or gives each client's items: {name: [0, 5, …]}. Features
        are standardised by training rows, as in `from_arrays`: `scale` is "pooled", "client" or "none".
        """
        table = of_dataset(dataset, client, _named(labels))
        return cls.from_table(table, None, test_share, seed).scaled(scale)

    @classmethod
    def from_flower(
        cls,
        partitioner: Any,
        features: str | Sequence[str] = "image",
        label: str = "label",
        test_share: float = 0.25,
        seed: int = 0,
        *,
        labels: Iterable[str] | SupportsIndex | None = None,
        scale: Scaling = "pooled",
    ) -> "Federation":
        """A federation from a partitioner of Flower Datasets whose `dataset` is set; client k is partition k.

        `features` is a column of pictures or vectors, or several columns of numbers. They are standardised by
        training rows, as in `from_arrays`: `scale` is "pooled", "client" or "none".
        """
        table = of_partitions(partitioner, features, label, _named(labels))
        return cls.from_table(table, None, test_share, seed).scaled(scale)

    @cached_property
    def digests(self) -> Int64[Tensor, "client"]:
        """The clients' numbers for random draws, from their names."""
        return digests(self.clients)

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of one row's features."""
        return tuple(self.train.store.shape[1:])

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
        return replace(self, scale=Standardizer.of(kind, self.train))

    def resident(self, device: torch.device, dtype: torch.dtype, *, as_bytes: bool = True) -> "Federation":
        """The same federation where it will be used: real features scaled once, images as bytes or so too.

        Features that are already what models see, in this precision, stay where they are.
        """
        ready = self.scale.kind == "none" and self.train.store.dtype == self.test.store.dtype == dtype
        image = self.train.store.dtype == torch.uint8
        if not ready and not (image and as_bytes):
            return self._scaled_for_good(device, dtype)
        train = self.train.moved(self.train.store, self.train.row, device, dtype)
        shared = self.test.store is self.train.store
        test = self.test.moved(train.store if shared else self.test.store, self.test.row, device, dtype)
        return replace(self, train=train, test=test, scale=self.scale.moved(device, dtype))

    def pooled(self) -> "Federation":
        """One client that owns every row, in an order that depends on clients' names, not their places."""
        if self.scale.kind == "client":  # a pooled row does not tell whose constants are its own
            return self._scaled_for_good(self.train.store.device, torch.float64).pooled()
        by_name = self.digests.argsort().tolist()
        parts = (part.reordered(by_name) for part in (self.train, self.test))
        train, test = (replace(part, count=part.count.sum(0, keepdim=True)) for part in parts)
        return replace(self, clients=("pooled",), train=train, test=test)

    def reordered(self, clients: Sequence[str]) -> "Federation":
        """The same federation with its clients in another order."""
        if sorted(clients) != sorted(self.clients):
            raise InputError("a new order must name each client exactly once", scope="data")
        at = {name: place for place, name in enumerate(self.clients)}
        places = [at[name] for name in clients]
        train, test = (part.reordered(places) for part in (self.train, self.test))
        scale = self.scale.reordered(places)
        return replace(self, clients=tuple(clients), train=train, test=test, scale=scale)

    def scarce(
        self, share_of_clients: float = 0.5, keep: float = 0.2, seed: int = 0, *, cut_test: bool = False
    ) -> "Federation":
        """The same federation where some clients have little to train on.

        ⌊share·N + ½⌋ clients, drawn by `seed`, keep ⌊keep·n + ½⌋ of their n training rows, at least one; with
        `cut_test` (as the paper's published code does it) the same share of their test rows, at least one.
        """
        for name, share in {"share_of_clients": share_of_clients, "keep": keep}.items():
            if not 0 <= real(name, share, zero=True, scope="scarce") <= 1:
                raise InputError(f"{name} = {share}; it must be in [0, 1]", field=name, scope="scarce")
        chosen = math.floor(share_of_clients * len(self.clients) + 0.5)
        places = draws(seed, "scarce").keys(self.digests).argsort()[:chosen]
        train = self._thinned(self.train, places, keep, seed, 1)
        test = self._thinned(self.test, places, keep, seed, 2) if cut_test else self.test
        made = replace(self, train=train, test=test)
        return made.scaled(self.scale.kind)

    def fold(self, number: int, held_out: int, seed: int = 0) -> "Federation":
        """The same federation with one of `number` folds of its training rows to test on, not to train on.

        Each client's training rows are cut at random, by `seed` and the client's name, into folds whose sizes
        differ by one at most; its own test rows are left out. With fewer rows than folds a client has none to
        test on in some of them; one row alone is never held out, since there would be none to train on.
        """
        whole("number", number, 2, scope="fold")
        if whole("held_out", held_out, 0, scope="fold") >= number:
            raise InputError(
                f"held_out = {held_out}; of {number} folds it must be one of 0 to {number - 1}",
                field="held_out",
                scope="fold",
            )
        count, stream = self.train.count, draws(seed, "fold")
        place = torch.empty_like(self.train.row)
        order = self.train.first.repeat_interleave(count) + stream.permutations(self.digests, 1, count)
        # Clients begin at different folds, so that small ones do not all leave the same ones empty.
        begin = stream.keys(self.digests) % number
        place[order] = spans(begin, count) % number
        held = (place == held_out) & (count > 1).repeat_interleave(count)
        if not bool(held.any()):
            raise InputError(
                f"of {number} folds number {held_out} is empty; take fewer folds, or more rows", scope="fold"
            )
        return replace(self, train=self.train.kept(~held), test=self.train.kept(held)).scaled(self.scale.kind)

    def remarks(self) -> list[str]:
        """What is not wrong but may surprise: clients with one label only, or without test rows."""
        found = []
        if self.labels is not None and len(self.labels) > 1:
            owner, classes = self.train.owner(), len(self.labels)
            seen = torch.zeros(len(self.clients), classes, dtype=torch.bool)
            seen[owner, self.train.y] = True
            if int(seen.any(0).sum()) == 1:
                return ["all training rows have the same label, so there is nothing to learn"]
            found.append(
                (seen.sum(1) == 1, "training rows of one label only, so a model of their own knows no other")
            )
        found.append((self.test.count == 0, "no test rows, and do not count in test scores"))
        return [
            f"{len(names)} of {len(self.clients)} clients have {what}: {_some(names)}"
            for which, what in found
            if (names := [self.clients[place] for place in which.nonzero().flatten().tolist()])
        ]

    def _thinned(
        self, part: ClientRows, places: Int64[Tensor, "some"], keep: float, seed: int, step: int
    ) -> ClientRows:
        """Only this share of the rows of these clients, drawn by the client's name; at least one."""
        left = (keep * part.count.double() + 0.5).floor().long().clamp(min=1).minimum(part.count)
        wanted = part.count.index_copy(0, places, left[places])
        return part.kept(smallest(draws(seed, "scarce"), step, self.digests, part.count, wanted))

    def _check_rows(self) -> None:
        labels = None if self.labels is None else len(self.labels)
        for name, part in (("training", self.train), ("test", self.test)):
            part.check(f"{name} rows", len(self.clients), labels)

    def _scaled_for_good(self, device: torch.device, dtype: torch.dtype) -> "Federation":
        """Real features in the units that models see, and nothing left to scale."""
        self._check_rows()  # again, since tensors may have been changed in place since then
        train, test = (
            part.moved(self.scale.whole(part, dtype), torch.arange(len(part.row)), device, dtype)
            for part in (self.train, self.test)
        )
        return replace(self, train=train, test=test, scale=UNSCALED)


def _named(labels: Iterable[str] | SupportsIndex | None) -> tuple[str, ...] | int | None:
    if isinstance(labels, Iterable):
        return tuple(str(name) for name in labels)
    return None if labels is None else whole("labels", labels, 1, scope="data")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
