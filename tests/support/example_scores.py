"""Scores and tables of candidates that are written by hand."""

from dataclasses import replace

from fedlap.errors import DivergedError
from fedlap.report.tuning_table import Tuning
from fedlap.training.scores import Score

BLANK = Score(0, *[0.0] * 8, 1.0, 0.0, None, 0, 0, 0.0)
UNTESTED = dict.fromkeys(
    name for name in BLANK.as_dict() if name.startswith(("accuracy", "loss"))
)  # no test rows: no test scores


def run(*accuracies, **fields):
    """Scores of a run, round after round."""
    last = len(accuracies)
    return [
        replace(BLANK, round=t, accuracy=a, accuracy_mean=a - 0.1, accuracy_worst=a - 0.2,
                accuracy_std=a / 10, bytes_up=1500 * t, bytes_down=3000 * t, seconds=0.002 * t,
                train_loss=1.0 / t, **(fields if t == last else {}))
        for t, a in enumerate(accuracies, 1)
    ]  # fmt: skip


WRONG = DivergedError("training diverged: by round 2; lower lr")


def score(accuracy, round=5):
    return Score(round, accuracy, *[accuracy] * 3, *[1 - accuracy] * 4, 0.1, 0.1, None, 0, 0, 0.1)


def make_tuning(rows, refused=(), names=("lr",)):
    """Return a table of candidates with these accuracies, fold by fold."""
    runs = {
        str(values): scores if isinstance(scores, DivergedError) else [[score(s)] for s in scores]
        for values, scores in rows.items()
    }
    runs = {
        row: [scores, scores] if isinstance(scores, DivergedError) else scores for row, scores in runs.items()
    }
    folds = max(map(len, runs.values()))
    return Tuning(
        "made up", [0] * folds, runs, "", names, {str(values): values for values in rows}, ("fedu",),
        folds, tuple((values, "why") for values in refused),
    )  # fmt: skip
