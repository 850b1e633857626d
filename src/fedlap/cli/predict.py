"""The command that applies trained models to rows: predict."""

import csv
import io
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from jaxtyping import Float
from torch import Tensor

from fedlap.cli import console
from fedlap.cli.options import DATA_PANEL, OUTPUT_PANEL, JsonOption
from fedlap.cli.output_files import check_output, list_run_files
from fedlap.cli.threads import use_threads
from fedlap.data.prediction_rows import PredictionRows, read_prediction_rows
from fedlap.errors import InputError
from fedlap.experiments.stored_run import load_trained_models
from fedlap.personal import ModelMetadata, Personal, Personals
from fedlap.storage.files import write_file

MODEL_PANEL = "Model"


def predict_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Folder of a run, or an exported .safetensors model.", show_default=False
        ),
    ],
    data: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="File of unscaled rows: .csv, .parquet or .npz.", show_default=False
        ),
    ],
    client: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Client whose model predicts.", rich_help_panel=MODEL_PANEL),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column that names the client whose model predicts the row.",
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column of true labels, to score predictions. Default: the label column of training.",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV file to write predictions to, instead of stdout.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict rows with trained models.

    If the rows have true labels or values, the accuracy or the loss is printed too.
    """
    use_threads(None)
    models = (
        Personal.load(model) if Path(model).suffix == ".safetensors" else load_trained_models(Path(model))
    )
    if to is not None:
        check_output(to, [data, model, Path(model).with_suffix(".json"), *list_run_files(Path(model))])
    metadata = models.metadata
    selected = select_models(models, client, by)
    rows = read_prediction_rows(
        data, metadata.inputs, metadata.features, client=by, label=label, target=metadata.target
    )
    if isinstance(selected, Personal):
        scores = selected.scores(rows.x)
    else:
        scores = selected.scores(rows.clients or [], rows.x)
    answers = decode_predictions(scores, metadata)
    measured = {} if rows.truth is None else score_predictions(scores, rows, metadata)
    if to is not None:
        write_file(to, format_csv(answers).encode())
    if as_json:
        answer = {"answers": answers} if to is None else {"to": str(to)}
        print(json.dumps({"rows": len(answers), **measured, **answer}))
        return
    if to is None:
        console.print_raw(format_csv(answers))
    print_line = console.print_remark if to is None else console.print_result
    for line in format_prediction_scores(measured):
        print_line(line)
    if to is not None:
        print_line(f"{len(answers)} predictions written to {to}")


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


def decode_predictions(scores: Float[Tensor, "row output"], metadata: ModelMetadata) -> list[Any]:
    """Return names of labels, or values: a number per row, or a list if there are several outputs."""
    if metadata.labels is not None:
        return [metadata.labels[number] for number in scores.argmax(-1).tolist()]
    return scores.squeeze(1).tolist() if metadata.outputs == 1 else scores.tolist()


def score_predictions(
    scores: Float[Tensor, "row output"], rows: PredictionRows, metadata: ModelMetadata
) -> dict[str, Any]:
    """Return accuracy and mean loss over the rows whose true label or value is known."""
    known, y = rows.parse_truth(metadata.labels, metadata.outputs)
    if not len(y):
        return {"known": 0}
    y = y if metadata.labels is not None else y.to(scores.dtype)
    loss = metadata.loss.values(scores[known].unsqueeze(0), y.unsqueeze(0)).double().mean()
    scored: dict[str, Any] = {"known": len(y), "loss": float(loss)}
    if metadata.labels is not None:
        right = int((scores[known].argmax(-1) == y).sum())
        scored |= {"right": right, "accuracy": right / len(y)}
    return scored


def format_prediction_scores(measured: dict[str, Any]) -> list[str]:
    """Return the scores as text."""
    if not measured.get("known"):
        return []
    if "accuracy" not in measured:
        return [f"loss {measured['loss']:.6g}, half the mean squared error of {measured['known']} rows"]
    return [f"accuracy {measured['accuracy']:.4%}, {measured['right']} of {measured['known']} rows"]


def format_csv(answers: list[Any]) -> str:
    """Return CSV with a header and one line per prediction."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    several = bool(answers) and isinstance(answers[0], list)
    writer.writerow([f"answer {n}" for n in range(1, len(answers[0]) + 1)] if several else ["answer"])
    writer.writerows(answer if several else [answer] for answer in answers)
    return text.getvalue()
