"""The result of training."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from fedlap.algorithms import Algorithm, State
from fedlap.algorithms.local_work import BatchSize
from fedlap.data.federation import Federation
from fedlap.errors import DivergedError, InputError
from fedlap.models import Model
from fedlap.personal import Personal, Personals
from fedlap.summaries import build_html_table, build_summary, count_nouns, summarise_fields
from fedlap.training.client_answers import (
    ClientAnswers,
    SizedArchitecture,
    answer_clients,
    build_local_method,
    choose_client_metric,
    find_graph,
)
from fedlap.training.schedule import Schedule
from fedlap.training.scores import Score


@dataclass(frozen=True, eq=False)
class RunOrigin:
    """Everything that determines the numbers of a run; a resumed run is compared with it."""

    federation: Federation  # with clients in the order of the state's rows
    algorithm: Algorithm  # bound to the clients
    objective: Model
    start: Any
    settings: dict[str, Any]  # schedule and seed

    __repr__ = summarise_fields


@dataclass(frozen=True, eq=False)
class Progress:
    """The state of a run after a round, from which it resumes exactly."""

    round: int  # rounds done
    server: State
    private: State
    sent: tuple[int, int]  # bytes sent by and to clients so far
    seconds: float  # training time so far
    scores: list[Score]
    origin: RunOrigin | None = None  # None if read from a checkpoint

    __repr__ = summarise_fields

    @property
    def clients(self) -> tuple[str, ...] | None:
        """Names of the clients in the order of the state's rows; None if read from a checkpoint."""
        return None if self.origin is None else self.origin.federation.clients


@dataclass(frozen=True, eq=False)
class Result:
    """Every client's model, the state of server and clients, and all scores.

    `models` has one row per client, in the order of `federation.clients`. Rows of `server` and `private`
    follow `progress.clients`, which differs from it if a run was resumed with reordered clients.
    """

    algorithm: Algorithm
    federation: Federation
    objective: Model  # the network, its loss and its L2 term
    models: Float[Tensor, "client param"]
    progress: Progress
    rounds: int | None = None  # the number of rounds that `fit` was asked for

    def __repr__(self) -> str:
        facts = self._summarise()
        clients = count_nouns(len(self.federation.clients), "client")
        parameters = count_nouns(self.models.shape[1], "parameter")
        progress = f"round {facts['rounds']}"
        return build_summary("Result", facts["method"], clients, parameters, progress, facts["scores"])

    def _repr_html_(self) -> str:
        return build_html_table("Result", self._summarise())

    def _summarise(self) -> dict[str, str]:
        """Return facts about the run, without values of rows or targets."""
        done, wanted = self.progress.round, self.rounds
        return {
            "method": type(self.algorithm).__name__,
            "clients": f"{len(self.federation.clients):,}",
            "parameters of a model": f"{self.models.shape[1]:,}",
            "rounds": f"{done}" + (f" of {wanted}" if wanted and wanted != done else ""),
            "scores": ", ".join(self.scores[-1].list_values()) if self.scores else "no scores",
        }

    @property
    def is_complete(self) -> bool:
        """False if training was stopped before the last round; `fit(resume=result)` then continues."""
        return self.rounds is None or self.progress.round >= self.rounds

    @property
    def server(self) -> State:
        """State of the server."""
        return self.progress.server

    @property
    def private(self) -> State:
        """Private state of the clients."""
        return self.progress.private

    @property
    def scores(self) -> list[Score]:
        """Scores in the order of rounds."""
        return self.progress.scores

    @property
    def clients(self) -> Any:
        """A pandas DataFrame with a row per client: rows, score alone and with the method, gain, neighbours.

        Alone means that the client trains without the others, with the same schedule; the first access
        trains these models. A gain is positive if the score is better with the method. Linear models also
        have their coefficients in the units of the data, and their standard errors if these are known
        (`answers.coefficients.remark` says why not).
        """
        return self.answers.to_frame()

    @cached_property
    def answers(self) -> ClientAnswers:
        """Scores, neighbours and coefficients of every client; the table `clients` shows them."""
        from fedlap.training.fit import fit_all  # which imports this module
        from fedlap.training.jobs import Job

        origin, clients = self.progress.origin, self.federation.clients
        if origin is None:
            raise InputError("answers: the result was read from a checkpoint; train it with `fit`")
        settings = {name: value for name, value in origin.settings.items() if name != "seed"}
        architecture = SizedArchitecture(self.objective.network, self.objective.l2)
        local = build_local_method(self.algorithm)
        job = Job(local, origin.federation, architecture, origin.settings["seed"], origin.start)
        schedule = Schedule(
            rounds=self.progress.round, device=str(self.models.device), evaluate_every=0, **settings
        )
        (alone,) = fit_all([job], schedule)
        if isinstance(alone, DivergedError):
            raise alone
        rows = [alone.personals.find_position(client) for client in clients]
        return answer_clients(
            self.federation,
            self.objective,
            self.algorithm,
            self.models,
            alone.models[rows],
            find_graph(self.algorithm, self.server, origin.federation.clients, clients),
            choose_client_metric(self.federation),
        )

    @property
    def personals(self) -> Personals:
        """All clients' models with the metadata needed to save them or to predict from raw values."""
        return Personals.of(self.federation, self.objective, self.models, self.algorithm)

    def personal(self, client: str) -> Personal:
        """Return a client's model, which predicts from raw values and can be saved."""
        return self.personals.of_client(client)

    def model(self, client: str) -> nn.Module:
        """Return a client's model as a torch module; its inputs are features scaled as in training."""
        return self.personal(client).module()

    def predict(self, client: str, x: Any) -> Tensor:
        """Return a client's predictions for raw features: label numbers for classes, values otherwise."""
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
        """Train a model for a client that joins after training, as `Personals.join` does."""
        settings: dict[str, Any] = {"rounds": rounds, "batch": batch, "lr": lr, "seed": seed, "name": name}
        return self.personals.join(x, y, neighbours, **settings)
