"""The leading row in words: by how much it leads, and whether that is significant."""

from collections.abc import Callable, Sequence

from fedlap.report.paired_tests import RowTest, critical_t


def describe_lead(
    leader: str,
    comparisons: Sequence[RowTest],
    seeds: int,
    classifies: bool,
    against: Callable[[str], str],
) -> list[str]:
    """Return a claim, the test behind it, and one line per other row, whatever its outcome."""
    score = "pooled test accuracy" if classifies else "pooled test loss"
    claim = f"{leader} has the {'highest' if classifies else 'lowest'} {score}"
    if all(lead.pair.identical for lead in comparisons):
        return [f"all have the same {score} at {'every' if seeds > 1 else 'this'} seed"]
    lines = [
        f"  {against(lead.other)}{_format_difference(lead, classifies)}{_format_outcome(lead)}"
        for lead in comparisons
    ]
    if seeds == 1:
        return [f"{claim} at one seed; an interval and a test need two seeds or more:", *lines]
    return [
        f"{claim}; the difference is {_count_significant(comparisons)}.",
        *_describe_test(len(comparisons), seeds),
        *lines,
    ]


def describe_control(test: RowTest, classifies: bool, text: str) -> str:
    """Return the difference of a graph and its shuffled form, and what it says about the graph."""
    outcome = {
        "better": "this graph helps",
        "worse": "this graph harms",
        "not significant": "not significant, so this graph is not shown to help",
        "identical": "identical",
        "no test": "no test",
    }[test.describe_outcome(classifies)]
    p = "" if test.p_adjusted is None else f", {_format_p_value(test.p_adjusted)}"
    return f"{text}{_format_difference(test, classifies)}{p} — {outcome}"


def _count_significant(comparisons: Sequence[RowTest]) -> str:
    significant, total = sum(lead.significant is True for lead in comparisons), len(comparisons)
    if total == 1:
        return "significant" if significant else "not significant"
    return f"significant against {significant or 'none'} of {total} others"


def _describe_test(others: int, seeds: int) -> list[str]:
    """Return the meaning of the numbers in the lines below."""
    lines = [f"Paired over {seeds} seeds: mean difference [95 % interval], two-sided t-test p-value"]
    if others == 1:
        lines[-1] += ":"
    else:
        pairs = others * (others + 1) // 2
        lines.append(f"(Holm-corrected for all {pairs} pairs, since the same scores selected the leader):")
    if seeds == 2:
        least = f"{critical_t(2):.1f} standard errors"
        lines.insert(0, f"With two seeds, only differences of {least} or more can be significant.")
    return lines


def _format_difference(lead: RowTest, classifies: bool) -> str:
    """Format a difference in points of accuracy, or as a loss."""
    unit, factor, digits = (" points", 100.0, 2) if classifies else ("", 1.0, 4)
    pair = lead.pair
    ends = "" if pair.interval is None else ", ".join(f"{factor * end:+z.{digits}f}" for end in pair.interval)
    return f"{factor * pair.mean:+z.{digits}f}{f' [{ends}]' if ends else ''}{unit}"


def _format_outcome(lead: RowTest) -> str:
    """Format the outcome of the test."""
    if lead.p_adjusted is not None:
        outcome = "better" if lead.significant else "not significant"
        return f", {_format_p_value(lead.p_adjusted)} — {outcome}"
    if lead.pair.identical:
        return " — identical"
    return "" if lead.pair.error is None else " — equal at every seed, so no test"


def _format_p_value(p: float) -> str:
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"
