"""The command that applies trained models to rows: predict."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.cli import console
from fedlap.cli.arguments import split_names
from fedlap.cli.output_files import check_output, list_run_files
from fedlap.cli.threads import use_threads
from fedlap.data.csv_dialect import Dialect, check_dialect
from fedlap.data.prediction_rows import PredictionRows, read_prediction_rows
from fedlap.errors import InputError
from fedlap.experiments.find_folder import find_folder
from fedlap.experiments.run_folder import RunFolder
from fedlap.experiments.stored_run import load_result, load_trained_models
from fedlap.personal import ModelMetadata, Personal, Personals, Predictions, compute_coefficients
from fedlap.personal.predictions import round_value
from fedlap.storage.files import write_file
from fedlap.training.metrics import METRICS

ROW_COLUMN = "row"  # numbers rows from 1, as messages do
ERROR_COLUMN = "standard_error"  # of a new target around its prediction


def predict_file(
    model: str,
    data: str,
    client: str | None,
    by: str | None,
    label: str | None,
    identifier: str | None,
    dialect: Dialect,
    probabilities: bool,
    to: Path | None,
    out: Path,
    as_json: bool,
) -> None:
    """Predict rows with trained models."""
    use_threads(None)
    is_file = Path(model).suffix == ".safetensors"
    path = Path(model) if is_file else find_folder(Path(model), out)
    models = Personal.load(path) if is_file else load_trained_models(path)
    if to is not None:
        check_output(to, [data, path, path.with_suffix(".json"), *list_run_files(path)])
    metadata = models.metadata
    selected = select_models(models, client, by)
    rows = read_prediction_rows(
        data,
        metadata.inputs,
        metadata.features,
        encoding=metadata.encoding,
        client=split_names([by or ""]),
        label=label,
        target=metadata.target,
        identifier=identifier,
        dialect=check_dialect(*dialect),
    )
    for note in rows.notes:
        console.print_remark(f"note: {note}")
    predictions = predict_rows(selected, rows)
    columns = build_columns(predictions, rows, identifier, probabilities)
    if metadata.labels is None and metadata.outputs == 1 and not is_file:
        errors = compute_prediction_errors(RunFolder.open(path), predictions.clients, rows)
        columns |= {} if errors is None else {ERROR_COLUMN: errors}
    measured = {} if rows.truth is None else score_predictions(predictions.scores, rows, metadata)
    if to is not None:
        write_file(to, format_csv(columns).encode())
    if as_json:
        names, lines = list(columns), zip(*columns.values(), strict=True)
        written = {"predictions": [dict(zip(names, line, strict=True)) for line in lines]}
        print(json.dumps({"rows": len(rows.x), **measured, **(written if to is None else {"to": str(to)})}))
        return
    if to is None:
        console.print_raw(format_csv(columns))
    print_line = console.print_remark if to is None else console.print_result
    for line in format_prediction_scores(measured):
        print_line(line)
    if to is not None:
        print_line(f"{len(rows.x)} predictions written to {to}")


def compute_prediction_errors(
    run: RunFolder, clients: Sequence[str], rows: PredictionRows
) -> list[float | None] | None:
    """Return the standard error of each row's target around its prediction; None, with a note, if unknown."""
    try:
        result = load_result(run)
    except InputError as error:
        console.print_remark(f"note: no standard errors; {error}")
        return None
    found = compute_coefficients(result.federation, result.objective, result.algorithm, result.models)
    if found is None or found.remark:
        reason = "the model is not linear" if found is None else found.remark
        console.print_remark(f"note: no standard errors; {reason}")
        return None
    position = {name: place for place, name in enumerate(result.federation.clients)}
    places = torch.tensor([position[client] for client in clients], dtype=torch.int64)
    errors = found.prediction_errors(places, rows.x.flatten(1))
    if missing := int(errors.isnan().sum()):
        console.print_remark(
            f"note: {missing} of {len(errors)} rows have no standard error: no training rows of their "
            "clients, or of connected clients, determine the prediction for such features"
        )
    return [None if math.isnan(error) else round_value(error) for error in errors.tolist()]


def predict_rows(models: Personal | Personals, rows: PredictionRows) -> Predictions:
    """Predict all rows with one client's model, or each row with the model of its client."""
    if isinstance(models, Personals):
        return models.predict(rows.clients or [], rows.x)
    return Predictions(models.metadata, (models.client,) * len(rows.x), models.scores(rows.x))


def build_columns(
    predictions: Predictions, rows: PredictionRows, identifier: str | None, every_class: bool
) -> dict[str, Sequence[Any]]:
    """Return the columns of the output by name, the row or its identifier first."""
    if every_class and predictions.metadata.labels is None:
        raise InputError("--probabilities: the model predicts real numbers, not classes; remove the option")
    columns = predictions.list_columns(every_class, rounded=True)
    if rows.identifiers is None or identifier is None:
        return {ROW_COLUMN: range(1, len(rows.x) + 1), **columns}
    if identifier in columns:
        raise InputError(
            f"--id {identifier}: the predictions have a column of this name; use another column, or rename it"
        )
    return {identifier: rows.identifiers, **columns}


def select_models(models: Personal | Personals, client: str | None, by: str | None) -> Personal | Personals:
    """Return the model of one client, or all models if every client's model predicts its rows."""
    if client is not None and by is not None:
        raise InputError("--client and --by: pass only one, a client or the column that names the client")
    if isinstance(models, Personal):
        if client not in (None, models.client) or by is not None:
            raise InputError(f"this is the model of client {models.client!r} alone; remove --client and --by")
        return models
    if client is not None:
        return models.of_client(client)
    if by is None:
        names = ", ".join(models.clients[:5]) + (", …" if len(models.clients) > 5 else "")
        raise InputError(f"a run has a model per client; choose one with --client ({names}), or pass --by")
    return models


def score_predictions(
    scores: Float[Tensor, "row output"], rows: PredictionRows, metadata: ModelMetadata
) -> dict[str, Any]:
    """Return mean loss and accuracy, or errors, over the rows whose true label or value is known."""
    known, y = rows.parse_truth(metadata.labels, metadata.outputs)
    if not len(y):
        return {"known": 0}
    y = y if metadata.labels is not None else y.to(scores.dtype)
    loss = metadata.loss.values(scores[known].unsqueeze(0), y.unsqueeze(0)).double().mean()
    scored: dict[str, Any] = {"known": len(y), "loss": float(loss)}
    if metadata.labels is not None:
        right = int((scores[known].argmax(-1) == y).sum())
        return scored | {"right": right, "accuracy": right / len(y)}
    error, spread = (scores[known] - y).double().square().sum(0), (y - y.mean(0)).double().square().sum(0)
    scored["rmse"] = float((error / len(y)).sqrt().mean())
    scored["mae"] = float((scores[known] - y).double().abs().mean())
    scored["r2"] = float((1 - error / spread).mean()) if bool((spread > 0).all()) else None
    return scored


def format_prediction_scores(measured: dict[str, Any]) -> list[str]:
    """Return the scores as text."""
    if not measured.get("known"):
        return []
    if "accuracy" not in measured:
        names = [name for name in ("rmse", "mae", "r2") if measured[name] is not None]
        values = [f"{METRICS[name].label} {METRICS[name].format(measured[name])}" for name in names]
        return [f"{', '.join(values)} of {measured['known']} rows"]
    return [f"accuracy {measured['accuracy']:.4%}, {measured['right']} of {measured['known']} rows"]


def format_csv(columns: Mapping[str, Sequence[Any]]) -> str:
    """Return CSV with a header and one line per row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()
