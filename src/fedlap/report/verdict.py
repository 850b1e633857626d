"""The leading row in words: by how much it leads, and whether that is significant."""

from collections.abc import Callable, Sequence

from fedlap.report.paired_tests import RowTest, critical_t
from fedlap.training.metrics import Metric


def describe_lead(
    leader: str,
    comparisons: Sequence[RowTest],
    seeds: int,
    metric: Metric,
    against: Callable[[str], str],
) -> list[str]:
    """Return a claim, the test behind it, and one line per other row, whatever its outcome."""
    score = f"pooled test {metric.label}"
    claim = f"{leader} has the {'highest' if metric.higher_is_better else 'lowest'} {score}"
    if all(lead.pair.identical for lead in comparisons):
        return [f"all have the same {score} at {'every' if seeds > 1 else 'this'} seed"]
    lines = [
        f"  {against(lead.other)}{_format_difference(lead, metric)}{_format_outcome(lead)}"
        for lead in comparisons
    ]
    if seeds == 1:
        return [f"{claim} at one seed; an interval and a test need two seeds or more:", *lines]
    return [
        f"{claim}; the difference is {_count_significant(comparisons)}.",
        *_describe_test(len(comparisons), seeds),
        *lines,
    ]


def describe_control(test: RowTest, metric: Metric, text: str) -> str:
    """Return the difference of a graph and its shuffled form, and what it says about the graph."""
    outcome = {
        "better": "this graph helps",
        "worse": "this graph harms",
        "not significant": "not significant, so this graph is not shown to help",
        "identical": "identical",
        "no test": "no test",
    }[test.describe_outcome(metric.higher_is_better)]
    p = "" if test.p_adjusted is None else f", {_format_p_value(test.p_adjusted)}"
    return f"{text}{_format_difference(test, metric)}{p} — {outcome}"


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


def _format_difference(lead: RowTest, metric: Metric) -> str:
    """Format a difference with its interval, in points or in the unit of the metric."""
    pair = lead.pair
    ends = "" if pair.interval is None else ", ".join(map(metric.format_difference, pair.interval))
    unit = " points" if metric.is_percent else ""
    return f"{metric.format_difference(pair.mean)}{f' [{ends}]' if ends else ''}{unit}"


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
