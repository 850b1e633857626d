"""Commands about graphs: make, describe, learn and draw."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAVY
from rich.table import Table

from fedlap.algorithms.coupling import Coupling
from fedlap.cli import console
from fedlap.cli.graph_colours import COLOURS, check_colour, colours
from fedlap.cli.graph_source import (
    Subject,
    coupling_of,
    loaded,
    of_experiment,
    opened,
    subject,
    typed,
)
from fedlap.cli.options import CUT, DATA, RESULT, SEED, TRAINING, Options, takes
from fedlap.cli.output_files import check_output, files_of_experiment, files_of_run
from fedlap.cli.predict import models
from fedlap.cli.threads import use_threads
from fedlap.data import SOURCES
from fedlap.errors import InputError
from fedlap.graph.description import GraphDescription, Speed, to_halve
from fedlap.graph.io import to_file
from fedlap.graph.learning import LEARNERS, learned
from fedlap.graph.model_fit import Fit, average_precision
from fedlap.report.graph_figure import draw_graph
from fedlap.storage.files import write_file

SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)  # of the largest stable strength, which are shown

CHOSEN: Options = {
    "data": (
        Annotated[str | None, typer.Option(help="Data set whose clients are joined, with --graph.")],
        None,
    ),
    "graph": (
        Annotated[str | None, typer.Option(help="Kind of graph, as for run; beside a run, in its place.")],
        None,
    ),
}
MADE: Options = {name: RESULT[name] for name in ("set", "json")}
MIXING: Options = {name: TRAINING[name] for name in ("lr", "local_steps", "local_epochs", "strength")}
WHAT = Annotated[
    Path | None, typer.Argument(help="File with a graph (.csv, .npy, .npz, .mtx), or folder of a run.")
]
OUT = Annotated[Path, typer.Argument(help="File to write: .csv, .npz or .mtx.", show_default=False)]
BESIDE = Annotated[
    Path | None, typer.Option(help="Folder of a run, whose models are held against the graph.")
]


@takes(DATA, {"graph": TRAINING["graph"]}, CUT, SEED, MADE)
def make(out: OUT, **given: Any) -> None:
    """Make the graph that a run with these options would use, write it into a file, and describe it."""
    experiment = typed(given)
    check_output(out, files_of_experiment(experiment))
    made = of_experiment(experiment)
    to_file(made.graph, str(out))
    _say(made, given, {"file": str(out)}, [f"written    {out}"])


@takes(CHOSEN, MIXING, CUT, SEED, MADE)
def describe(what: WHAT = None, models: BESIDE = None, **given: Any) -> None:
    """Say what a graph is like, how strong mixing over it may be, and how well models fit it.

    The table needs no training: of the disagreement between models that goes slowest, it says how much a
    round of mixing alone, with all clients, leaves, and in how many rounds it is halved.
    """
    use_threads(None)
    about = subject(what, models, given)
    fits = about.trained is not None and (models is not None or not about.graph.server)
    fit = Fit.of(about.graph, about.trained.models) if fits and about.trained is not None else None
    more = {} if fit is None else {"models": fit.as_dict()}
    _say(about, given, more, [] if fit is None else list(fit.lines()), table=True)


def learn(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", show_default=False)],
    out: OUT,
    method: Annotated[str, typer.Option(help=f"How: {', '.join(LEARNERS)}.")] = "kernel",
    neighbours: Annotated[int, typer.Option(help="Of each client, about.", min=1)] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Learn a graph from the models of a run, write it into a file, and describe it.

    Models trained over a graph are alike where it joins them; those of local training know of none.
    Where the data came with a known graph, the average precision says how well its edges are found: the area
    under the precision–recall curve, which chance would make about the share of pairs that are edges.
    """
    use_threads(None)
    check_output(out, files_of_run(run))
    experiment, trained = opened(run).experiment, models(run)
    check_output(out, files_of_experiment(experiment))
    start = None if trained.network is None else trained.network.start(experiment.seed).to(trained.models)
    graph = learned(trained.models, trained.clients, method, neighbours, start)
    to_file(graph, str(out))
    more: dict[str, Any] = {"file": str(out), "method": method}
    lines = [f"written    {out}"]
    known = None if SOURCES[experiment.data["name"]].tabular else loaded(experiment)[1]
    if known is not None and known.edges:
        found = average_precision(graph, known.aligned(trained.clients))
        chance = known.edges / math.comb(known.size, 2)
        more |= {"average_precision": found, "by_chance": chance}
        lines.insert(
            0, f"truth      known edges are found with average precision {found:.3f} (chance: {chance:.3f})"
        )
    about = Subject(f"{method}, of the models of {run.name}", graph, settings=experiment.algorithm)
    _say(about, {"json": as_json}, more, lines)


