"""What folders of results hold: the runs of a comparison, a sweep or a tuning, or runs that were named."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlap.errors import DivergedError, InputError
from fedlap.experiments.run_folder import RunFolder
from fedlap.report.comparison import Comparison, Outcome
from fedlap.report.sweep_table import Sweep, shown
from fedlap.report.tuning_table import Tuning
from fedlap.storage.files import parse_json, read_file, refuse_links

# The files in which commands keep what they made, and where those have each row's last scores.
FILES = {"compare": "comparison.json", "sweep": "sweep.json", "tune": "tune.json"}
SAME = ("data", "partition", "scarce", "fold")  # of experiments that can be held against each other
OWN = ("seed", "content")  # of a run among those of a row


@dataclass(frozen=True, eq=False)
class Kept:
    """What was compared, the runs of each row in the order of its seeds, and the command that made them."""

    made: Comparison
    runs: dict[str, list[RunFolder]]
    folder: Path
    command: str

    @property
    def first_row(self) -> list[RunFolder]:
        """The runs that say what all have in common."""
        return next(iter(self.runs.values()))

    def rounds(self, row: str) -> int:
        """The round that a row's scores are of; of one that diverged, the rounds that were asked for."""
        finished = self.made.finished(row)
        return finished[0][-1].round if finished else self.runs[row][0].experiment.rounds

    def trained_further(self, row: str) -> str | None:
        """Why the models of a row do not belong to its scores; None if they do."""
        for run, outcome in zip(self.runs[row], self.made.runs[row], strict=True):
            if not isinstance(outcome, DivergedError) and run.saved[:1] != [outcome[-1].round]:
                at, saved = outcome[-1].round, next(iter(run.saved), 0)
                return (
                    f"it was trained further since round {at}, and its models are of round {saved}; repeat "
                    f"the command with --rounds {saved}"
                )
        return None


def kept(folders: Sequence[Path]) -> Kept:
    """What is in these folders: one that a command wrote, or runs."""
    for folder in folders:
        command = next((name for name, file in FILES.items() if (folder / file).is_file()), None)
        if command is not None and len(folders) > 1:
            raise InputError(f"report: {str(folder)!r} holds several runs already; name it alone")
        if command is not None:
            return _written(folder, command)
    return _named([_opened(folder) for folder in folders])


def _opened(folder: Path) -> RunFolder:
    inside = sorted(path.parent for file in FILES.values() for path in folder.glob(f"*/{file}"))
    if inside:
        raise InputError(f"{str(folder)!r} holds results of several commands; name one, as {inside[-1]}")
    return RunFolder.open(folder)


def _written(folder: Path, command: str) -> Kept:
    """What `compare`, `sweep` or `tune` wrote."""
    path = folder / FILES[command]
    try:
        facts = parse_json(read_file(path))
        refuse_links(folder, ("report",))
        _check_facts(facts)
        rows = _rows(facts, command)
        return _as_written(folder, command, facts, rows)
    except KeyError as error:
        raise InputError(
            f"{str(path)!r} does not say {error}; let `fedlap {command}` write it again, which trains "
            "nothing that is there"
        ) from None
    except InputError:
        raise
    except (OSError, ValueError, TypeError, AttributeError, LookupError, StopIteration):
        raise InputError(f"{str(path)!r} is damaged; let `fedlap {command}` write it again") from None


def _check_facts(facts: dict[str, Any]) -> None:
    """Raise ValueError for facts of another type than commands write."""
    kinds = {
        "data": str,
        "source": str,
        "command": str,
        "folds": int,
        "seeds": list,
        "fields": list,
        "kept": dict,
    }
    if any(name in facts and not isinstance(facts[name], kind) for name, kind in kinds.items()):
        raise ValueError("a fact has another type than was written")
    seeds, fields = facts["seeds"], facts.get("fields", [])
    if not all(type(seed) is int for seed in seeds) or not all(isinstance(name, str) for name in fields):
        raise ValueError("a seed is no whole number, or a field has no name")
    for names in facts["kept"].values():
        if len(names) != len(seeds) * facts.get("folds", 1) or not names:
            raise ValueError("a row has not a run for each seed")
        if any(not isinstance(name, str) or name == ".." or Path(name).name != name for name in names):
            raise ValueError("a run is not one beside this folder")


def _rows(facts: dict[str, Any], command: str) -> list[dict[str, Any]]:
    """Each row's values and last scores."""
    if command == "compare":
        return [{"values": {}, "scores": scores} for scores in facts["algorithms"].values()]
    return list(facts["runs" if command == "sweep" else "candidates"])


