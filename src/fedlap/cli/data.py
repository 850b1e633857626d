"""Commands about data: list, get and describe."""

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from fedlap.cli import console
from fedlap.cli.arguments import assign, description
from fedlap.cli.options import CUT, RESULT, SEED, takes
from fedlap.cli.output_files import check_output, files_of_experiment
from fedlap.cli.settings_table import first_line, settings
from fedlap.data import SOURCES
from fedlap.data.partition import NATURAL, PARTITIONS
from fedlap.errors import InputError, unknown
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.run_folder import prepare
from fedlap.report import Description, draw_clients
from fedlap.storage.files import write_file


def show() -> None:
    """List the data sets and partitions, and their settings."""
    table = Table("name", "what it is", "state")
    table.add_column("settings and their defaults", overflow="fold")
    for name, source in SOURCES.items():
        shown = [*settings(source.make, "seed"), f"scale = {source.scale}"]
        if source.partition is not None:
            shown += [f"partition.{key} = {value}" for key, value in vars(source.partition).items()]
        state = "ready" if source.distribution is None else source.distribution.state()
        table.add_row(name, source.about, state if name != "file" else "yours", ", ".join(shown))
    console.out.print(table)
    table = Table("partition", "what it is", "settings and their defaults")
    table.add_row(NATURAL, "Every row belongs to the client that it came from.", "")
    for name, make in PARTITIONS.items():
        table.add_row(name, first_line(make), ", ".join(settings(make)))
    console.out.print(table)


def get(names: Annotated[list[str], typer.Argument(help="Data sets, or 'all'.")]) -> None:
    """Download data sets, unless they are here, check them, and make them ready."""
    known = {name: source.distribution for name, source in SOURCES.items() if source.distribution is not None}
    for name in dict.fromkeys(known if "all" in names else names):
        if name in SOURCES and name not in known:
            raise InputError(f"data {name!r} needs no download; those that do: {', '.join(known)}")
        if name not in known:
            raise unknown("data set to download", name, known)
        arrays = known[name].arrays()
        console.result(f"{name}: ready, {len(arrays['y']):,} rows")


@takes(CUT, SEED, RESULT)
def describe(
    data: Annotated[str, typer.Argument(help="Data set, or your own .csv, .parquet or .npz file.")],
    **given: Any,
) -> None:
    """Say what is in a data set, who has how much of it, and draw it."""
    asked = description({"data": data, **given})
    for assignment in given["set"] or []:
        if assignment.partition("=")[0].partition(".")[0] not in ("data", "partition", "scarce", "seed"):
            raise InputError(f"--set {assignment}: only data, partition, scarce and seed matter here")
        assign(asked, assignment)
    prepare(given["out"])
    experiment = Experiment.of(asked)
    picture = given["out"] / f"{experiment.title}-clients-{experiment.digest}.png"
    check_output(picture, files_of_experiment(experiment))
    made = Description.of(experiment.title, experiment.load()[0])
    write_file(picture, draw_clients(made))
    source = SOURCES[experiment.data["name"]]
    if given["json"]:
        about = {"citation": source.citation, "terms": source.terms, "picture": str(picture)}
        print(json.dumps({**made.as_dict(), **about}))
        return
    for line in made.lines():
        console.result(line)
    if source.citation:
        console.result(f"cite      {source.citation}")
        console.result(f"terms     {source.terms}")
    console.result(f"picture   {picture}")