@takes(CHOSEN, CUT, SEED, {"set": RESULT["set"]})
def draw(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="[WHAT] PICTURE", help="As for describe; last, the .png file to write."),
    ],
    models: BESIDE = None,
    colour: Annotated[
        str | None, typer.Option(help=f"What clients are coloured by: {', '.join(COLOURS)}.")
    ] = None,
    **given: Any,
) -> None:
    """Draw a graph with neighbours near each other.

    The heavier an edge, the wider it is; the more rows a client has, the larger. Colours show
    the test accuracy of a run's models or else, unless another --colour is given, how many rows clients have.
    """
    use_threads(None)
    *what, picture = paths
    if len(what) > 1 or picture.suffix.lower() != ".png":
        raise InputError("draw: name a file or a run (unless there is --data), and then the .png to write")
    check_colour(colour)
    check_output(picture, [*what, *(path for run in (*what, models) if run for path in files_of_run(run))])
    about = subject(what[0] if what else None, models, given)
    if about.experiment is not None:
        check_output(picture, files_of_experiment(about.experiment))
    federation = about.data()
    shown = colours(colour, about.graph, federation, about.trained)
    rows = None if federation is None else federation.train.count.numpy()
    write_file(picture, draw_graph(about.title, about.graph, shown, rows))
    console.result(f"picture    {picture}")


def _say(
    about: Subject, given: dict[str, Any], more: dict[str, Any], lines: list[str], table: bool = False
) -> None:
    """Print what a graph is like, how strong its mixing may be, and more."""
    facts = GraphDescription.of(about.graph)
    coupling, work = coupling_of(about.graph, about.settings, given)
    speeds = _speeds(facts, coupling)
    usual = replace(coupling, strength=None).eta
    if given["json"]:
        mixing = {
            "lr": coupling.lr,
            "repeats": coupling.repeats,
            "largest_stable_strength": 2 / coupling.unit if coupling.unit else None,
            "default_strength": usual,
            "strengths": [speed.as_dict() for _, speed in speeds],
        }
        print(json.dumps({"graph": about.title, **facts.as_dict(), "mixing": mixing, **more}))
        return
    console.result(f"graph      {about.title}")
    for line in facts.lines():
        console.result(line)
    if coupling.unit:
        console.result(
            f"strength   stable up to {2 / coupling.unit:.4g} = 2/(lr·R·ρ), by default {usual:.4g} ({work})"
        )
    if table and coupling.unit:
        console.result(
            "mixing     a round of it alone, with all clients, leaves of the slowest disagreement:"
        )
        console.out.print(_table(speeds))
    for line in lines:
        console.result(line)


def _speeds(facts: GraphDescription, coupling: Coupling) -> list[tuple[str, Speed]]:
    """What mixing does at shares of the largest strength, the usual one and the given one, weak to strong."""
    length = coupling.lr * coupling.repeats
    if not coupling.unit:
        return []
    usual = replace(coupling, strength=None).eta
    shown = {share * 2 / coupling.unit: f"{share:g} × largest" for share in SHARES[:-1]}
    shown |= {2 / coupling.unit: "largest stable", usual: "by default"}
    if coupling.strength is not None and coupling.strength != usual:
        shown[coupling.strength] = "as given"
    return [(shown[strength], Speed.of(facts, strength, length)) for strength in sorted(shown)]


def _table(speeds: list[tuple[str, Speed]]) -> Table:
    """What a round of mixing leaves of the slowest disagreement."""
    table = Table(box=SIMPLE_HEAVY, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("strength", justify="right")
    table.add_column("", no_wrap=True)
    names = "lr·R·η·ρ", "left by\na round", "rounds\nto halve", "implicit\nleft", "rounds\nto halve"
    for name in names:
        table.add_column(name, justify="right")
    for what, speed in speeds:
        both = [cell for share in (speed.explicit, speed.implicit) for cell in _cells(share)]
        table.add_row(f"{speed.strength:.4g}", what, f"{speed.product:.3g}", *both)
    return table


def _cells(share: float) -> tuple[str, str]:
    rounds = to_halve(share)
    return f"{100 * share:.4g} %", "never" if math.isinf(
        rounds
    ) else f"{rounds:,.0f}" if rounds >= 100 else f"{rounds:.3g}"
