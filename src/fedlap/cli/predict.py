"""Commands that use trained models: export and predict."""

import csv
import io
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from jaxtyping import Float
from torch import Tensor

from fedlap.cli import console
from fedlap.cli.output_files import check_output, files_of_run
from fedlap.cli.threads import use_threads
from fedlap.data.prediction_rows import Unseen, unseen
from fedlap.errors import InputError
from fedlap.personal import About, Personal, Personals
from fedlap.storage.files import write_file

RUN = Annotated[Path, typer.Argument(help="Folder of a run.", show_default=False)]


def export(
    run: RUN,
    client: Annotated[str, typer.Option(help="Whose model.", show_default=False)],
    to: Annotated[Path, typer.Option(help="The file to write; a .json is written beside it.")] = Path(
        "model.safetensors"
    ),
) -> None:
    """Write one client's model, with all that is needed to use it, into files of its own."""
    trained = models(run)
    check_output(to, files_of_run(run))
    check_output(to.with_suffix(".json"), files_of_run(run))
    trained.of_client(client).save(to)
    console.result(f"client {client}: parameters in {to}, what they mean in {to.with_suffix('.json')}")


def predict(
    what: Annotated[str, typer.Argument(help="Folder of a run, or an exported model.", show_default=False)],
    data: Annotated[str, typer.Argument(help="Raw rows: .csv, .parquet or .npz.", show_default=False)],
    client: Annotated[str | None, typer.Option(help="Whose model of the run answers.")] = None,
    by: Annotated[
        str | None,
        typer.Option(help="Column that says whose row it is: each client's model answers its own."),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="Column with the truth, to count right answers; by default as in training."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="CSV file for the answers, instead of printing them.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")
    ] = False,
) -> None:
    """Answer rows of raw values by trained models, and say how many answers are right where that is known."""
    use_threads(None)
    given = Personal.load(what) if Path(what).suffix == ".safetensors" else models(Path(what))
    if to is not None:
        check_output(to, [data, what, Path(what).with_suffix(".json"), *files_of_run(Path(what))])
    about = given.about
    asker = chosen(given, client, by)
    rows = unseen(data, about.inputs, about.features, client=by, label=label, target=about.target)
    scores = asker.scores(rows.x) if isinstance(asker, Personal) else asker.scores(rows.clients or [], rows.x)
    answers = answered(scores, about)
    measured = {} if rows.truth is None else score(scores, rows, about)
    if to is not None:
        write_file(to, as_csv(answers).encode())
    if as_json:
        where = {"answers": answers} if to is None else {"to": str(to)}
        print(json.dumps({"rows": len(answers), **measured, **where}))
        return
    if to is None:
        console.data(as_csv(answers))
    say = console.remark if to is None else console.result
    for line in described(measured):
        say(line)
    if to is not None:
        say(f"{len(answers)} answers in {to}")


def models(run: Path) -> Personals:
    """Those that a run keeps."""
    if (run / "models" / "about.json").exists():
        return Personals.load(run / "models")
    if not run.exists():
        raise InputError(f"there is no run {str(run)!r}; give the folder of one")
    if (run / "experiment.toml").exists():
        raise InputError(f"the run {str(run)!r} has no models yet; let it finish (fedlap resume)")
    raise InputError(f"{str(run)!r} is no run: there is no experiment.toml in it; give the folder of a run")


def chosen(given: Personal | Personals, client: str | None, by: str | None) -> Personal | Personals:
    """The model that is asked, or all of them where each answers its own client's rows."""
    if client is not None and by is not None:
        raise InputError("--client and --by: give one, a client or the column that says whose row it is")
    if isinstance(given, Personal):
        if client not in (None, given.client) or by is not None:
            raise InputError(
                f"this is the model of client {given.client!r} alone; leave out --client and --by"
            )
        return given
    if client is not None:
        return given.of_client(client)
    if by is None:
        some = ", ".join(given.clients[:5]) + (", …" if len(given.clients) > 5 else "")
        raise InputError(
            f"a run has a model for each client; choose one with --client ({some}), or give --by"
        )
    return given


def answered(scores: Float[Tensor, "row output"], about: About) -> list[Any]:
    """Names of labels, or values: a number a row, or a list where there are several."""
    if about.labels is not None:
        return [about.labels[number] for number in scores.argmax(-1).tolist()]
    return scores.squeeze(1).tolist() if about.outputs == 1 else scores.tolist()


def score(scores: Float[Tensor, "row output"], rows: Unseen, about: About) -> dict[str, Any]:
    """The share of right answers and the mean loss, over rows whose truth is known."""
    known, y = rows.known(about.labels, about.outputs)
    if not len(y):
        return {"known": 0}
    y = y if about.labels is not None else y.to(scores.dtype)
    loss = about.loss.values(scores[known].unsqueeze(0), y.unsqueeze(0)).double().mean()
    made: dict[str, Any] = {"known": len(y), "loss": float(loss)}
    if about.labels is not None:
        right = int((scores[known].argmax(-1) == y).sum())
        made |= {"right": right, "accuracy": right / len(y)}
    return made


def described(measured: dict[str, Any]) -> list[str]:
    """The same in words."""
    if not measured.get("known"):
        return []
    if "accuracy" not in measured:
        return [f"loss {measured['loss']:.6g}, half the mean squared error of {measured['known']} rows"]
    return [f"accuracy {measured['accuracy']:.4%}, {measured['right']} of {measured['known']} rows"]


def as_csv(answers: list[Any]) -> str:
    """A line for each answer below a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    several = bool(answers) and isinstance(answers[0], list)
    writer.writerow([f"answer {n}" for n in range(1, len(answers[0]) + 1)] if several else ["answer"])
    writer.writerows(answer if several else [answer] for answer in answers)
    return text.getvalue()
