"""Who leads, by how much, and whether that is shown, in words."""

from collections.abc import Callable, Sequence

from fedlap.report.paired_tests import Lead, reach


def verdict(
    leader: str, made: Sequence[Lead], seeds: int, classifies: bool, against: Callable[[str], str]
) -> list[str]:
    """A claim, how it was tested, and a line for each other row, whoever that favours."""
    what = "test accuracy (pooled)" if classifies else "test loss (pooled, lower is better)"
    if all(lead.pair.same for lead in made):
        return [f"all have the same {what} at {'every' if seeds > 1 else 'this'} seed"]
    lines = [f"  {against(lead.other)}{_difference(lead, classifies)}{_note(lead)}" for lead in made]
    if seeds == 1:
        return [f"{leader} leads in {what} at one seed, which allows no interval and no test:", *lines]
    return [f"{leader} leads in {what}; the test {_support(made)}.", *_method(len(made), seeds), *lines]


def _support(made: Sequence[Lead]) -> str:
    shown, all_ = sum(lead.shown is True for lead in made), len(made)
    if all_ == 1:
        return "supports it" if shown else "does not support it"
    return f"supports it against {shown or 'none'} of {all_}"


def _method(others: int, seeds: int) -> list[str]:
    """What the numbers in the lines below are."""
    lines = [f"Paired over {seeds} seeds: difference [its 95 % interval], p of a two-sided t-test"]
    if others == 1:
        lines[-1] += ":"
    else:
        pairs = others * (others + 1) // 2
        lines.append(f"by Holm's rule for all {pairs} pairs, since these scores picked the leader:")
    if seeds == 2:
        lines.insert(0, f"Two seeds hardly show anything: it takes {reach(2):.1f} standard errors or more.")
    return lines


def _difference(lead: Lead, classifies: bool) -> str:
    """In points of accuracy, or as a loss."""
    unit, factor, digits = (" points", 100.0, 2) if classifies else ("", 1.0, 4)
    pair = lead.pair
    ends = "" if pair.interval is None else ", ".join(f"{factor * end:+z.{digits}f}" for end in pair.interval)
    return f"{factor * pair.mean:+z.{digits}f}{f' [{ends}]' if ends else ''}{unit}"


def _note(lead: Lead) -> str:
    """What the test says."""
    if lead.p_adjusted is not None:
        p = "p < 0.0001" if lead.p_adjusted < 1e-4 else f"p = {lead.p_adjusted:.2g}"
        return f", {p} — {'better' if lead.shown else 'not shown'}"
    if lead.pair.same:
        return " — the same"
    return "" if lead.pair.error is None else " — at every seed; without a spread there is no test"
