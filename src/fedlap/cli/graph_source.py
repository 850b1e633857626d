"""Sources of the graph commands: a graph, and its data and models if they are known."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedlap.algorithms import ALGORITHMS
from fedlap.algorithms.coupling import Coupling
from fedlap.algorithms.interface import check_local_work
from fedlap.algorithms.local_work import DEFAULT_LR, LocalWork
from fedlap.cli.arguments import assign, describe_experiment, parse_strength
from fedlap.data.federation import Federation
from fedlap.errors import InputError, check_number
from fedlap.experiments.experiment import SHUFFLED, Experiment, has_graph
from fedlap.experiments.fields import parse_graph
from fedlap.experiments.run_folder import RunFolder
from fedlap.experiments.settings import locate_errors
from fedlap.experiments.stored_run import load_experiment_data, load_learned_graph, load_trained_models
from fedlap.graph import Graph, from_file
from fedlap.personal import Personals

# Fields of an experiment that its graph depends on.
GRAPH_FIELDS = ("graph", "data", "partition", "scarce", "seed")
WORK_OPTIONS = ("local_steps", "local_epochs")


@dataclass(frozen=True, eq=False)
class GraphSource:
    """A graph with its experiment, data and models, as far as they are known."""

    title: str
    graph: Graph
    experiment: Experiment | None = None  # describes the data
    federation: Federation | None = None  # if already loaded
    trained: Personals | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # of the run's algorithm

    def with_models(self, run: RunFolder) -> "GraphSource":
        """Add the models of a run, and reorder the graph to the clients of the run."""
        trained, experiment = load_trained_models(run.folder), run.experiment
        source = replace(self, graph=self.graph.align(trained.clients), trained=trained)
        return replace(source, experiment=self.experiment or experiment, settings=experiment.algorithm)

    def load_data(self) -> Federation | None:
        """Return the data in the order of the graph's clients; None if unknown."""
        if self.experiment is None:
            return None
        federation = load_experiment_data(self.experiment)[0] if self.federation is None else self.federation
        return federation.reorder(self.graph.clients or federation.clients)


def resolve_source(graph_or_run: Path | None, models: Path | None, options: dict[str, Any]) -> GraphSource:
    """Return the graph of a file, a run or the options, with the models of a run."""
    if graph_or_run is not None and options["data"] is not None:
        raise InputError(
            f"{str(graph_or_run)!r} and --data: pass only one; for a graph file on the clients of the data, "
            f"use --data {options['data']} --graph FILE"
        )
    if graph_or_run is None and options["data"] is None:
        raise InputError(
            "no graph; pass a graph file, the folder of a run, or --data with --graph", scope="graph"
        )
    models_run = None if models is None else open_run(models)
    if graph_or_run is None:
        source = source_of_experiment(build_experiment(options))
    elif graph_or_run.suffix and not graph_or_run.is_dir():
        source = _source_of_file(graph_or_run, models_run, options)
    else:
        source = _source_of_run(graph_or_run, options)
    return source if models_run is None else source.with_models(models_run)


def build_experiment(options: dict[str, Any]) -> Experiment:
    """Build an experiment with the data and the graph of the options."""
    description = describe_experiment({**options, "graph": options["graph"] or "complete"})
    for assignment in options["set"] or []:
        if assignment.partition("=")[0].partition(".")[0].strip() not in GRAPH_FIELDS:
            raise InputError(
                f"--set {assignment}: a graph only depends on {', '.join(GRAPH_FIELDS)}; remove it"
            )
        assign(description, assignment)
    return Experiment.of(description)


def source_of_experiment(experiment: Experiment) -> GraphSource:
    """Return the graph that an experiment would use."""
    federation, known = load_experiment_data(experiment)
    with locate_errors(graph=experiment.graph):
        graph = experiment.build_graph(federation, known).align(federation.clients)
    kind = experiment.graph
    name = Path(kind["path"]).name if "path" in kind and kind["name"] == "file" else kind["name"]
    shuffled = ", shuffled," if kind.get(SHUFFLED) else ""
    return GraphSource(f"{name}{shuffled} on {experiment.title}", graph, experiment, federation)


def _source_of_file(path: Path, models_run: RunFolder | None, options: dict[str, Any]) -> GraphSource:
    if options["graph"] or options["set"]:
        raise InputError(f"{str(path)!r} is a graph file; remove --graph and --set")
    clients = None if models_run is None else load_trained_models(models_run.folder).clients
    return GraphSource(path.name, from_file(clients, str(path)))


def _source_of_run(folder: Path, options: dict[str, Any]) -> GraphSource:
    """Return the graph of a run, or another one for its clients, with its models if it has any."""
    run = open_run(folder)
    experiment = run.experiment
    description, settings = experiment.describe(), experiment.algorithm
    if not experiment.graph and options["graph"] is None:
        raise InputError(
            f"{str(folder)!r} trained {settings['name']}, which uses no graph; choose one with --graph"
        )
    if not experiment.graph or not experiment.has_registered_method:
        description["algorithm"] = {"name": next(filter(has_graph, ALGORITHMS))}  # any that uses a graph
    if options["graph"] is not None:
        description["graph"] = parse_graph(options["graph"])
    for assignment in options["set"] or []:
        if not assignment.startswith("graph."):
            raise InputError(
                f"--set {assignment}: only fields of the graph can differ from the run; remove it"
            )
        assign(description, assignment)
    source = source_of_experiment(Experiment.of(description))
    if options["graph"] is None and not options["set"]:
        source = _with_learned_graph(run, source)
    finished = (folder / "models" / "about.json").exists()
    return source.with_models(run) if finished else replace(source, settings=settings)


def _with_learned_graph(run: RunFolder, initial: GraphSource) -> GraphSource:
    """Return the learned graph of the last checkpoint, or the initial graph before the first one."""
    found = load_learned_graph(run, initial.graph.clients)
    if found is None:
        return initial
    return replace(initial, graph=found[1], title=f"learned in {found[0]} rounds on {run.experiment.title}")


def open_run(folder: Path) -> RunFolder:
    """Open a run that exists."""
    if not folder.exists():
        raise InputError(f"no file or run {str(folder)!r}; list runs with `fedlap runs`")
    return RunFolder.open(folder)


def build_coupling(graph: Graph, settings: dict[str, Any], options: dict[str, Any]) -> tuple[Coupling, str]:
    """Return the coupling from the options or, by default, the run's settings; and lr and R as text."""
    typed = {key: options.get(key) for key in ("lr", "strength", *WORK_OPTIONS)}
    lr, strength = (settings.get(k) if typed[k] is None else typed[k] for k in ("lr", "strength"))
    origin = typed if any(typed[key] is not None for key in WORK_OPTIONS) else settings
    lr, (steps, epochs) = DEFAULT_LR if lr is None else lr, (origin.get(key) for key in WORK_OPTIONS)
    check_local_work("graph", lr, steps, epochs)
    strength = parse_strength(strength) if isinstance(strength, str) else strength
    if strength is not None:
        check_number("strength", strength, zero=True, scope="graph")
    work = LocalWork.of(steps, epochs)
    unit = ("epoch" if work.epochs else "step") + ("" if work.repeats == 1 else "s")
    return Coupling(graph, strength, lr, work.repeats), f"lr = {lr:g}, R = {work.repeats} local {unit}"
