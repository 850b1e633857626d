"""Commands about methods: algorithms and cite."""

import inspect
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text

from fedlap.algorithms import ALGORITHMS
from fedlap.cli import console
from fedlap.cli.arguments import algorithm_names
from fedlap.cli.settings_table import first_line, settings
from fedlap.cli.threads import use_threads
from fedlap.data import SOURCES
from fedlap.errors import InputError, UnsuitedError, unknown
from fedlap.experiments.experiment import Experiment, takes_graph
from fedlap.report import bytes_text
from fedlap.storage.files import parse_json, read_file, read_text


def algorithms(
    name: Annotated[str, typer.Argument(help="One of them, to be explained in full.")] = "",
    data: Annotated[str, typer.Option(help="Data set that bytes are counted on.")] = "digits",
    model: Annotated[str, typer.Option(help="Model that bytes are counted on.")] = "linear",
) -> None:
    """List the algorithms and their settings, or explain one.

    Bytes are those that each client at work sends and is sent in a round; they are counted in a round.
    """
    if name:
        (known,) = algorithm_names(name)
        print(inspect.getdoc(ALGORITHMS[known]))
        return
    use_threads(None)
    console.result(f"up, down: what a client at work sends and is sent in a round, {model} on {data}")
    console.result("")
    for known, make in ALGORITHMS.items():
        up, down = _bytes(known, data, model)
        console.result(f"{known:<14}{make.kind:<12}up {up:<10}down {down}")
        over = ["over a --graph"] if takes_graph(known) else []
        for text in (first_line(make), ", ".join(settings(make, "graph") + over)):
            console.out.print(Padding(Text(text), (0, 0, 0, 4)))


def _bytes(algorithm: str, data: str, model: str) -> list[str]:
    """What one round of this algorithm sends, a client."""
    section = {"algorithm": {"name": algorithm}, "data": {"name": data}, "model": {"name": model}}
    try:
        result = Experiment.of({**section, "rounds": 1, "evaluate_every": 0}).run()
    except UnsuitedError:
        return ["–", "–"]
    last, clients = result.scores[-1], len(result.federation.clients)
    return [bytes_text(number / clients) for number in (last.bytes_up, last.bytes_down)]


def cite(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of runs, comparisons or sweeps.")
    ] = None,
    data: Annotated[str, typer.Option(help="Data sets, with commas between.")] = "",
    algorithms: Annotated[str, typer.Option(help="Algorithms, with commas between, or 'all'.")] = "",
) -> None:
    """Print what to cite for the methods and data of runs."""
    names = algorithm_names(algorithms) if algorithms else []
    sources = [name.strip() for name in data.split(",") if name.strip()]
    for folder in folders or []:
        used = _used(folder)
        names += [name for name in used[0] if name in ALGORITHMS]
        sources += [name for name in used[1] if name in SOURCES]
    if not names and not sources:
        raise InputError("cite: name the folder of a run, or --algorithms, or --data")
    for source in sources:
        if source not in SOURCES:
            raise unknown("data set", source, SOURCES)
    texts = [ALGORITHMS[name].citation for name in names] + [SOURCES[name].citation for name in sources]
    for text in dict.fromkeys(text for text in texts if text):
        console.result(text)


def _used(folder: Path) -> tuple[list[str], list[str]]:
    """The algorithms and the data of a run, a comparison or a sweep."""
    try:
        for several in (folder / name for name in ("comparison.json", "sweep.json", "tune.json")):
            if several.is_file():
                about: dict[str, Any] = parse_json(read_file(several))
                return list(about["algorithms"]), [about["source"]]
        about = tomllib.loads(read_text(folder / "experiment.toml"))
        return [about["algorithm"]["name"]], [about["data"]["name"]]
    except (OSError, LookupError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"cite: {str(folder)!r} is not the folder of a run ({error})") from error
