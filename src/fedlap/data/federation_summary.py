"""Facts about a federation for its repr and for notebooks, without values of rows or targets."""

from typing import TYPE_CHECKING

from fedlap.summaries import build_html_table, build_summary, count_nouns, summarise_names

if TYPE_CHECKING:
    from fedlap.data.federation import Federation


def summarise_federation(federation: "Federation") -> str:
    """Return the clients and the numbers of rows, features and targets on one line."""
    return build_summary(
        "Federation",
        summarise_names(federation.clients, "client"),
        f"{_count_rows(federation)} rows",
        f"features of shape {federation.inputs}",
        _count_targets(federation, "real target"),
        f"scale {federation.scale.kind!r}",
    )


def tabulate_federation(federation: "Federation") -> str:
    """Return the same facts as an HTML table, whose first column names them."""
    facts = {
        "clients": summarise_names(federation.clients),
        "rows": _count_rows(federation),
        "shape of features": str(federation.inputs),
        "target": _count_targets(federation, "real number"),
        "scale": federation.scale.kind,
    }
    return build_html_table("Federation", facts)


def _count_rows(federation: "Federation") -> str:
    train, test = (int(rows.count.sum()) for rows in (federation.train, federation.test))
    return f"{train:,} training and {test:,} test"


def _count_targets(federation: "Federation", real: str) -> str:
    return count_nouns(federation.outputs, real if federation.labels is None else "label")
