"""Facts about a federation for its repr, without values of rows or targets."""

from typing import TYPE_CHECKING

from fedlap.summaries import count_nouns, summarise_names

if TYPE_CHECKING:
    from fedlap.data.federation import Federation


def summarise_federation(federation: "Federation") -> dict[str, str]:
    """Return the clients and the numbers of rows, features and targets as texts."""
    train, test = (int(rows.count.sum()) for rows in (federation.train, federation.test))
    return {
        "clients": summarise_names(federation.clients),
        "rows": f"{train:,} training and {test:,} test rows",
        "features": f"features of shape {federation.inputs}",
        "target": count_nouns(federation.outputs, "real target" if federation.labels is None else "label"),
        "scale": f"scale {federation.scale.kind!r}",
    }
