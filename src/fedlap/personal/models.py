"""Personal models of one client or of a whole run, with everything that prediction on raw values needs."""

import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Num
from torch import Tensor, nn

from fedlap.algorithms import Algorithm
from fedlap.algorithms.local_work import BatchSize
from fedlap.data.client_rows import group_rows
from fedlap.data.columns import FrameLocation
from fedlap.data.federation import Federation
from fedlap.data.frames import check_columns
from fedlap.data.standardize import Standardizer
from fedlap.data.target_scale import TargetScale
from fedlap.errors import DataWarning, InputError, unknown_name_error
from fedlap.models import Model, Network
from fedlap.personal.join_settings import JoinSettings
from fedlap.personal.metadata import TARGET_TENSORS, ModelMetadata
from fedlap.personal.model_files import invalid_field_error, read_model_files, write_model_files
from fedlap.personal.predictions import Predictions
from fedlap.summaries import build_summary, count_nouns, shorten_text, summarise_names

MODEL_FILE_SUFFIX = ".safetensors"
PREDICTION_BLOCK_VALUES = 4_000_000  # values of models or features used together (16 MB in float32)
MODELS_FILE, METADATA_FILE = "models.safetensors", "about.json"  # in the models folder of a run


@dataclass(frozen=True, eq=False)
class Personal:
    """A client's model: its parameters, their network, and the scaling of raw features."""

    client: str
    metadata: ModelMetadata
    network: Network
    parameters: Float[Tensor, "param"]
    scale: Standardizer  # with the constants of this client alone
    target_scale: TargetScale | None = None  # None if the network predicts unscaled targets

    def __repr__(self) -> str:
        name = repr(shorten_text(self.client))
        return build_summary("Personal", name, _summarise_models(self.metadata, self.parameters))

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Names of the classes; None if targets are real numbers."""
        return self.metadata.labels

    @property
    def features(self) -> tuple[str, ...] | None:
        """Names of the features, in the order in which `predict` takes them from an array."""
        return self.metadata.features

    def module(self) -> nn.Module:
        """Return a PyTorch module, which takes features and returns targets scaled as in training."""
        return self.network.module(self.parameters)

    def scores(self, x: Any) -> Float[Tensor, "row output"]:
        """Return the network's output for rows of raw features: one score per class, or the values."""
        place = torch.zeros(1, dtype=torch.int64, device=self.parameters.device)
        raw = restore_bytes(self._check_features(x), self.metadata).to(place.device)
        scaled = self.scale.apply(raw.unsqueeze(0), place, self.parameters.dtype)
        with torch.no_grad():
            scores: Tensor = self.network.scores(self.parameters.unsqueeze(0), scaled)[0]
        return scores if self.target_scale is None else self.target_scale.restore(scores)

    def predict(self, x: Any) -> Int64[Tensor, "row"] | Float[Tensor, "row output"]:
        """Predict rows of raw features: label numbers for classes, the values otherwise."""
        scores = self.scores(x)
        return scores if self.labels is None else scores.argmax(-1)

    def predict_labels(self, x: Any) -> list[str] | Float[Tensor, "row output"]:
        """Predict rows of raw features: label names for classes, the values otherwise."""
        predictions = self.predict(x)
        return (
            predictions if self.labels is None else [self.labels[number] for number in predictions.tolist()]
        )

    def save(self, path: str | Path) -> None:
        """Write model.safetensors and, next to it, model.json, both or neither; nothing is pickled."""
        if self.metadata.architecture is None:
            raise InputError(
                f"client {self.client!r} has a user-defined module, which cannot be saved by name; save "
                "the state_dict() of result.model(…) instead"
            )
        tensors = {"parameters": self.parameters, **_list_constants(self.scale, self.target_scale)}
        write_model_files(*_pair_paths(path), tensors, {"client": self.client, **self.metadata.to_dict()})

    @staticmethod
    def load(path: str | Path) -> "Personal":
        """Load the model that `save` wrote to this path."""
        tensors_path, metadata_path = _pair_paths(path)
        tensors, values = read_model_files(tensors_path, metadata_path)
        metadata = ModelMetadata.parse(values, metadata_path)
        network, parameters, scale, targets = metadata.unpack_tensors(
            tensors, "parameters", (), metadata_path
        )
        if network is None or not isinstance(values.get("client"), str):  # `save` writes both
            raise invalid_field_error(metadata_path, "client" if network else "architecture")
        return Personal(values["client"], metadata, network, parameters, scale, targets)

    def _check_features(self, x: Any) -> Num[Tensor, "row *feature"]:
        """Return rows of raw features as a tensor; raise InputError unless they fit the model."""
        try:
            chosen = self._select_columns(x)
            raw = chosen if isinstance(chosen, Tensor) else torch.from_numpy(np.array(chosen))
        except InputError:
            raise
        except (TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"predict: x cannot be read ({reason}); pass an array of numbers") from error
        if raw.is_complex():
            raise InputError("predict: x holds complex numbers; pass real numbers")
        if raw.is_floating_point() and not bool(raw.isfinite().all()):
            raise InputError("predict: x holds NaN or infinity; fill in or remove such rows first")
        if raw.dim() == 0 or tuple(raw.shape[1:]) != self.metadata.inputs:
            raise InputError(
                f"predict: x has shape {tuple(raw.shape)}; pass rows of features "
                f"of shape {self.metadata.inputs}"
            )
        return raw if raw.dtype == torch.uint8 or raw.is_floating_point() else raw.double()

    def _select_columns(self, x: Any) -> Any:
        """Return a data frame's features in training order, encoded as in training; else return x unchanged.

        A warning states levels that no training row has.
        """
        pandas = sys.modules.get("pandas")  # if it is not imported, x is no data frame
        if self.features is None or pandas is None or not isinstance(x, pandas.DataFrame):
            return x
        named = x.rename(columns=str).reset_index(drop=True)
        encoding = self.metadata.encoding
        check_columns("predict: x", self.features if encoding is None else encoding.names, named.columns)
        if encoding is None:
            return named[list(self.features)]
        features, remarks = encoding.read(named, FrameLocation("predict: x", 0))
        for remark in remarks:
            warnings.warn(remark, DataWarning, stacklevel=5)
        return features


