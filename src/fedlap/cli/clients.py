"""The command that lists answers per client: clients."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAVY
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from fedlap.algorithms import BASELINES
from fedlap.cli import console
from fedlap.cli.output_files import check_output, list_run_files
from fedlap.cli.threads import use_threads
from fedlap.cli.train_runs import start_session
from fedlap.comparisons.training import train_outcomes
from fedlap.errors import DivergedError, InputError, unknown_name_error
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.find_folder import find_run
from fedlap.experiments.prepare import prepare
from fedlap.experiments.run_folder import RunFolder
from fedlap.experiments.stored_run import load_learned_graph, load_result, load_trained_models
from fedlap.personal.coefficients import FAR_FROM_MINIMUM, format_estimate
from fedlap.report.page import Records, render_csv
from fedlap.storage.files import write_file
from fedlap.training.client_answers import (
    ClientAnswers,
    answer_clients,
    build_local_method,
    choose_client_metric,
    find_graph,
)
from fedlap.training.result import Result

MAX_SHOWN_COEFFICIENTS = 4  # in the terminal; files have all
MAX_LISTED = 5  # names of coefficients that are not shown
NEIGHBOURS_WIDTH = 24  # least characters that a terminal needs after the other columns to show neighbours
SESSION_OPTIONS: dict[str, Any] = {"again": False, "track": None, "save_rounds": None, "save_seconds": 30.0}


def list_clients(
    run: Path, out: Path, metric: str | None, sort: str | None, to: Path | None, as_json: bool
) -> None:
    """List rows, scores, gains, neighbours and coefficients of each client of a run."""
    use_threads(None)
    stored = find_run(run, out)
    if to is not None:
        check_output(to, list_run_files(stored.folder))
        if to.suffix != ".csv":
            raise InputError(f"unsupported extension in {str(to)!r}; use .csv")
    result = load_result(stored)
    if sort is not None:
        _check_column(sort, _build_answers(stored, result, metric, alone=False))
    answers = _build_answers(stored, result, metric)
    columns = answers.to_columns()
    if sort is not None and sort not in columns:  # gains may be missing
        raise unknown_name_error("column", sort, columns)
    order = _sort_rows(columns, sort)
    ordered = {name: [values[place] for place in order] for name, values in columns.items()}
    if to is not None:
        write_file(to, _format_csv(ordered).encode())
    remarks = list(_list_remarks(answers))
    if as_json:
        lines = [dict(zip(ordered, values, strict=True)) for values in zip(*ordered.values(), strict=True)]
        clients = [{name: _drop_nan(value) for name, value in line.items()} for line in lines]
        print(
            json.dumps(
                {"run": stored.name, "metric": answers.metric.name, "clients": clients, "remarks": remarks}
            )
        )
        return
    console.print_result(f"{stored.name}: {len(answers.clients)} clients at round {result.progress.round}")
    table, left_out = _build_table(answers, order, console.out.width)
    console.out.print(table)
    if left_out:
        remarks.append(f"Not shown: {left_out}. `--to FILE.csv` writes everything.")
    for remark in remarks:
        console.print_result(remark)
    if to is not None:
        console.print_result(f"{len(answers.clients)} clients written to {to}")


def _check_column(name: str, answers: ClientAnswers) -> None:
    """Raise InputError for an unknown column, before models without the others are trained."""
    columns = [*answers.to_columns(), f"{answers.metric.name}_alone", "gain"]
    if name not in columns:
        raise unknown_name_error("column", name, columns)


def _build_answers(
    stored: RunFolder, result: Result, metric: str | None, alone: bool = True
) -> ClientAnswers:
    """Build the answers; `alone` adds the models that clients train alone, and gains over them."""
    federation = result.federation
    learned = load_learned_graph(stored, federation.clients)
    graph = (
        find_graph(result.algorithm, result.server, federation.clients, federation.clients)
        if learned is None
        else learned[1].align(federation.clients)
    )
    chosen = choose_client_metric(federation, metric)
    local = _load_local_models(stored, result) if alone else None
    return answer_clients(federation, result.objective, result.algorithm, result.models, local, graph, chosen)


def _load_local_models(stored: RunFolder, result: Result) -> Any:
    """Return the models that clients train alone with the same schedule, stored or trained now."""
    description, local = stored.experiment.describe(), build_local_method(result.algorithm)
    if description["algorithm"]["name"] == BASELINES[0]:
        return None
    settings = {name: value for name, value in vars(local).items() if value is not None}
    description |= {"algorithm": {"name": BASELINES[0], **settings}, "rounds": result.progress.round}
    description.pop("graph", None)
    (ready,) = prepare([Experiment.of(description)])
    folder = RunFolder.of(stored.folder.parent, ready.experiment)
    if folder.get_status(result.progress.round) != "done":
        session = start_session({**SESSION_OPTIONS, "out": stored.folder.parent})
        (outcome,) = train_outcomes(session, [ready], [BASELINES[0]])
        if isinstance(outcome, DivergedError):
            console.print_remark(f"note: training alone diverged, so gains are omitted; {outcome}")
            return None
    if folder.saved_rounds[:1] != [result.progress.round]:
        console.print_remark(
            f"note: {folder.name} was trained to round {folder.saved_rounds[0]}, so gains are omitted; "
            f"resume {stored.name} to that round"
        )
        return None
    return load_trained_models(folder.folder).models


def _sort_rows(columns: dict[str, Any], sort: str | None) -> list[int]:
    """Return the order of rows: as in the data, or by a column, largest number or first name first."""
    rows = range(len(columns["client"]))
    if sort is None:
        return list(rows)
    values = columns[sort]
    if isinstance(values[0], str):
        return sorted(rows, key=lambda place: values[place])
    return sorted(rows, key=lambda place: math.inf if math.isnan(values[place]) else -values[place])


def _list_remarks(answers: ClientAnswers) -> list[str]:
    """Return what the columns mean, and what is not known."""
    remarks = []
    if answers.gain is not None:
        better = "higher" if answers.metric.higher_is_better else "lower"
        remarks.append(
            "Alone: the client trains without the others. Gain: positive if "
            f"{answers.metric.label} is better ({better}) than alone."
        )
    found = answers.coefficients
    if found is not None and found.remark:
        remarks.append(f"No standard errors: {found.remark}.")
    elif found is not None:
        remarks.append("Coefficients: in the units of the data, ± one standard error.")
        remarks += [found.explain_gaps()] if found.explain_gaps() else []
        if found.distance > FAR_FROM_MINIMUM:
            remarks.append(
                f"Training has not reached the minimiser of J: the largest distance of a coefficient is "
                f"{found.distance:.1f} standard errors; train more rounds."
            )
        remarks += [found.explain_excess()] if found.explain_excess() else []
    return remarks


def _build_table(answers: ClientAnswers, order: list[int], width: int) -> tuple[Table, str]:
    """Build the table, with as many coefficients as there is room for, and name the columns left out."""
    columns = _list_score_columns(answers)
    coefficients = answers.coefficients
    names = () if coefficients is None else coefficients.names
    for n, name in enumerate(names[:MAX_SHOWN_COEFFICIENTS]):
        assert coefficients is not None
        pairs = zip(coefficients.values[:, n].tolist(), coefficients.errors[:, n].tolist(), strict=True)
        column = (name, [format_estimate(value, error) for value, error in pairs])
        if _measure([*columns, column]) > width:
            break
        columns.append(column)
    shown = len(columns) - len(_list_score_columns(answers))
    has_neighbours = any(answers.neighbours)
    is_wide = width - _measure(columns) >= NEIGHBOURS_WIDTH
    table = Table(box=SIMPLE_HEAVY, padding=0, pad_edge=False)
    for place, (head, _) in enumerate(columns):
        # A long name is folded, so that no number is cut.
        table.add_column(Text(head), justify="right" if place else "left", no_wrap=place > 0, overflow="fold")
    if has_neighbours and is_wide:
        table.add_column("neighbours", overflow="fold")
    for place in order:
        cells = [values[place] for _, values in columns]
        if has_neighbours and is_wide:
            cells.append(", ".join(answers.neighbours[place]))
        table.add_row(*map(Text, cells))
    missing = names[shown:]
    listed = (
        ", ".join(missing) if len(missing) <= MAX_LISTED else f"{len(missing)} of {len(names)} coefficients"
    )
    left_out = [listed] if missing else []
    left_out += ["neighbours"] if has_neighbours and not is_wide else []
    return table, " and ".join(left_out)


def _list_score_columns(answers: ClientAnswers) -> list[tuple[str, list[str]]]:
    """Return heads and cells of the columns before the coefficients."""
    metric, gain = answers.metric, answers.gain
    columns = [
        ("client", list(answers.clients)),
        ("train\nrows", [str(int(count)) for count in answers.train_rows]),
        ("test\nrows", [str(int(count)) for count in answers.test_rows]),
    ]
    scores = [(f"{metric.label}{metric.unit}\nalone", answers.alone)] if answers.alone is not None else []
    for head, values in [*scores, (f"{metric.label}{metric.unit}", answers.score)]:
        columns.append((head, [_format_number(float(v) * metric.factor, metric.digits) for v in values]))
    if gain is not None:
        cells = [_format_number(float(value) * metric.factor, metric.digits, sign="+") for value in gain]
        columns.append(("gain", cells))
    return columns


def _measure(columns: Sequence[tuple[str, list[str]]]) -> int:
    """Return the characters that a line of the table takes."""
    widths = [max(map(cell_len, [*head.split("\n"), *cells])) for head, cells in columns]
    return sum(widths) + len(widths) + 1


def _format_number(value: float, digits: int, sign: str = "") -> str:
    return "–" if math.isnan(value) else f"{value:{sign}.{digits}f}"


def _format_csv(columns: dict[str, Any]) -> str:
    rows = [list(line) for line in zip(*columns.values(), strict=True)]
    return render_csv(Records(list(columns), rows))


def _drop_nan(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
