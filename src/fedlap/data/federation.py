"""The Federation: clients with their training and test rows."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, SupportsIndex

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlap.data.client_rows import ClientRows
from fedlap.data.columns import MissingRule, RawColumns
from fedlap.data.encoding import Encoding
from fedlap.data.federation_summary import summarise_federation, tabulate_federation
from fedlap.data.frames import FrameSettings, table_from_frame
from fedlap.data.places import Places
from fedlap.data.remarks import leave_out_clients, list_remarks
from fedlap.data.roster import Roster
from fedlap.data.row_weights import check_training_weights, keep_weighted_rows, select_positive
from fedlap.data.splits import RANDOM_SPLIT, Split, SplitName, SplitRows, subsample_rows
from fedlap.data.standardize import UNSCALED, Scaling, Standardizer
from fedlap.data.stored_rows import StoredRows
from fedlap.data.table import Table, table_from_arrays, table_from_dataset, table_from_partitioner
from fedlap.data.target_scale import TargetScale
from fedlap.data.validate import ArrayPair, check_unique_names, parse_label_names
from fedlap.errors import DataWarning, InputError, check_integer, check_number
from fedlap.models import CrossEntropy, Loss, SquaredError
from fedlap.randomness import digest_names, draws


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients with separate training and test rows; integer labels mean classification.

    clients: names of the clients.
    train: training rows of all clients.
    test: test rows of all clients.
    """

    clients: tuple[str, ...]
    train: ClientRows
    test: ClientRows
    labels: tuple[str, ...] | None  # names of the classes; None where targets are real numbers
    scale: Standardizer = UNSCALED
    features: tuple[str, ...] | None = None  # names of the features, where these are columns
    target: str | None = None  # the name of the predicted column
    places: Places | None = None  # where the clients are, if known
    target_scale: TargetScale | None = None  # constants of real targets; None where they are not scaled
    encoding: Encoding | None = None  # how columns of text and dates became features
    raw: RawColumns | None = None  # the columns before encoding, by position in the store
    split: Split = RANDOM_SPLIT  # chose the test rows, and chooses folds
    notes: tuple[str, ...] = ()  # remarks about rows and clients that were left out
    stored: StoredRows | None = None  # the folder of the rows, unless they were changed since

    def __repr__(self) -> str:
        return summarise_federation(self)

    def _repr_html_(self) -> str:
        return tabulate_federation(self)

    def __post_init__(self) -> None:
        check_unique_names(self.clients)
        self._check_rows()
        if (inputs := tuple(self.test.store.shape[1:])) != self.inputs:
            raise InputError(
                f"test rows have features of shape {inputs}; expected {self.inputs}, as in training rows",
                scope="data",
            )
        self.scale.check(len(self.clients), self.inputs)
        if self.target_scale is not None:
            self.target_scale.check(self.outputs, self.labels)
        if self.places is not None:
            self.places.check(len(self.clients))
        for k in (self.train.count == 0).nonzero().flatten().tolist():
            raise InputError(
                f"client {self.clients[k]!r} has no training rows; add rows, remove the client, or leave out "
                "such clients (skip_empty, --skip-empty)",
                scope="data",
            )
        check_training_weights(self.clients, self.train)

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[Any, ArrayPair],
        test_share: float = 0.25,
        seed: int = 0,
        *,
        test: Mapping[Any, ArrayPair] | None = None,
        labels: Iterable[str] | SupportsIndex | None = None,
        scale: Scaling = "pooled",
        skip_empty: bool = False,
        weight: Mapping[Any, Any] | None = None,
    ) -> "Federation":
        """Build a federation from arrays per client: {name: (x, y)}.

        A `test_share` of each client's rows, drawn by `seed` and the client's name, become test rows, unless
        `test` contains them. Integer labels 0, 1, … mean classification (`labels` names or counts them); real
        ones mean regression. `skip_empty` leaves out clients without training rows. `weight` maps each client
        to the weights of its rows, finite and at least 0. They count in training and in the constants below,
        relative to the client's mean weight; scores count every test row once.

        Features are standardised as by the command line: `scale="pooled"` takes the mean and deviation of
        each feature (of each channel of byte images) from all clients' training rows, `"client"` from the
        training rows of each client, and `"none"` leaves features unchanged. `predict` always takes raw
        features. With "pooled" and "client", real targets are standardised too, always by constants of all
        clients' training rows; scores and predictions are in the unit of the data.
        """
        table = table_from_arrays(arrays, test, parse_label_names(labels), weight)
        table = replace(table, skip_empty=skip_empty)
        return cls.from_table(table, None, test_share, seed).standardize(scale)

    @classmethod
    def from_table(
        cls, table: Table, partition: Any = None, test_share: float = 0.25, seed: int = 0
    ) -> "Federation":
        """Split a table into clients: by the client of each row, or by `partition`.

        Features are not scaled: call `standardize` at the end, since `scarce` may still remove rows.
        """
        if not isinstance(test_share, int | float) or not 0 <= test_share < 1:
            raise InputError(
                f"test_share = {test_share}; expected a number in [0, 1)", field="test_share", scope="data"
            )
        clients, row, count = table.assign_rows(partition, seed)
        if table.test is None:
            is_test = table.split.draw_test(SplitRows(row, count, digest_names(clients)), test_share, seed)
        else:
            is_test = table.test[row]
        weight = None if table.weight is None else table.weight[row]
        rows = ClientRows(table.x, row, table.y[row], count, weight)
        train, test = rows.select(~is_test), rows.without_weights().select(is_test)
        places = table.places if partition is None else None  # A partition creates clients of its own.
        notes = table.notes
        if table.skip_empty:
            empty = (train.count == 0).nonzero().flatten().tolist()
            remaining, note = leave_out_clients(clients, empty)
            clients, notes = tuple(clients[k] for k in remaining), notes + note
            train, test = train.reorder(remaining), test.reorder(remaining)
            places = None if places is None else places.reorder(remaining)
        federation = cls(
            clients, train, test, table.labels, features=table.features, target=table.target, places=places,
            raw=table.raw, split=table.split, notes=notes,
        )  # fmt: skip
        return federation if table.raw is None else federation._encode()

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
        levels: Sequence[str] = (),
        task: str = "auto",
        missing: MissingRule = "refuse",
        split: SplitName = "random",
        time: Any = None,
        group: Any = None,
        weight: Any = None,
        skip_empty: bool = False,
        places: Sequence[str] = (),
        partition: Any = None,
        test_share: float = 0.25,
        seed: int = 0,
        scale: Scaling = "pooled",
    ) -> "Federation":
        """Build a federation from a pandas data frame, or from any frame with a method `to_pandas`.

        `client` is the column with the client of each row, or a list of columns, whose cells are joined by
        " / "; `label` is the column to predict, and `features` are all others by default, without `drop`.
        Labels that are text, booleans or integers are classes and keep their names; real numbers are targets
        (`task` overrides). `test` is a frame of test rows, instead of `test_share`. Without a column of
        clients, `partition` assigns the rows. `scale` standardises by training rows, as in `from_arrays`.

        Features that are text or categories become one-hot, those in `levels` too; dates become days.
        `missing` refuses missing cells, drops their rows ("drop"), or fills them ("mean"): numbers with the
        mean, texts with the level "missing". All constants come from training rows. `split="time"` tests the
        last rows of each client by the column `time`; rows with equal cells in the column `group` are all
        training or all test rows. `weight` is a column of weights, as in `from_arrays`. `skip_empty` leaves
        out clients without training rows. `places` are columns of longitude and latitude in degrees, and
        perhaps height in metres, equal in all rows of a client.
        """
        settings = FrameSettings.of(
            client, label, features=features, drop=drop, levels=levels, task=task, missing=missing,
            split=split, time=None if time is None else str(time),
            group=None if group is None else str(group), weight=None if weight is None else str(weight),
            skip_empty=skip_empty, places=places,
        )  # fmt: skip
        table = table_from_frame(frame, settings, test=test)
        federation = cls.from_table(table, partition, test_share, seed).standardize(scale)
        for warning in federation.list_warnings():
            warnings.warn(warning, DataWarning, stacklevel=2)
        return federation

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
        """Build a federation from a PyTorch dataset of pairs (features, label), read into memory once.

        `client` lists the client of each item, or maps clients to items: {name: [0, 5, …]}. Features are
        standardised by training rows, as in `from_arrays`: `scale` is "pooled", "client" or "none".
        """
        table = table_from_dataset(dataset, client, parse_label_names(labels))
        return cls.from_table(table, None, test_share, seed).standardize(scale)

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
        """Build a federation from a Flower Datasets partitioner with a `dataset`; client k is partition k.

        `features` is a column of images or vectors, or several columns of numbers. They are standardised by
        training rows, as in `from_arrays`: `scale` is "pooled", "client" or "none".
        """
        table = table_from_partitioner(partitioner, features, label, parse_label_names(labels))
        return cls.from_table(table, None, test_share, seed).standardize(scale)

    @cached_property
    def digests(self) -> Int64[Tensor, "client"]:
        """Digests of the clients' names, which identify clients in random draws."""
        return digest_names(self.clients)

    @cached_property
    def roster(self) -> Roster:
        """Everything that may be known about the clients without their rows."""
        is_weighted = self.train.relative_weight is not None
        return Roster(self.clients, self.digests, self.train.count, self.labels, is_weighted)

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of one row's features."""
        return tuple(self.train.store.shape[1:])

    @property
    def outputs(self) -> int:
        """The number of model outputs per row: one per class, or one per target."""
        return len(self.labels) if self.labels is not None else int(self.train.y.shape[1])

    @property
    def loss(self) -> Loss:
        """Cross-entropy for classes, squared error for real targets."""
        return CrossEntropy() if self.labels is not None else SquaredError()

    def standardize(self, kind: Scaling) -> "Federation":
        """Return the federation with features standardised by constants from training rows only.

        Unless `kind` is "none", models are trained on standardised real targets too, with one mean and one
        deviation per target of all clients' training rows. Scores and predictions keep the unit of the data.
        """
        scaled = kind != "none" and self.labels is None
        scale = Standardizer.of(kind, self.train)
        return replace(self, scale=scale, target_scale=TargetScale.of(self.train) if scaled else None)

    def to_device(self, device: torch.device, dtype: torch.dtype, *, as_bytes: bool = True) -> "Federation":
        """Copy the federation to a device and scale real values; images stay bytes if `as_bytes`.

        Unscaled features that already have this dtype are not copied within a device.
        """
        if self.target_scale is not None:
            train, test = map(self.target_scale.scale_rows, (self.train, self.test))
            unscaled = replace(self, train=train, test=test, target_scale=None)
            return unscaled.to_device(device, dtype, as_bytes=as_bytes)
        ready = self.scale.kind == "none" and self.train.store.dtype == self.test.store.dtype == dtype
        image = self.train.store.dtype == torch.uint8
        if not ready and not (image and as_bytes):
            return self._apply_scale(device, dtype)
        train = self.train.to_device(self.train.store, self.train.row, device, dtype)
        shared = self.test.store is self.train.store
        test = self.test.to_device(train.store if shared else self.test.store, self.test.row, device, dtype)
        return replace(self, train=train, test=test, scale=self.scale.to_device(device, dtype))

    def pool_clients(self) -> "Federation":
        """Merge all rows into one client; their order depends on the clients' names, not on their order."""
        if self.scale.kind == "client":  # A pooled row no longer has a client, hence no constants.
            return self._apply_scale(self.train.store.device, torch.float64).pool_clients()
        by_name = self.digests.argsort().tolist()
        both = (rows.reorder(by_name) for rows in (self.train, self.test))
        train, test = (replace(rows, count=rows.count.sum(0, keepdim=True)) for rows in both)
        return replace(self, clients=("pooled",), train=train, test=test, places=None)

    def reorder(self, clients: Sequence[str]) -> "Federation":
        """Return the federation with its clients in another order."""
        if sorted(clients) != sorted(self.clients):
            raise InputError(
                "the new order does not name each client exactly once; "
                f"pass the {len(self.clients)} names of federation.clients in another order",
                scope="data",
            )
        index = {name: k for k, name in enumerate(self.clients)}
        order = [index[name] for name in clients]
        train, test = (rows.reorder(order) for rows in (self.train, self.test))
        scale = self.scale.reorder(order)
        places = None if self.places is None else self.places.reorder(order)
        return replace(self, clients=tuple(clients), train=train, test=test, scale=scale, places=places)

    def scarce(
        self, share_of_clients: float = 0.5, keep: float = 0.2, seed: int = 0, *, cut_test: bool = False
    ) -> "Federation":
        """Return the federation with few training rows at some clients.

        share_of_clients: ⌊share·N + ½⌋ clients are cut; `seed` draws them.
        keep: ⌊keep·n + ½⌋ of the n training rows of such a client stay, at least one.
        cut_test: cut their test rows to the same share (as in the paper's published code), at least one.
        """
        for name, share in {"share_of_clients": share_of_clients, "keep": keep}.items():
            if not 0 <= check_number(name, share, zero=True, scope="scarce") <= 1:
                raise InputError(f"{name} = {share}; expected a number in [0, 1]", field=name, scope="scarce")
        chosen = math.floor(share_of_clients * len(self.clients) + 0.5)
        clients = draws(seed, "scarce").keys(self.digests).argsort()[:chosen]
        train = subsample_rows(self.train, self.digests, clients, keep, seed, 1)
        test = subsample_rows(self.test, self.digests, clients, keep, seed, 2) if cut_test else self.test
        return self._refit(train, test)

    def fold(self, number: int, held_out: int, seed: int = 0) -> "Federation":
        """Return the federation with one of `number` folds of its training rows as test rows.

        Each client's training rows are split at random, by `seed` and the client's name, into folds whose
        sizes differ by one at most; its test rows are dropped. A client with fewer rows than folds has no
        test rows in some folds; a single row is never held out, since none would remain to train on. Groups
        stay together, and a split by time trains on the rows before the held-out ones (`data.splits`).

        number: number of folds.
        held_out: the fold that is held out, from 0.
        """
        check_integer("number", number, 2, scope="fold")
        if check_integer("held_out", held_out, 0, scope="fold") >= number:
            raise InputError(
                f"held_out = {held_out}; expected 0 to {number - 1}, for {number} folds",
                field="held_out",
                scope="fold",
            )
        rows = SplitRows(self.train.row, self.train.count, self.digests)
        masks = self.split.draw_fold(rows, number, held_out, seed)
        trains, is_test = keep_weighted_rows(self.train, *masks)
        if not bool(is_test.any()):
            raise InputError(
                f"fold {held_out} of {number} is empty; use fewer folds or more rows", scope="fold"
            )
        return self._refit(self.train.select(trains), self.train.without_weights().select(is_test))

    def list_warnings(self) -> list[str]:
        """Return warnings about valid but unusual data: clients with one label, rows left out, and so on."""
        return list_remarks(self)

    def _encode(self) -> "Federation":
        """Encode the raw columns with constants from training rows; features are not scaled."""
        assert self.raw is not None
        encoding = Encoding.fit(self.raw, *select_positive(self.train))
        store = self.train.store if encoding == self.encoding else encoding.encode(self.raw)
        train, test = (replace(rows, store=store) for rows in (self.train, self.test))
        features = encoding.features
        return replace(self, train=train, test=test, scale=UNSCALED, features=features, encoding=encoding)

    def _refit(self, train: ClientRows, test: ClientRows) -> "Federation":
        """Return the federation with other rows, and constants from these training rows only."""
        federation = replace(self, train=train, test=test)
        if self.raw is not None:
            federation = federation._encode()
        return federation.standardize(self.scale.kind)

    def _check_rows(self) -> None:
        labels = None if self.labels is None else len(self.labels)
        for name, rows in (("training", self.train), ("test", self.test)):
            rows.check(f"{name} rows", len(self.clients), labels)

    def _apply_scale(self, device: torch.device, dtype: torch.dtype) -> "Federation":
        """Standardise all features once, so that the federation is unscaled from then on."""
        self._check_rows()  # Tensors may have been changed in place since the last check.
        train, test = (
            rows.to_device(
                self.scale.standardize_rows(rows, dtype), torch.arange(len(rows.row)), device, dtype
            )
            for rows in (self.train, self.test)
        )
        return replace(self, train=train, test=test, scale=UNSCALED, raw=None, split=RANDOM_SPLIT)
