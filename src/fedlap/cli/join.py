"""The command that trains a client after a run, from its neighbours' models: join."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from fedlap.algorithms.local_work import BatchSize
from fedlap.cli import console
from fedlap.cli.neighbours import parse_neighbours
from fedlap.cli.output_files import check_output, list_run_files
from fedlap.cli.predict import format_prediction_scores, score_predictions
from fedlap.cli.threads import use_threads
from fedlap.data.prediction_rows import PredictionRows, read_prediction_rows
from fedlap.data.splits import draw_test_rows
from fedlap.errors import InputError
from fedlap.experiments.find_folder import find_folder
from fedlap.experiments.stored_run import load_trained_models
from fedlap.personal import ModelMetadata, Personal, Personals
from fedlap.randomness import digest_names


def train_newcomer(
    run: Path,
    data: str,
    neighbours: Sequence[str],
    label: str | None,
    test_share: float,
    settings: dict[str, Any],
    to: Path,
    out: Path,
    as_json: bool,
) -> None:
    """Train and store the model of a new client, and print what was done.

    settings: rounds, batch, lr, seed and name, as for `Personals.join`.
    """
    use_threads(None)
    folder = find_folder(run, out)
    trained = load_trained_models(folder)
    for path in (to, to.with_suffix(".json")):
        check_output(path, [data, *list_run_files(folder)])
    weights = parse_neighbours(neighbours, trained.clients)
    rows, left_out = _read_rows(data, label, trained.metadata)
    is_test = draw_test_rows(
        digest_names((settings["name"],)), torch.tensor([len(rows.x)]), test_share, settings["seed"]
    )
    if test_share and not bool(is_test.any()):
        raise InputError(
            f"--test-share {test_share:g}: no row of {len(rows.x)} would be held out; use a larger share"
        )
    settings = {**settings, "batch": _parse_batch(settings["batch"])}
    train, test = _select_rows(rows, ~is_test), _select_rows(rows, is_test)
    _, y = train.parse_truth(trained.metadata.labels, trained.metadata.outputs)
    joined = trained.join(train.x, y, weights, **settings)
    start = trained.join(train.x, y, weights, **settings | {"rounds": 0})
    joined.save(to)
    scored = _score_rows(joined, test) if test_share else {}
    scored_start = _score_rows(start, test) if test_share else {}
    name, rounds = settings["name"], settings["rounds"]
    facts = {"client": name, "neighbours": weights, "rounds": rounds, "rows": len(train.x)}
    if as_json:
        scores = {"test": scored, "test_of_start": scored_start} if test_share else {}
        print(json.dumps({**facts, "left_out": left_out, **scores, "to": str(to)}))
        return
    for line in _describe_join(trained, facts, settings, left_out):
        console.print_result(line)
    for subject, measured in ((f"model of {name}", scored), ("mean of the neighbours", scored_start)):
        for line in format_prediction_scores(measured):
            console.print_result(f"held-out rows, {subject}: {line}")
    console.print_result(f"Stored in {to} and {to.with_suffix('.json')}; `fedlap predict {to} FILE` uses it")


def _parse_batch(text: str) -> BatchSize:
    if text == "all":
        return "all"
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--batch {text}: expected a whole number or 'all'") from None


def _read_rows(path: str, label: str | None, metadata: ModelMetadata) -> tuple[PredictionRows, int]:
    """Read the rows that have a truth, and count the others."""
    rows = read_prediction_rows(
        path,
        metadata.inputs,
        metadata.features,
        encoding=metadata.encoding,
        label=label,
        target=metadata.target,
    )
    for note in rows.notes:
        console.print_remark(f"note: {note}")
    if rows.truth is None:
        wanted = "a label" if metadata.target is None else f"the column {metadata.target!r}"
        raise InputError(f"{path} has no column of true labels; add {wanted}, or name it with --label")
    known, _ = rows.parse_truth(metadata.labels, metadata.outputs)
    if not bool(known.any()):
        raise InputError(f"{path}: no row has a true label; fill in at least one")
    return _select_rows(rows, known), int((~known).sum())


def _select_rows(rows: PredictionRows, mask: Bool[Tensor, "row"]) -> PredictionRows:
    truth = [value for value, wanted in zip(rows.truth or [], mask.tolist(), strict=True) if wanted]
    return replace(rows, x=rows.x[mask], truth=truth)


def _score_rows(personal: Personal, rows: PredictionRows) -> dict[str, Any]:
    return score_predictions(personal.scores(rows.x), rows, personal.metadata)


def _describe_join(
    trained: Personals, facts: dict[str, Any], settings: dict[str, Any], left_out: int
) -> list[str]:
    """Return what was done: the neighbours, the rows and the steps."""
    method = trained.join_settings
    assert method is not None  # else `join` has raised
    edges = ", ".join(f"{name} {weight:g}" for name, weight in facts["neighbours"].items())
    work = method.work
    unit = "epoch" if work.epochs else "step"
    lr = f"lr {method.choose_lr(settings['lr']):g}"
    pull = "no pull" if method.strength is None else f"pull of strength {method.strength:g}"
    lines = [
        f"{facts['client']} joins {len(trained.clients)} clients; neighbours and weights: {edges}",
        f"{facts['rounds']} rounds of {work.repeats} {unit}{'s' if work.repeats > 1 else ''} on "
        f"{facts['rows']} rows, {lr}, {pull} ({method.method})",
    ]
    if left_out:
        lines.append(f"{left_out} rows without a true label are left out")
    return lines
