"""The command that deletes stored runs and groups: rm."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import typer

from fedlap.cli import console
from fedlap.errors import InputError
from fedlap.experiments.removal import RemovalPlan
from fedlap.report.comparison import format_bytes

SHOWN_NAMES = 10


def remove_runs(paths: Sequence[Path], out: Path, yes: bool, dry_run: bool) -> None:
    """Delete runs and groups after a question, unless `yes`."""
    plan = RemovalPlan.of(paths, out)
    subject = f"{_count(plan)} in {out} ({format_bytes(plan.size)})"
    if not yes and not dry_run and (sys.stdin is None or not sys.stdin.isatty()):
        raise InputError("rm: standard input is no terminal to confirm the deletion; pass --yes")
    if not yes or dry_run:
        _print_names(plan, console.print_result if dry_run else console.print_remark)
    for note in _list_notes(plan):
        console.print_remark(f"note: {note}")
    if dry_run:
        console.print_result(f"would delete {subject}")
        return
    if not yes and not typer.confirm(f"Delete {subject}?", err=True):
        console.print_remark("nothing is deleted")
        return
    remaining = plan.remove()
    console.print_result(f"deleted {subject}")
    if remaining:
        number = "1 file stays" if len(remaining) == 1 else f"{len(remaining)} files stay"
        console.print_remark(f"note: {number}, not written by fedlap, e.g. {remaining[0]}")


def _print_names(plan: RemovalPlan, print_line: Callable[[str], None]) -> None:
    for folder in plan.folders[:SHOWN_NAMES]:
        print_line(f"  {folder.name}")
    if len(plan.folders) > SHOWN_NAMES:
        print_line(f"  … and {len(plan.folders) - SHOWN_NAMES} more")


def _list_notes(plan: RemovalPlan) -> Iterator[str]:
    """Yield which runs stay, and which groups lose runs."""
    if plan.shared:
        number = "1 run stays" if len(plan.shared) == 1 else f"{len(plan.shared)} runs stay"
        yield f"{number}, since another comparison, sweep or tuning uses it"
    for name in plan.users:
        yield f"{name} loses runs; `fedlap report` cannot draw it any more"


def _count(plan: RemovalPlan) -> str:
    """Return the numbers of runs and groups as text."""
    counts = {"run": len(plan.runs), "group": len(plan.groups)}
    return " and ".join(f"{number} {name}{'s' * (number > 1)}" for name, number in counts.items() if number)
