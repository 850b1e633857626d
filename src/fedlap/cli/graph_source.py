"""What the graph commands are about: a graph, and the data and models that are known beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedlap.algorithms import FedU, FedULearned
from fedlap.algorithms.coupling import Coupling
from fedlap.algorithms.interface import check_work
from fedlap.algorithms.local_work import LocalWork
from fedlap.cli.arguments import assign, description, graph_section
from fedlap.cli.predict import models
from fedlap.data.federation import Federation
from fedlap.errors import InputError, real
from fedlap.experiments.content_digest import content_of
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.run_folder import RunFolder
from fedlap.experiments.settings import locate_errors
from fedlap.graph import Graph, from_file
from fedlap.personal import Personals

FIELDS = ("graph", "data", "partition", "scarce", "seed")  # of an experiment, which its graph depends on
WORK = ("local_steps", "local_epochs")


@dataclass(frozen=True, eq=False)
class Subject:
    """A graph, and what is known beside it."""

    title: str
    graph: Graph
    experiment: Experiment | None = None  # which says the data
    federation: Federation | None = None  # the data, where they had to be loaded
    trained: Personals | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # of the run's algorithm

    def with_models(self, run: RunFolder) -> "Subject":
        """The same with the models of a run, in the order of whose clients the graph then is."""
        trained, experiment = models(run.folder), run.experiment
        made = replace(self, graph=self.graph.aligned(trained.clients), trained=trained)
        return replace(made, experiment=self.experiment or experiment, settings=experiment.algorithm)

    def data(self) -> Federation | None:
        """The data, if it is known which, in the order of the graph's clients."""
        if self.experiment is None:
            return None
        federation = loaded(self.experiment)[0] if self.federation is None else self.federation
        return federation.reordered(self.graph.clients or federation.clients)


def subject(what: Path | None, of_models: Path | None, given: dict[str, Any]) -> Subject:
    """The graph of a file, of a run, or of what was typed; with the models of a run."""
    if what is not None and given["data"] is not None:
        raise InputError(
            f"{str(what)!r} and --data: give one; the graph of a file for the clients of data is "
            f"--data {given['data']} --graph FILE"
        )
    if what is None and given["data"] is None:
        raise InputError(
            "name a file with a graph, the folder of a run, or --data with --graph", scope="graph"
        )
    beside = None if of_models is None else opened(of_models)
    if what is None:
        made = of_experiment(typed(given))
    elif what.suffix and not what.is_dir():
        made = _of_file(what, beside, given)
    else:
        made = _of_run(what, given)
    return made if beside is None else made.with_models(beside)


def typed(given: dict[str, Any]) -> Experiment:
    """An experiment with the data and the graph that were typed."""
    asked = description({**given, "graph": given["graph"] or "complete"})
    for assignment in given["set"] or []:
        if assignment.partition("=")[0].partition(".")[0].strip() not in FIELDS:
            raise InputError(f"--set {assignment}: only {', '.join(FIELDS)} matter here")
        assign(asked, assignment)
    return Experiment.of(asked)


def loaded(experiment: Experiment) -> tuple[Federation, Graph | None]:
    """The data of an experiment; of one that was run, the same that it was run with."""
    federation, known = experiment.load()
    if experiment.content not in ("", content_of(federation)):
        raise InputError(
            f"the data of {experiment.title!r} are not those that this run was made with; find those"
        )
    return federation, known


def of_experiment(experiment: Experiment) -> Subject:
    """The graph that an experiment would use."""
    federation, known = loaded(experiment)
    with locate_errors(graph=experiment.graph):
        graph = experiment.built_graph(federation, known).aligned(federation.clients)
    kind = experiment.graph
    name = Path(kind["path"]).name if "path" in kind and kind["name"] == "file" else kind["name"]
    return Subject(f"{name} on {experiment.title}", graph, experiment, federation)


def _of_file(path: Path, beside: RunFolder | None, given: dict[str, Any]) -> Subject:
    if given["graph"] or given["set"]:
        raise InputError(f"{str(path)!r} is a graph already; leave out --graph and --set")
    clients = None if beside is None else models(beside.folder).clients
    return Subject(path.name, from_file(clients, str(path)))


def _of_run(folder: Path, given: dict[str, Any]) -> Subject:
    """The graph of a run, or another one for its clients; and its models, where it has some."""
    run = opened(folder)
    experiment = run.experiment
    described, settings = experiment.described(), experiment.algorithm
    if not experiment.graph and given["graph"] is None:
        raise InputError(
            f"{str(folder)!r} trained {settings['name']}, which uses no graph; name one with --graph"
        )
    if not experiment.graph or not experiment.knows_method:
        described["algorithm"] = {"name": "fedu"}  # whose graph it would be
    if given["graph"] is not None:
        described["graph"] = graph_section(given["graph"])
    for assignment in given["set"] or []:
        if not assignment.startswith("graph."):
            raise InputError(f"--set {assignment}: of a run only the graph can be another")
        assign(described, assignment)
    made = of_experiment(Experiment.of(described))
    if given["graph"] is None and not given["set"]:
        made = _learned(run, made)
    finished = (folder / "models" / "about.json").exists()
    return made.with_models(run) if finished else replace(made, settings=settings)


def _learned(run: RunFolder, begun: Subject) -> Subject:
    """The graph that a run has come to, where it was saved; before, the one that it began on."""
    found = learned_graph(run, begun.graph.clients)
    if found is None:
        return begun
    return replace(begun, graph=found[1], title=f"learned in {found[0]} rounds on {run.experiment.title}")


def learned_graph(run: RunFolder, clients: Sequence[str] | None = None) -> tuple[int, Graph] | None:
    """Of a run that learns a graph: the round it was saved after, and the graph that it had come to."""
    checkpoints = run.checkpoints()[0] if run.experiment.algorithm["name"] == "fedu-learned" else []
    if not checkpoints:
        return None
    return checkpoints[0].round, FedULearned.learned(run.progress(checkpoints[0]).server, clients)


def opened(folder: Path) -> RunFolder:
    """A run that is there."""
    if not folder.exists():
        raise InputError(f"there is no file and no run {str(folder)!r}; `fedlap runs` lists the runs")
    return RunFolder.open(folder)


def coupling_of(graph: Graph, settings: dict[str, Any], given: dict[str, Any]) -> tuple[Coupling, str]:
    """The mixing of a round with what was typed or, where nothing was, as in the run; R in words."""
    asked = {key: given.get(key) for key in ("lr", "strength", *WORK)}
    lr, strength = (settings.get(k) if asked[k] is None else asked[k] for k in ("lr", "strength"))
    work = asked if any(asked[key] is not None for key in WORK) else settings
    lr, (steps, epochs) = FedU.lr if lr is None else lr, (work.get(key) for key in WORK)
    check_work("graph", lr, steps, epochs)
    if strength is not None:
        real("strength", strength, zero=True, scope="graph")
    done = LocalWork.of(steps, epochs)
    kind = ("epoch" if done.epochs else "step") + ("" if done.repeats == 1 else "s")
    return Coupling(graph, strength, lr, done.repeats), f"lr = {lr:g}, R = {done.repeats} local {kind}"
