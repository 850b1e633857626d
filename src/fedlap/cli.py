"""The command line."""

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from fedlap import __version__
from fedlap.algorithms import ALGORITHMS
from fedlap.data import SOURCES
from fedlap.errors import InputError
from fedlap.experiment import KNOWN_GRAPH, Experiment, settings_of, takes_graph
from fedlap.graph import GRAPHS
from fedlap.models import MODELS
from fedlap.options import algorithm_names, assign, description, parsed, seed_numbers, shared_settings
from fedlap.report import Comparison, draw_curves
from fedlap.report.progress import progress
from fedlap.result import Result
from fedlap.runs import folder_for_all, prepare, write_file, write_run
from fedlap.scores import Score

app = typer.Typer(
    help="Federated multi-task learning with Laplacian regularisation.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
data_app = typer.Typer(help="Data sets.", rich_markup_mode=None)
app.add_typer(data_app, name="data")

out = Console()
err = Console(stderr=True)

INTERRUPTED = 130

Data = Annotated[str, typer.Option(help=f"Data set: {', '.join(SOURCES)}.")]
ModelName = Annotated[str, typer.Option("--model", help=f"Model: {', '.join(MODELS)}.")]
GraphName = Annotated[
    str,
    typer.Option(
        "--graph",
        help=f"Graph: {', '.join(n for n in GRAPHS if n != 'file')}, {KNOWN_GRAPH} (the data's own), "
        "or a file of edges (.csv) or weights (.npy).",
    ),
]
Rounds = Annotated[int, typer.Option(help="Rounds of training.")]
BatchText = Annotated[str, typer.Option("--batch", help="Rows of a mini-batch, or 'all'.")]
Sample = Annotated[float, typer.Option(help="Share of clients that work in a round, in (0, 1].")]
Lr = Annotated[float | None, typer.Option(help="Length of a local step.")]
Steps = Annotated[int | None, typer.Option(help="Mini-batch steps of a client in a round (default 5).")]
Epochs = Annotated[
    int | None, typer.Option(help="Passes of a client over its rows in a round, instead of steps.")
]
Strength = Annotated[float | None, typer.Option(help="How strongly neighbours are pulled together, η.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, ….")]
Threads = Annotated[int | None, typer.Option(help="CPU threads (default: PyTorch's choice).", min=1)]
Out = Annotated[Path, typer.Option("--out", help="Folder for results.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any field, as in --set algorithm.strength=0.02; may be repeated."),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")
]


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
    _help_alone(context)


@data_app.callback(invoke_without_command=True)
def _help_alone(context: typer.Context) -> None:
    """Data sets."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def run(
    data: Data = "digits",
    algorithm: Annotated[str, typer.Option(help=f"Algorithm: {', '.join(ALGORITHMS)}.")] = "fedu",
    model: ModelName = "linear",
    graph: GraphName = "complete",
    rounds: Rounds = 100,
    batch: BatchText = "20",
    sample: Sample = 1.0,
    lr: Lr = None,
    local_steps: Steps = None,
    local_epochs: Epochs = None,
    strength: Strength = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.")] = 0,
    device: Device = "cpu",
    threads: Threads = None,
    out_folder: Out = Path("runs"),
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Train one algorithm on one data set and keep the result."""
    _use_threads(threads)
    given = {"lr": lr, "local_steps": local_steps, "local_epochs": local_epochs, "strength": strength}
    asked = description(data, model, graph, rounds, batch, sample, device)
    asked["seed"] = seed
    asked["algorithm"] = {"name": algorithm, **{k: v for k, v in given.items() if v is not None}}
    for assignment in set_ or []:
        assign(asked, assignment)
    prepare(out_folder)
    experiment = _settled(Experiment.of(asked))
    result = _train(experiment)
    folder = write_run(out_folder, experiment, result)
    last = result.scores[-1]
    if as_json:
        print(
            json.dumps({"experiment": experiment.described(), "last": last.as_dict(), "folder": str(folder)})
        )
        return
    runs = {experiment.algorithm["name"]: [result.scores]}
    out.print(Comparison(experiment.data["name"], [experiment.seed], runs).table(out.width))
    out.print(f"J(W) = {last.objective:.4f}, training loss {last.train_loss:.4f}", highlight=False)
    out.print(
        f"{last.seconds:.2f} s of training. Kept in {folder}", highlight=False, markup=False, soft_wrap=True
    )


@app.command()
def compare(
    data: Data = "digits",
    algorithms: Annotated[
        str, typer.Option(help=f"Names with commas between, or 'all': {', '.join(ALGORITHMS)}.")
    ] = "fedu,local,global",
    seeds: Annotated[str, typer.Option(help="As in 0-4 or 0,3,7.")] = "0-4",
    model: ModelName = "linear",
    graph: GraphName = "complete",
    rounds: Rounds = 100,
    batch: BatchText = "20",
    sample: Sample = 1.0,
    lr: Lr = None,
    local_steps: Steps = None,
    local_epochs: Epochs = None,
    strength: Strength = None,
    device: Device = "cpu",
    threads: Threads = None,
    out_folder: Out = Path("runs"),
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Train several algorithms from the same starts on the same clients and batches."""
    _use_threads(threads)
    names, numbers = algorithm_names(algorithms), seed_numbers(seeds)
    given = {"lr": lr, "local_steps": local_steps, "local_epochs": local_epochs, "strength": strength}
    settings = {field: value for field, value in given.items() if value is not None}
    common = description(data, model, graph, rounds, batch, sample, device)
    for assignment in set_ or []:
        path, value = parsed(assignment)
        if path.startswith("algorithm."):
            settings[path.removeprefix("algorithm.")] = value
        elif path in ("algorithm", "seed"):
            raise InputError(f"--set {assignment}: compare takes this from --{path}s")
        else:
            assign(common, assignment)
    shared = shared_settings(names, settings)
    asked = {name: {**common, "algorithm": {"name": name, **shared[name]}} for name in names}
    prepare(out_folder)
    # Every algorithm is checked before the first is trained; a random graph's ρ may differ between seeds.
    first = [_settled(Experiment.of({**asked[name], "seed": numbers[0]})) for name in names]
    rest = [Experiment.of({**asked[name], "seed": seed}).checked() for seed in numbers[1:] for name in names]
    planned = first + rest
    runs: dict[str, list[list[Score]]] = {name: [] for name in names}
    for experiment in planned:
        result = _train(experiment, lines=1)
        write_run(out_folder, experiment, result)
        runs[experiment.algorithm["name"]].append(result.scores)
    comparison = Comparison(planned[0].data["name"], numbers, runs)
    folder = folder_for_all(out_folder, planned)
    write_file(folder / "table.md", comparison.markdown().encode())
    write_file(folder / "curves.png", draw_curves(comparison))
    write_file(folder / "comparison.json", json.dumps(comparison.as_dict(), indent=1).encode())
    if as_json:
        print(json.dumps({**comparison.as_dict(), "folder": str(folder)}))
        return
    out.print(comparison.table(out.width))
    for line in comparison.verdict():
        out.print(line, highlight=False, soft_wrap=True)
    out.print(f"Table and curves are in {folder}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def algorithms(
    name: Annotated[str, typer.Argument(help="One of them, to be explained in full.")] = "",
) -> None:
    """List the algorithms and their settings, or explain one."""
    if name:
        (known,) = algorithm_names(name)
        print(inspect.getdoc(ALGORITHMS[known]))
        return
    table = Table("name", "what it is", "settings and their defaults")
    for known, make in ALGORITHMS.items():
        about = (inspect.getdoc(make) or "").split("\n\n")[0].replace("\n", " ")
        over = [] if not takes_graph(known) else ["over a --graph"]
        table.add_row(known, about, ", ".join(_settings(make, "graph") + over))
    out.print(table)


@data_app.command("list")
def data_list() -> None:
    """List the data sets and their settings."""
    table = Table("name", "what it is", "settings and their defaults")
    for name, source in SOURCES.items():
        shown = [*_settings(source.make, "seed"), f"scale = {source.scale}"]
        table.add_row(name, source.about, ", ".join(shown))
    out.print(table)


def _settings(make: Callable[..., Any], leave: str) -> list[str]:
    """Names and defaults; a name alone where the default is not a fixed value."""
    settings = settings_of(make, (leave,)).items()
    return [key if p.default is None else f"{key} = {p.default}" for key, p in settings]


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:  # typer turns Ctrl-C into this code
            _fail("interrupted", code)
    except InputError as error:
        code = _fail(str(error), 2)
    except typer.TyperException as error:
        code = _fail(error.format_message(), 2)
    except typer.Abort:
        code = _fail("interrupted", INTERRUPTED)
    sys.exit(code or 0)


def _fail(message: str, code: int) -> int:
    err.print("error: " + " ".join(message.split()), markup=False, highlight=False, soft_wrap=True)
    return code


def _settled(experiment: Experiment) -> Experiment:
    """The experiment, checked; says which strength it chose where none was given."""
    made = experiment.checked()
    name, eta = made.algorithm["name"], made.algorithm.get("strength")
    if eta is not None and "strength" not in experiment.algorithm:
        rule = "by default min(0.01, 1/(lr·R·ρ)), ρ the largest eigenvalue of the graph's Laplacian"
        err.print(f"{name}  strength = {eta:g}, {rule}", highlight=False, markup=False, soft_wrap=True)
    return made


def _train(experiment: Experiment, lines: int = 5) -> Result:
    """Train with progress."""
    name = f"{experiment.algorithm['name']} seed {experiment.seed}"
    with progress(err, name, experiment.rounds, lines) as (on_score, on_round):
        return experiment.run(on_score, on_round)


def _use_threads(threads: int | None) -> None:
    if threads is not None:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
