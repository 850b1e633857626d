"""Commands about graphs: make, describe, learn and draw."""

import json
import math
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAVY
from rich.table import Table

from fedlap.algorithms.coupling import Coupling
from fedlap.cli import console
from fedlap.cli.graph_colours import check_colour, choose_colours
from fedlap.cli.graph_source import (
    GraphSource,
    build_coupling,
    build_experiment,
    open_run,
    resolve_source,
    source_of_experiment,
)
from fedlap.cli.output_files import check_output, list_input_files, list_run_files
from fedlap.cli.threads import use_threads
from fedlap.data import SOURCES
from fedlap.errors import InputError
from fedlap.experiments.stored_run import load_experiment_data, load_trained_models
from fedlap.graph.description import GraphDescription, MixingSpeed, count_rounds_to_halve
from fedlap.graph.io import to_file
from fedlap.graph.learning import learn_graph
from fedlap.graph.model_fit import GraphFit, compute_average_precision
from fedlap.report.graph_figure import draw_graph
from fedlap.storage.files import write_file
from fedlap.training.strength_choice import compute_default_strength

DESCRIBED_SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)  # of the largest stable strength, one table row each


def make_graph(out: Path, options: dict[str, Any]) -> None:
    """Build the graph of a run and write it to a file."""
    experiment = build_experiment(options)
    check_output(out, list_input_files(experiment))
    source = source_of_experiment(experiment)
    to_file(source.graph, str(out))
    _print_description(source, options, {"file": str(out)}, [f"written    {out}"])


def describe_graph(graph_or_run: Path | None, models: Path | None, options: dict[str, Any]) -> None:
    """Describe a graph, its stable strengths, and how models fit it."""
    use_threads(None)
    source = resolve_source(graph_or_run, models, options)
    fits = source.trained is not None and (models is not None or not source.graph.server)
    fit = GraphFit.of(source.graph, source.trained.models) if fits and source.trained is not None else None
    more = {} if fit is None else {"models": fit.as_dict()}
    _print_description(source, options, more, [] if fit is None else list(fit.format_lines()), table=True)


def learn_from_run(run: Path, out: Path, method: str, neighbours: int, as_json: bool) -> None:
    """Learn a graph from the models of a run."""
    use_threads(None)
    check_output(out, list_run_files(run))
    experiment, trained = open_run(run).experiment, load_trained_models(run)
    check_output(out, list_input_files(experiment))
    start = None if trained.network is None else trained.network.start(experiment.seed).to(trained.models)
    graph = learn_graph(trained.models, trained.clients, method, neighbours, start)
    to_file(graph, str(out))
    more: dict[str, Any] = {"file": str(out), "method": method}
    lines = [f"written    {out}"]
    origin = None if "data" in (experiment.objects or {}) else SOURCES.get(experiment.data["name"])
    known = load_experiment_data(experiment)[1] if origin is not None and origin.graph else None
    if known is not None and known.edges:
        found = compute_average_precision(graph, known.align(trained.clients))
        chance = known.edges / math.comb(known.size, 2)
        more |= {"average_precision": found, "by_chance": chance}
        lines.insert(
            0, f"truth      average precision {found:.3f} for the known edges (random guesses: {chance:.3f})"
        )
    source = GraphSource(
        f"{method}, learned from the models of {run.name}", graph, settings=experiment.algorithm
    )
    _print_description(source, {"json": as_json}, more, lines)


def draw_source(paths: list[Path], models: Path | None, colour: str | None, options: dict[str, Any]) -> None:
    """Draw a graph with neighbours close together."""
    use_threads(None)
    *graphs, figure = paths
    if len(graphs) > 1 or figure.suffix.lower() != ".png":
        raise InputError(
            f"draw {' '.join(map(str, paths))}: expected a graph file or a run (unless there is --data), "
            "then the .png file to write"
        )
    check_colour(colour)
    check_output(
        figure, [*graphs, *(path for run in (*graphs, models) if run for path in list_run_files(run))]
    )
    source = resolve_source(graphs[0] if graphs else None, models, options)
    if source.experiment is not None:
        check_output(figure, list_input_files(source.experiment))
    federation = source.load_data()
    shown = choose_colours(colour, source.graph, federation, source.trained)
    rows = None if federation is None else federation.train.count.numpy()
    write_file(figure, draw_graph(source.title, source.graph, shown, rows))
    console.print_result(f"figure     {figure}")


