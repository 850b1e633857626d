"""One client's model, and all of a run, with everything that is needed to use them on raw values."""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Num
from torch import Tensor, nn

from fedlap.data.client_rows import grouped
from fedlap.data.federation import Federation
from fedlap.data.frames import check_columns
from fedlap.data.standardize import Standardizer
from fedlap.errors import InputError, unknown
from fedlap.models import Model, Network
from fedlap.personal.metadata import About
from fedlap.personal.model_files import damaged, read_pair, write_pair

ENDING = ".safetensors"
BLOCK = 4_000_000  # numbers of models or features that are used together (16 MB)
STACK, FACTS = "models.safetensors", "about.json"  # of all models of a run, in a folder of their own


@dataclass(frozen=True, eq=False)
class Personal:
    """A client's model: its parameters, their network, and what turns raw values into its units."""

    client: str
    about: About
    network: Network
    parameters: Float[Tensor, "param"]
    scale: Standardizer  # constants of this client alone

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Names of the classes; None where targets are real numbers."""
        return self.about.labels

    @property
    def features(self) -> tuple[str, ...] | None:
        """Names of the features, in the order in which `predict` takes them."""
        return self.about.features

    def module(self) -> nn.Module:
        """An ordinary module; it takes features as scaled for training."""
        return self.network.module(self.parameters)

    def scores(self, x: Any) -> Float[Tensor, "row output"]:
        """What the network says of rows of raw features: a score for each class, or the values."""
        at = torch.zeros(1, dtype=torch.int64, device=self.parameters.device)
        raw = as_trained(self._rows(x), self.about).to(at.device)
        seen = self.scale.apply(raw.unsqueeze(0), at, self.parameters.dtype)
        with torch.no_grad():
            made: Tensor = self.network.scores(self.parameters.unsqueeze(0), seen)[0]
        return made

    def predict(self, x: Any) -> Int64[Tensor, "row"] | Float[Tensor, "row output"]:
        """Answers for rows of raw features: the label's number for classes, the values otherwise."""
        scores = self.scores(x)
        return scores if self.labels is None else scores.argmax(-1)

    def answers(self, x: Any) -> list[str] | Float[Tensor, "row output"]:
        """The same with the label's name in the place of its number."""
        made = self.predict(x)
        return made if self.labels is None else [self.labels[number] for number in made.tolist()]

    def save(self, path: str | Path) -> None:
        """Write model.safetensors and, beside it, model.json, both whole or neither; nothing is pickled."""
        if self.about.architecture is None:
            raise InputError(
                f"client {self.client!r} has a module of your own, which has no name to keep it under; save "
                "the state_dict() of result.model(…) instead"
            )
        tensors = {"parameters": self.parameters, "shift": self.scale.shift, "factor": self.scale.factor}
        write_pair(*_both(path), tensors, {"client": self.client, **self.about.described()})

    @staticmethod
    def load(path: str | Path) -> "Personal":
        """The model that was saved under this name."""
        at = _both(path)
        tensors, facts = read_pair(*at)
        about = About.read(facts, at[1])
        network, parameters, scale = about.loaded(tensors, "parameters", (), at[1])
        if network is None or not isinstance(facts.get("client"), str):  # other models are not saved
            raise damaged(at[1], "client" if network else "architecture")
        return Personal(facts["client"], about, network, parameters, scale)

    def _rows(self, x: Any) -> Num[Tensor, "row *feature"]:
        """Checked rows of raw features."""
        try:
            raw = x if isinstance(x, Tensor) else torch.from_numpy(np.array(self._ordered(x)))
        except (TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"predict: x is not an array of numbers: {reason}") from error
        if raw.is_complex():
            raise InputError("predict: x holds complex numbers; give real ones")
        if raw.is_floating_point() and not bool(raw.isfinite().all()):
            raise InputError("predict: x holds NaN or infinity; fill in or drop such rows first")
        if raw.dim() == 0 or tuple(raw.shape[1:]) != self.about.inputs:
            raise InputError(
                f"predict: x has shape {tuple(raw.shape)}; give rows of features of shape {self.about.inputs}"
            )
        return raw if raw.dtype == torch.uint8 or raw.is_floating_point() else raw.double()

    def _ordered(self, x: Any) -> Any:
        """Of a data frame, the columns that have the features' names; anything else as it is."""
        pandas = sys.modules.get("pandas")  # nobody has a frame without it
        if self.features is None or pandas is None or not isinstance(x, pandas.DataFrame):
            return x
        named = x.rename(columns=str)
        check_columns("predict: x", self.features, named.columns)
        return named[list(self.features)]