def _as_written(folder: Path, command: str, facts: dict[str, Any], rows: list[dict[str, Any]]) -> Kept:
    runs = {
        label: [RunFolder(folder.parent / name) for name in names] for label, names in facts["kept"].items()
    }
    reasons = iter(facts["diverged"])  # in the order of rows and seeds
    outcomes: dict[str, list[Outcome]] = {}
    for (label, own), row in zip(runs.items(), rows, strict=True):
        outcomes[label] = [
            DivergedError(next(reasons)["reason"]) if last is None else _scores(run, last["round"])
            for run, last in zip(own, row["scores"], strict=True)
        ]
    common = facts["data"], facts["seeds"], outcomes, facts["source"]
    values = {label: tuple(row["values"].values()) for label, row in zip(runs, rows, strict=True)}
    made: Comparison
    if command == "compare":
        made = Comparison(*common)
    elif command == "sweep":
        made = Sweep(*common, tuple(facts["fields"]), values, tuple(facts["algorithms"]))
    else:
        places = [seed for seed in facts["seeds"] for _ in range(facts["folds"])]
        refused = tuple((tuple(each["values"].values()), each["reason"]) for each in facts["refused"])
        made = Tuning(
            facts["data"], places, outcomes, facts["source"], tuple(facts["fields"]), values,
            tuple(facts["algorithms"]), facts["folds"], refused,
        )  # fmt: skip
    return Kept(made, runs, folder, facts["command"])


def _scores(run: RunFolder, rounds: int) -> list[Any]:
    """Up to the round that was shown then."""
    RunFolder.open(run.folder)
    scores = [score for score in run.scores() if score.round <= rounds]
    if run.state(rounds) == "unfinished" or not scores or scores[-1].round != rounds:
        raise InputError(_unfinished(run, rounds))
    return scores


def _unfinished(run: RunFolder, rounds: int) -> str:
    at = f"saved at round {run.saved[0]} of {rounds}" if run.saved else "nothing saved yet"
    return f"{str(run.folder)!r} is not finished ({at}); `fedlap resume {run.folder}` goes on"


def _named(runs: Sequence[RunFolder]) -> Kept:
    """Runs that were named one by one: those that differ in their seeds alone are a row."""
    first, rows = runs[0].experiment, dict[str, list[RunFolder]]()
    described = {id(run): run.experiment.described() for run in runs}
    for run in runs:
        for field in SAME:
            one, other = described[id(runs[0])].get(field), described[id(run)].get(field)
            if one != other:
                raise InputError(
                    f"report: {runs[0].name} and {run.name} are of different data ({field}), so that their "
                    "scores cannot be held against each other; make a page of each"
                )
    for run in runs:
        alike = {key: value for key, value in described[id(run)].items() if key not in OWN}
        rows.setdefault(json.dumps(alike, sort_keys=True), []).append(run)
    labels = _labels([json.loads(row) for row in rows])
    ordered = {
        label: sorted(own, key=lambda run: run.experiment.seed)
        for label, own in zip(labels, rows.values(), strict=True)
    }
    seeds = {label: [run.experiment.seed for run in own] for label, own in ordered.items()}
    base = next(iter(seeds))
    for label, own_seeds in seeds.items():
        if len(set(own_seeds)) < len(own_seeds):
            raise InputError(f"report: a run of {label} is named twice")
        if own_seeds != seeds[base]:
            raise InputError(
                f"report: runs of {base} have seeds {seeds[base]} and those of {label} {own_seeds}; name "
                "runs of the same seeds"
            )
    outcomes = {label: [_outcome(run) for run in own] for label, own in ordered.items()}
    made = Comparison(first.title, seeds[base], outcomes, first.data["name"])
    again = "\n".join(f"fedlap run {run.folder / 'experiment.toml'}" for run in runs)
    return Kept(made, ordered, runs[0].folder, again)


def _outcome(run: RunFolder) -> Outcome:
    if run.state() == "diverged":
        return run.failure()
    return _scores(run, run.experiment.rounds)


def _labels(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The algorithm of each row, with what tells it from other rows of it."""
    names = [row["algorithm"]["name"] for row in rows]
    flat = [_flat(row) for row in rows]
    made = []
    for name, own in zip(names, flat, strict=True):
        others = [other for other, its in zip(flat, names, strict=True) if its == name]
        differ = {
            key: own.get(key)
            for key in sorted({key for other in others for key in other})
            if len({json.dumps(other.get(key)) for other in others}) > 1
        }
        told = [f"{key.split('.')[-1]} = {shown(value)}" for key, value in differ.items()]
        made.append(" ".join([name, f"({', '.join(told)})"]) if told else name)
    return made


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Fields by their paths."""
    made: dict[str, Any] = {}
    for key, value in row.items():
        made |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return made
