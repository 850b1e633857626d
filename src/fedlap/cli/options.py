"""Options that several commands share."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedlap.data import SOURCES
from fedlap.data.partition import NATURAL, PARTITIONS
from fedlap.experiments.experiment import KNOWN_GRAPH
from fedlap.graph import GRAPHS
from fedlap.models import MODELS
from fedlap.tracking import TRACKERS

Options = dict[str, tuple[Any, Any]]  # name: annotation and default

DATA: Options = {
    "data": (
        Annotated[
            str,
            typer.Option(
                help=f"Data set: {', '.join(n for n in SOURCES if n != 'file')}, or your own .csv, "
                ".parquet or .npz file."
            ),
        ],
        "digits",
    ),
}
CUT: Options = {
    "client": (
        Annotated[str | None, typer.Option(help="Of your own file: the column that says whose row it is.")],
        None,
    ),
    "label": (Annotated[str | None, typer.Option(help="Of your own file: the column to predict.")], None),
    "test": (
        Annotated[str | None, typer.Option(help="A file of test rows beside your own, instead of a split.")],
        None,
    ),
    "drop": (
        Annotated[
            list[str] | None,
            typer.Option(help="Of your own file: a column to leave out; may be repeated."),
        ],
        None,
    ),
    "partition": (
        Annotated[
            str | None,
            typer.Option(
                help=f"Who gets which rows: {', '.join([NATURAL, *PARTITIONS])} "
                "(default: the data set's own way)."
            ),
        ],
        None,
    ),
    "scarce": (
        Annotated[
            bool, typer.Option("--scarce", help="Half of the clients keep a fifth of their training rows.")
        ],
        False,
    ),
}
TRAINING: Options = {
    "model": (Annotated[str, typer.Option(help=f"Model: {', '.join(MODELS)}.")], "linear"),
    "graph": (
        Annotated[
            str,
            typer.Option(
                help=f"Graph: {', '.join(n for n in GRAPHS if n != 'file')}, {KNOWN_GRAPH} (the data's own), "
                "or a file of edges (.csv) or weights (.npz, .mtx, .npy).",
            ),
        ],
        "complete",
    ),
    "rounds": (Annotated[int, typer.Option(help="Rounds of training.")], 100),
    "batch": (Annotated[str, typer.Option(help="Rows of a mini-batch, or 'all'.")], "20"),
    "sample": (Annotated[float, typer.Option(help="Share of clients that work in a round, in (0, 1].")], 1.0),
    "lr": (Annotated[float | None, typer.Option(help="Length of a local step.")], None),
    "local_steps": (
        Annotated[int | None, typer.Option(help="Mini-batch steps of a client in a round (default 5).")],
        None,
    ),
    "local_epochs": (
        Annotated[
            int | None, typer.Option(help="Passes of a client over its rows in a round, instead of steps.")
        ],
        None,
    ),
    "strength": (
        Annotated[float | None, typer.Option(help="How strongly neighbours are pulled together, η.")],
        None,
    ),
    "device": (Annotated[str, typer.Option(help="cpu, cuda, ….")], "cpu"),
    "threads": (
        Annotated[
            int | None,
            typer.Option(
                help="CPU threads (default: $OMP_NUM_THREADS, or one for each physical core that this "
                "process may use, its CPU quota included).",
                min=1,
            ),
        ],
        None,
    ),
}
SEED: Options = {
    "seed": (Annotated[int, typer.Option(help="The same seed gives the same numbers.")], 0),
}
RESULT: Options = {
    "out": (Annotated[Path, typer.Option(help="Folder for results.")], Path("runs")),
    "set": (
        Annotated[
            list[str] | None,
            typer.Option(help="Any field, as in --set algorithm.strength=0.02; may be repeated."),
        ],
        None,
    ),
    "json": (
        Annotated[
            bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")
        ],
        False,
    ),
}
KEEPING: Options = {
    "again": (
        Annotated[
            bool,
            typer.Option(
                "--again",
                help="Repeat runs that are in the folder already, instead of showing or resuming them.",
            ),
        ],
        False,
    ),
    "track": (
        Annotated[
            str | None,
            typer.Option(help=f"Tell others of every score: {', '.join(TRACKERS)}, with commas between."),
        ],
        None,
    ),
    "save_rounds": (
        Annotated[int | None, typer.Option(help="Save after so many rounds, whatever that takes.", min=1)],
        None,
    ),
    "save_seconds": (
        Annotated[
            float,
            typer.Option(help="Save after so many seconds, and so that it takes 2 % of the time at most."),
        ],
        30.0,
    ),
}


def takes(*groups: Options) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The command behind gets these options, as a dictionary, beside its own."""

    def wrapped(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for group in groups
            for name, (annotation, default) in group.items()
        ]
        command.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
        return command

    return wrapped
