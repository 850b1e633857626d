"""Data of a comparison in Python: a federation, a function of the seed, or a data set by name."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from fedlap.data import Synthetic
from fedlap.data.federation import Federation
from fedlap.data.partition import NATURAL
from fedlap.errors import InputError
from fedlap.experiments.content_digest import digest_content
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import Loader
from fedlap.experiments.settings import Section
from fedlap.graph import Graph

Loaded = tuple[Federation, Graph | None]
DataLike = str | Section | Federation | Synthetic | Callable[[int], Any]
DRAWN = "drawn by the seed"  # partition of data whose clients differ between seeds


class OwnData:
    """Federations of a user by seed, each loaded once, with the graph that is part of them."""

    def __init__(
        self,
        source: DataLike,
        seeds: Sequence[int],
        loader: Loader | None = None,
        experiment: Experiment | None = None,
    ) -> None:
        """Use the data of an experiment if there is one, else the object or function of the user."""
        self._source, self._seeds = source, seeds
        self._loader, self._experiment = loader, experiment
        self._whole: dict[int, Loaded] = {}
        self._folds: dict[tuple[int, int, int], Loaded] = {}
        self._digests: dict[int, str] = {}

    @property
    def is_named(self) -> bool:
        """True if the data are a registered data set or a file."""
        return self._experiment is not None

    def load(self, seed: int, fold: dict[str, int] | None = None) -> Loaded:
        """Return the federation of a seed, or one with a fold of its training rows held out."""
        if seed not in self._whole:
            self._whole[seed] = self._load_whole(seed)
        if fold is None:
            return self._whole[seed]
        key = seed, fold["number"], fold["held_out"]
        if key not in self._folds:
            federation, known = self._whole[seed]
            self._folds[key] = federation.fold(**fold, seed=seed), known
        return self._folds[key]

    def _load_whole(self, seed: int) -> Loaded:
        if self._loader is not None and self._experiment is not None:
            return self._loader.load(self._experiment.model_copy(update={"seed": seed}))
        found: Any = self._source
        if callable(found):
            found = found(seed)
        if isinstance(found, Synthetic):
            found = found.federation, found.graph
        federation, known = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        if not isinstance(federation, Federation) or not isinstance(known, Graph | None):
            raise InputError(
                f"data: got {type(found).__name__}; pass a data set's name, a Federation, or a function that "
                "takes a seed and returns a Federation, alone or with a Graph",
                field="data",
            )
        return federation, known

    def digest(self, federation: Federation) -> str:
        """Return the digest of a federation's content, computed once."""
        if id(federation) not in self._digests:
            self._digests[id(federation)] = digest_content(federation)
        return self._digests[id(federation)]

    def describe(self) -> Section:
        """Return the section of an experiment that describes the data."""
        if self._experiment is not None:
            return self._experiment.data
        name = getattr(self._source, "__name__", "").replace("<lambda>", "")
        return {"name": name or "own data"}

    def describe_partition(self) -> Section:
        """Return a section that says whether clients have the same rows at every seed."""
        if self._experiment is not None:
            return self._experiment.partition
        return {"name": NATURAL if self._has_same_clients else DRAWN}

    @cached_property
    def _has_same_clients(self) -> bool:
        """Return whether every seed has the same clients with the same targets, split in any way."""
        loaded = [self.load(seed)[0] for seed in self._seeds]
        distinct = list({id(federation): federation for federation in loaded}.values())
        if any(federation.clients != distinct[0].clients for federation in distinct):
            return False
        targets = [_sort_targets(federation) for federation in distinct]
        return all(
            len(one) == len(other) and torch.equal(one, other)
            for others in targets[1:]
            for one, other in zip(targets[0], others, strict=True)
        )


def _sort_targets(federation: Federation) -> list[torch.Tensor]:
    """Return the sorted targets of each client, of training and test rows together."""
    parts = [
        rows.y.flatten(1).double().sum(1) if rows.y.dim() > 1 else rows.y
        for rows in (federation.train, federation.test)
    ]
    split = [
        part.split(rows.count.tolist())
        for part, rows in zip(parts, (federation.train, federation.test), strict=True)
    ]
    return [torch.cat(both).sort().values for both in zip(*split, strict=True)]