def _print_description(
    source: GraphSource, options: dict[str, Any], more: dict[str, Any], lines: list[str], table: bool = False
) -> None:
    """Print the facts about a graph, its stable strengths, and further lines."""
    facts = GraphDescription.of(source.graph)
    coupling, work = build_coupling(source.graph, source.settings, options)
    default = _get_default_strength(source, coupling)
    speeds = _compute_speeds(facts, coupling, default)
    if options["json"]:
        mixing = {
            "lr": coupling.lr,
            "repeats": coupling.repeats,
            "largest_stable_strength": 2 / coupling.product_per_strength
            if coupling.product_per_strength
            else None,
            "default_strength": default,
            "strengths": [speed.as_dict() for _, speed in speeds],
        }
        print(json.dumps({"graph": source.title, **facts.as_dict(), "mixing": mixing, **more}))
        return
    console.print_result(f"graph      {source.title}")
    for line in facts.format_lines():
        console.print_result(line)
    if coupling.product_per_strength:
        console.print_result(
            f"strength   stable up to {2 / coupling.product_per_strength:.4g} = 2/(lr·R·ρ)"
            + ("" if default is None else f"; default {default:.4g}")
            + f" ({work})"
        )
    if table and coupling.product_per_strength:
        console.print_result(
            "mixing     slowest-decaying difference left after one round, without local steps, all clients:"
        )
        console.out.print(_build_table(speeds))
    for line in lines:
        console.print_result(line)


def _get_default_strength(source: GraphSource, coupling: Coupling) -> float | None:
    """Return the default strength on the source's data; None if the data or edges are not known."""
    federation = source.load_data()
    if federation is None or not coupling.product_per_strength:
        return None
    return compute_default_strength(coupling, float(federation.train.count.double().mean()))


def _compute_speeds(
    facts: GraphDescription, coupling: Coupling, default: float | None
) -> list[tuple[str, MixingSpeed]]:
    """Return mixing speeds at shares of the largest strength, at the default and at the given strength."""
    length = coupling.lr * coupling.repeats
    if not coupling.product_per_strength:
        return []
    shown = {
        share * 2 / coupling.product_per_strength: f"{share:g} × largest" for share in DESCRIBED_SHARES[:-1]
    }
    shown |= {2 / coupling.product_per_strength: "largest stable"}
    shown |= {} if default is None else {default: "default"}
    if coupling.strength is not None and coupling.eta != default:
        shown[coupling.eta] = "as given"
    return [(shown[strength], MixingSpeed.of(facts, strength, length)) for strength in sorted(shown)]


def _build_table(speeds: list[tuple[str, MixingSpeed]]) -> Table:
    """Build the table of the slowest-decaying difference after one round of mixing."""
    table = Table(box=SIMPLE_HEAVY, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("strength", justify="right")
    table.add_column("", no_wrap=True)
    names = "lr·R·η·ρ", "explicit:\nleft", "rounds\nto halve", "implicit:\nleft", "rounds\nto halve"
    for name in names:
        table.add_column(name, justify="right")
    for label, speed in speeds:
        both = [cell for share in (speed.explicit, speed.implicit) for cell in _format_share(share)]
        table.add_row(f"{speed.strength:.4g}", label, f"{speed.product:.3g}", *both)
    return table


def _format_share(share: float) -> tuple[str, str]:
    rounds = count_rounds_to_halve(share)
    if math.isinf(rounds):
        return f"{100 * share:.4g} %", "never"
    return f"{100 * share:.4g} %", f"{rounds:,.0f}" if rounds >= 100 else f"{rounds:.3g}"
