"""What training gave."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from fedlap.algorithms import Algorithm, State
from fedlap.algorithms.local_work import BatchSize
from fedlap.data.federation import Federation
from fedlap.models import Model
from fedlap.personal import Personal, Personals, joined
from fedlap.training.scores import Score


@dataclass(frozen=True, eq=False)
class Origin:
    """All that fixes the numbers of a run, as it began; a resumed run is compared with it."""

    federation: Federation  # its clients in the order of the state's rows
    algorithm: Algorithm  # bound to these clients
    objective: Model
    start: Any
    settings: dict[str, Any]  # of the schedule, and the seed


@dataclass(frozen=True, eq=False)
class Progress:
    """Where a run is: all that it needs to go on exactly as if it had never stopped."""

    round: int  # rounds done
    server: State
    private: State
    sent: tuple[int, int]  # bytes by and to clients so far
    seconds: float  # of training so far
    scores: list[Score]
    origin: Origin | None = None  # None where it was read from a checkpoint

    @property
    def clients(self) -> tuple[str, ...] | None:
        """Names of the clients in the order of the state's rows, where that is known."""
        return None if self.origin is None else self.origin.federation.clients


@dataclass(frozen=True, eq=False)
class Result:
    """Every client's model, and how far the run is: what server and clients keep, and all scores.

    `models` has a row per client, in the order of `federation.clients`. Rows of `server` and `private` are in
    the order of `progress.clients`, which is another one where a run was resumed with reordered clients.
    """

    algorithm: Algorithm
    federation: Federation
    objective: Model  # the network, its loss and its L2 term
    models: Float[Tensor, "client param"]
    progress: Progress

    @property
    def server(self) -> State:
        """What the server keeps."""
        return self.progress.server

    @property
    def private(self) -> State:
        """What the clients keep."""
        return self.progress.private

    @property
    def scores(self) -> list[Score]:
        """Round by round."""
        return self.progress.scores

    @property
    def personals(self) -> Personals:
        """All clients' models with everything that is needed to use them on raw values, or to keep them."""
        return Personals.of(self.federation, self.objective, self.models)

    def personal(self, client: str) -> Personal:
        """A client's own model, to be used on raw values or saved."""
        return self.personals.of_client(client)

    def model(self, client: str) -> nn.Module:
        """A client's own model, an ordinary module; it takes features as scaled for training."""
        return self.personal(client).module()

    def predict(self, client: str, x: Any) -> Tensor:
        """A client's answers for raw features: the label's number for classes, the values otherwise."""
        return self.personal(client).predict(x)

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
        """A model for a client that comes after training; nobody else's model changes.

        It starts at the mean of its neighbours' models, weighted by the edges to them, and makes the local
        steps of some rounds on its own rows; where the method pulls neighbours together over a graph, each
        round ends with the pull towards them, w ← w − μRη Σ_ℓ a_ℓ (w − w_ℓ).

        x, y: its rows, raw; labels by their numbers 0, 1, … or by their names. Features are scaled by the
            run's constants or, where every client has its own, by constants from these rows.
        neighbours: names of clients and the weights of the edges to them, a_ℓ.
        rounds: how many, each as much work as in training; 0 gives the mean.
        batch: rows of a mini-batch, or "all".
        lr: the length of a step; by default the method's own.
        seed, name: which fix the mini-batches.
        """
        how: dict[str, Any] = {"rounds": rounds, "batch": batch, "lr": lr, "seed": seed, "name": name}
        return joined(self.personals, self.objective, self.algorithm, (x, y), neighbours, **how)