@dataclass(frozen=True, eq=False)
class Personals:
    """The models of all clients of a run, as one stack."""

    clients: tuple[str, ...]
    metadata: ModelMetadata
    network: Network | None  # None if a user-defined module was trained and loaded from files
    models: Float[Tensor, "client param"]
    scale: Standardizer
    target_scale: TargetScale | None = None  # None if the network predicts unscaled targets
    join_settings: JoinSettings | None = None  # None if models of an earlier version were loaded

    def __repr__(self) -> str:
        names = summarise_names(self.clients, "client")
        return build_summary("Personals", names, _summarise_models(self.metadata, self.models))

    @staticmethod
    def of(
        federation: Federation,
        objective: Model,
        models: Float[Tensor, "client param"],
        algorithm: Algorithm,
    ) -> "Personals":
        """Return the models that a method has trained on a federation."""
        return Personals(
            federation.clients,
            ModelMetadata.of(federation, objective),
            objective.network,
            models,
            federation.scale,
            federation.target_scale,
            JoinSettings.of(algorithm, objective.l2),
        )

    def find_position(self, client: str) -> int:
        """Return the position of a client's model in the stack."""
        if str(client) not in self._places:
            raise unknown_name_error("client", client, self.clients)
        return self._places[str(client)]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.clients)}

    def of_client(self, client: str) -> Personal:
        """Return a client's model."""
        place = self.find_position(client)
        network, scales = self.require_network(str(client)), (self.scale.reorder([place]), self.target_scale)
        return Personal(str(client), self.metadata, network, self.models[place], *scales)

    def require_network(self, client: str | None = None) -> Network:
        """Return the network; raise InputError if only the parameters of a user-defined module are known."""
        if self.network is None:
            name = self.clients[0] if client is None else client
            raise InputError(
                f"client {name!r} has a user-defined module, of which only parameters are stored; "
                f"train in Python and use result.model({name!r})"
            )
        return self.network

    def scores(self, clients: Sequence[str], x: Any) -> Float[Tensor, "row output"]:
        """Return the network's output for rows of raw features, row i by the model of clients[i]."""
        scores = self.models.new_empty(len(clients), self.metadata.outputs)
        if not clients:
            return scores
        raw = self.of_client(clients[0])._check_features(x)
        if len(raw) != len(clients):
            raise InputError(
                f"predict: clients has {len(clients)} names for {len(raw)} rows; pass one name per row"
            )
        for places, rows in self._group_clients(clients):
            x_block = raw[rows]
            # Pictures are recognised as bytes per client, as by the model of one client.
            byte_valued = (
                _has_byte_values(x_block)
                if self.metadata.pictures
                else torch.zeros(len(places), dtype=torch.bool)
            )
            for chosen in (byte_valued, ~byte_valued):
                if chosen.any():
                    x_chosen = restore_bytes(x_block[chosen], self.metadata)
                    scores[rows[chosen]] = self._score_stack(places[chosen], x_chosen)
        return scores if self.target_scale is None else self.target_scale.restore(scores)

    def predict(self, clients: Sequence[str], x: Any) -> Predictions:
        """Predict rows of raw features, row i by the model of clients[i]."""
        return Predictions(self.metadata, tuple(map(str, clients)), self.scores(clients, x))

    def join(
        self,
        x: Any,
        y: Any,
        neighbours: Mapping[Any, Any],
        *,
        rounds: int = 5,
        batch: BatchSize = 20,
        lr: float | None = None,
        seed: int = 0,
        name: str = "new",
    ) -> Personal:
        """Train a model for a client that joins after training; all other models stay unchanged.

        The model starts at the mean of its neighbours' models, weighted by the edges to them, and takes the
        local steps of `rounds` rounds on the rows of the new client. If the method mixes over a graph, each
        round ends with the pull towards the neighbours, w ← w − μRη Σ_ℓ a_ℓ (w − w_ℓ).

        x, y: raw rows of the client; labels are numbers 0, 1, … or names. Features are scaled with the run's
            constants or, if every client has separate constants, with constants computed from these rows.
        neighbours: names of clients and the weights of the edges to them, a_ℓ.
        rounds: number of rounds, each with the local work of training; 0 returns the mean.
        batch: rows per mini-batch, or "all".
        lr: step size; default: the step size of the method.
        seed, name: together they determine the mini-batches.
        """
        from fedlap.personal.join import join_client  # here, since it imports this module

        settings: dict[str, Any] = {"rounds": rounds, "batch": batch, "lr": lr, "seed": seed, "name": name}
        return join_client(self, (x, y), neighbours, **settings)

    def _group_clients(
        self, clients: Sequence[str]
    ) -> Iterator[tuple[Int64[Tensor, "client"], Int64[Tensor, "client row"]]]:
        """Yield positions of clients with equally many rows, and these rows, in blocks of bounded size."""
        places = {client: self.find_position(client) for client in dict.fromkeys(clients)}
        row, count = group_rows(torch.tensor([places[client] for client in clients]), len(self.clients))
        begin = count.cumsum(0) - count
        for number in count[count > 0].unique().tolist():
            values = number * math.prod(self.metadata.inputs)
            size = max(1, PREDICTION_BLOCK_VALUES // max(self.models.shape[1], values))
            for block in (count == number).nonzero().flatten().split(size):
                yield block, row[begin[block].unsqueeze(1) + torch.arange(number)]

    def _score_stack(
        self, places: Int64[Tensor, "client"], x: Num[Tensor, "client row *feature"]
    ) -> Float[Tensor, "client row output"]:
        device = self.models.device
        scaled = self.scale.apply(x.to(device), places.to(device), self.models.dtype)
        with torch.no_grad():
            return self.require_network().scores(self.models[places], scaled)

    def save(self, folder: str | Path) -> None:
        """Write models.safetensors and about.json into a folder, both or neither; nothing is pickled."""
        tensors = {"models": self.models, **_list_constants(self.scale, self.target_scale)}
        values = {"clients": list(self.clients), **self.metadata.to_dict()}
        if self.join_settings is not None:
            values["join"] = self.join_settings.to_dict()
        write_model_files(Path(folder) / MODELS_FILE, Path(folder) / METADATA_FILE, tensors, values)

    @staticmethod
    def load(folder: str | Path) -> "Personals":
        """Load the models that `save` wrote to a folder."""
        path = Path(folder) / METADATA_FILE
        tensors, values = read_model_files(Path(folder) / MODELS_FILE, path)
        metadata, clients = ModelMetadata.parse(values, path), values.get("clients")
        if not isinstance(clients, list) or not all(isinstance(name, str) for name in clients):
            raise invalid_field_error(path, "clients")
        network, models, scale, targets = metadata.unpack_tensors(tensors, "models", (len(clients),), path)
        join_settings = JoinSettings.parse(values.get("join"), path)
        return Personals(tuple(clients), metadata, network, models, scale, targets, join_settings)


def restore_bytes(x: Num[Tensor, "row *feature"], metadata: ModelMetadata) -> Num[Tensor, "row *feature"]:
    """Return pictures as the bytes that models were trained on, so that scaling rounds as in training."""
    if metadata.pictures and x.dtype != torch.uint8 and bool(_has_byte_values(x).all()):
        return x.to(torch.uint8)
    return x


def _has_byte_values(x: Num[Tensor, "first *rest"]) -> Bool[Tensor, "first"]:
    """Return, per entry of the first axis, True if all its values are whole numbers from 0 to 255."""
    return ((x >= 0) & (x <= 255) & (x == x.floor())).flatten(1).all(1)


def _list_constants(scale: Standardizer, target_scale: TargetScale | None) -> dict[str, Tensor]:
    """Return the constants of features and targets, by their names in files."""
    targets = () if target_scale is None else (target_scale.mean, target_scale.deviation)
    return {
        "shift": scale.shift,
        "factor": scale.factor,
        **dict(zip(TARGET_TENSORS, targets, strict=False)),
    }


def _pair_paths(path: str | Path) -> tuple[Path, Path]:
    path = Path(path)
    if path.suffix != MODEL_FILE_SUFFIX:
        raise InputError(f"unsupported extension in {str(path)!r}; use {MODEL_FILE_SUFFIX}")
    return path, path.with_suffix(".json")


def _summarise_models(metadata: ModelMetadata, models: Float[Tensor, "*client param"]) -> str:
    """Return the name and the size of one client's model."""
    name = "module" if metadata.architecture is None else metadata.architecture["name"]
    return f"{name}, {count_nouns(models.shape[-1], 'parameter')}"
