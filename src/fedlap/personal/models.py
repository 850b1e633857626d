"""One client's model, and all of a run, with everything that is needed to use them on raw values."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor, nn

from fedlap.errors import InputError, unknown
from fedlap.federation import Federation
from fedlap.frames import check_columns
from fedlap.models import Model, Network
from fedlap.parts import Scale
from fedlap.personal.about import About
from fedlap.personal.files import damaged, read_pair, write_pair

ENDING = ".safetensors"
STACK, FACTS = "models.safetensors", "about.json"  # of all models of a run, in a folder of their own


@dataclass(frozen=True, eq=False)
class Personal:
    """A client's model: its parameters, their network, and what turns raw values into its units."""

    client: str
    about: About
    network: Network
    parameters: Float[Tensor, "param"]
    scale: Scale  # constants of this client alone

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
    scale: Scale

    @staticmethod
    def of(federation: Federation, objective: Model, models: Float[Tensor, "client param"]) -> "Personals":
        """Those that were trained on a federation."""
        about = About.of(federation, objective)
        return Personals(federation.clients, about, objective.network, models, federation.scale)

    def place(self, client: str) -> int:
        """Where in the stack a client's model is."""
        if str(client) not in self.clients:
            raise unknown("client", client, self.clients)
        return self.clients.index(str(client))

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
    if about.pictures and x.dtype != torch.uint8 and bool(((x >= 0) & (x <= 255) & (x == x.floor())).all()):
        return x.to(torch.uint8)
    return x


def _both(path: str | Path) -> tuple[Path, Path]:
    path = Path(path)
    if path.suffix != ENDING:
        raise InputError(f"a model is kept in a file whose name ends in {ENDING}; {str(path)!r} does not")
    return path, path.with_suffix(".json")
