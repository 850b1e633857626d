"""Commands about data sets: list, get, describe, make and write."""

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from fedlap.cli import console
from fedlap.cli.arguments import assign, describe_experiment, parse_assignment
from fedlap.cli.output_files import check_output, list_input_files
from fedlap.cli.settings_table import format_settings, summarise_docstring
from fedlap.data import SOURCES, LargeSynthetic, store_federation, write_federation
from fedlap.data.partition import NATURAL, PARTITIONS
from fedlap.errors import InputError, unknown_name_error
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.run_folder import create_out_folder
from fedlap.experiments.settings import complete_section, split_section
from fedlap.report import DataSummary, draw_clients
from fedlap.storage.files import write_file


def list_data_sets() -> None:
    """List data sets and partitions with their settings."""
    table = Table("data set", "description", "state")
    table.add_column("settings and defaults", overflow="fold")
    for name, source in SOURCES.items():
        settings = [*format_settings(source.make, "seed"), f"scale = {source.scale}"]
        if source.partition is not None:
            settings += [f"partition.{key} = {value}" for key, value in vars(source.partition).items()]
        state = "ready" if source.distribution is None else source.distribution.find_state()
        state = {"file": "your file", "folder": "your folder"}.get(name, state)
        table.add_row(name, source.about, state, ", ".join(settings))
    console.out.print(table)
    table = Table("partition", "description", "settings and defaults")
    table.add_row(NATURAL, "Every row stays with the client that it came from.", "")
    for name, make in PARTITIONS.items():
        table.add_row(name, summarise_docstring(make), ", ".join(format_settings(make)))
    console.out.print(table)


def download_data_sets(names: list[str]) -> None:
    """Download and verify data sets."""
    known = {name: source.distribution for name, source in SOURCES.items() if source.distribution is not None}
    for name in dict.fromkeys(known if "all" in names else names):
        if name in SOURCES and name not in known:
            raise InputError(f"data {name!r} needs no download; choose from {', '.join(known)}")
        if name not in known:
            raise unknown_name_error("data set to download", name, known)
        arrays = known[name].load_arrays()
        console.print_result(f"{name}: ready, {len(arrays['y']):,} rows")


def make_federation(folder: Path, options: dict[str, Any]) -> None:
    """Generate a synthetic federation of any size into a folder."""
    section = {name: value for name, value in options.items() if name != "set" and value is not None}
    for assignment in options["set"] or []:
        field, value = parse_assignment(assignment)
        if not field.startswith("data."):
            raise InputError(f"--set {assignment}: data make only uses data; write --set data.{assignment}")
        section[field.removeprefix("data.")] = value
    _, settings = split_section(complete_section("data", "synthetic", LargeSynthetic, section))
    written = write_federation(folder, LargeSynthetic(**settings))
    rows = int(written.count_rows().sum())
    console.print_result(f"clients    {written.clients:,}, {settings['structure']}")
    console.print_result(
        f"rows       {rows:,} for training, {written.clients * settings['test_rows']:,} for tests"
    )
    console.print_result(f"edges      {written.weights.nnz // 2:,}, ρ = {written.rho:.4g}")
    console.print_result(f"written    {folder}")


def write_data_set(data: str, folder: Path, options: dict[str, Any]) -> None:
    """Write a data set, divided among its clients, into a folder."""
    experiment = Experiment.of(describe_data("write", data, options))
    federation, graph = experiment.load()
    written = store_federation(folder, federation, graph)
    console.print_result(f"clients    {written.clients:,}, features scaled {written.scale!r}")
    rows = (f"{len(of_split.row):,}" for of_split in (federation.train, federation.test))
    console.print_result("rows       {} for training, {} for tests".format(*rows))
    console.print_result("graph      " + ("none" if graph is None else f"{graph.edges:,} edges"))
    console.print_result(f"written    {folder}")


def describe_data(command: str, data: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the description of an experiment that has data alone."""
    description = describe_experiment({"data": data, **options})
    for assignment in options["set"] or []:
        if assignment.partition("=")[0].partition(".")[0] not in ("data", "partition", "scarce", "seed"):
            raise InputError(
                f"--set {assignment}: data {command} only uses data, partition, scarce and seed; remove it"
            )
        assign(description, assignment)
    return description


def describe_data_set(data: str, options: dict[str, Any]) -> None:
    """Describe and plot a data set and its clients."""
    description = describe_data("describe", data, options)
    create_out_folder(options["out"])
    experiment = Experiment.of(description)
    figure = options["out"] / f"{experiment.title}-clients-{experiment.digest}.png"
    check_output(figure, list_input_files(experiment))
    facts = DataSummary.of(experiment.title, experiment.load()[0])
    write_file(figure, draw_clients(facts))
    source = SOURCES[experiment.data["name"]]
    if options["json"]:
        origin = {"citation": source.citation, "terms": source.terms, "picture": str(figure)}
        print(json.dumps({**facts.as_dict(), **origin}))
        return
    for line in facts.format_lines():
        console.print_result(line)
    if source.citation:
        console.print_result(f"cite        {source.citation}")
        console.print_result(f"terms       {source.terms}")
    console.print_result(f"figure      {figure}")