@dataclass(frozen=True, eq=False)
class Personals:
    """The models of all clients of a run, one stack."""

    clients: tuple[str, ...]
    about: About
    network: Network | None  # None where a user's own module was trained and is not here
    models: Float[Tensor, "client param"]
    scale: Standardizer

    @staticmethod
    def of(federation: Federation, objective: Model, models: Float[Tensor, "client param"]) -> "Personals":
        """Those that were trained on a federation."""
        about = About.of(federation, objective)
        return Personals(federation.clients, about, objective.network, models, federation.scale)

    def place(self, client: str) -> int:
        """Where in the stack a client's model is."""
        if str(client) not in self._places:
            raise unknown("client", client, self.clients)
        return self._places[str(client)]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.clients)}

    def of_client(self, client: str) -> Personal:
        """A client's own model."""
        place = self.place(client)
        if self.network is None:
            raise InputError(
                f"client {str(client)!r} has a module of your own, of which parameters alone are kept; train "
                f"in Python and use result.model({str(client)!r})"
            )
        scale = self.scale.reordered([place])
        return Personal(str(client), self.about, self.network, self.models[place], scale)

    def scores(self, clients: Sequence[str], x: Any) -> Float[Tensor, "row output"]:
        """Scores of rows of raw features, each by the model of the client that is named for it."""
        scores = self.models.new_empty(len(clients), self.about.outputs)
        if not clients:
            return scores
        raw = self.of_client(clients[0])._rows(x)
        for at, rows in self._stacks(clients):
            seen = raw[rows]
            # Whether pictures are bytes is decided per client, as for one client's model.
            held = _holds_bytes(seen) if self.about.pictures else torch.zeros(len(at), dtype=torch.bool)
            for chosen in (held, ~held):
                if chosen.any():
                    scores[rows[chosen]] = self._scored(at[chosen], as_trained(seen[chosen], self.about))
        return scores

    def _stacks(
        self, clients: Sequence[str]
    ) -> Iterator[tuple[Int64[Tensor, "client"], Int64[Tensor, "client row"]]]:
        """Places of clients with equally many rows, and their rows; in blocks of bounded size."""
        places = {client: self.place(client) for client in dict.fromkeys(clients)}
        row, count = grouped(torch.tensor([places[client] for client in clients]), len(self.clients))
        begin = count.cumsum(0) - count
        for number in count[count > 0].unique().tolist():
            values = number * math.prod(self.about.inputs)
            size = max(1, BLOCK // max(self.models.shape[1], values))
            for at in (count == number).nonzero().flatten().split(size):
                yield at, row[begin[at].unsqueeze(1) + torch.arange(number)]

    def _scored(
        self, at: Int64[Tensor, "client"], x: Num[Tensor, "client row *feature"]
    ) -> Float[Tensor, "client row output"]:
        assert self.network is not None  # of_client refuses a module that is not here
        device = self.models.device
        seen = self.scale.apply(x.to(device), at.to(device), self.models.dtype)
        with torch.no_grad():
            return self.network.scores(self.models[at], seen)

    def save(self, folder: str | Path) -> None:
        """Write models.safetensors and about.json into a folder, both or neither; nothing is pickled."""
        tensors = {"models": self.models, "shift": self.scale.shift, "factor": self.scale.factor}
        facts = {"clients": list(self.clients), **self.about.described()}
        write_pair(Path(folder) / STACK, Path(folder) / FACTS, tensors, facts)

    @staticmethod
    def load(folder: str | Path) -> "Personals":
        """Those that were saved in a folder."""
        where = Path(folder) / FACTS
        tensors, facts = read_pair(Path(folder) / STACK, where)
        about, clients = About.read(facts, where), facts.get("clients")
        if not isinstance(clients, list) or not all(isinstance(name, str) for name in clients):
            raise damaged(where, "clients")
        network, models, scale = about.loaded(tensors, "models", (len(clients),), where)
        return Personals(tuple(clients), about, network, models, scale)


def as_trained(x: Num[Tensor, "row *feature"], about: About) -> Num[Tensor, "row *feature"]:
    """Pictures as the bytes that models were trained on, so that nothing is rounded in another way."""
    if about.pictures and x.dtype != torch.uint8 and bool(_holds_bytes(x).all()):
        return x.to(torch.uint8)
    return x


def _holds_bytes(x: Num[Tensor, "first *rest"]) -> Bool[Tensor, "first"]:
    """Whether all values of each are whole numbers from 0 to 255."""
    return ((x >= 0) & (x <= 255) & (x == x.floor())).flatten(1).all(1)


def _both(path: str | Path) -> tuple[Path, Path]:
    path = Path(path)
    if path.suffix != ENDING:
        raise InputError(f"a model is kept in a file whose name ends in {ENDING}; {str(path)!r} does not")
    return path, path.with_suffix(".json")
