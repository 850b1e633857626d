"""Rows and labels per client, as text and as a figure."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from fedlap.data.federation import Federation
from fedlap.report.png import create_figure, render_png

MAX_COLUMNS = 2_000  # of the figure, which is 1,000 pixels wide


@dataclass(frozen=True, eq=False)
class DataSummary:
    """Sizes and labels of a federation."""

    title: str
    clients: tuple[str, ...]
    features: tuple[int, ...]
    labels: tuple[str, ...] | None
    train: Int64[Tensor, "client"]
    test: Int64[Tensor, "client"]
    label_counts: Int64[Tensor, "client label"] | None  # None where targets are real numbers
    remarks: list[str]

    @staticmethod
    def of(title: str, federation: Federation) -> "DataSummary":
        """Count the rows of a federation."""
        label_counts = None
        if federation.labels is not None:
            label_counts = torch.zeros(len(federation.clients), len(federation.labels), dtype=torch.int64)
            for rows in (federation.train, federation.test):
                label_counts.index_put_(
                    (rows.find_owners(), rows.y), torch.ones_like(rows.y), accumulate=True
                )
        return DataSummary(
            title,
            federation.clients,
            federation.inputs,
            federation.labels,
            federation.train.count,
            federation.test.count,
            label_counts,
            [
                *([] if federation.encoding is None else federation.encoding.describe()),
                *federation.list_warnings(),
            ],
        )

    @property
    def rows(self) -> Int64[Tensor, "client"]:
        """Training and test rows of each client."""
        return self.train + self.test

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as plain values; the standard deviation is that of a population (divisor N)."""
        rows = self.rows.double()
        return {
            "data": self.title,
            "clients": len(self.clients),
            "rows": int(rows.sum()),
            "train_rows": int(self.train.sum()),
            "test_rows": int(self.test.sum()),
            "rows_mean": float(rows.mean()),
            "rows_std": float(rows.std(correction=0)),
            "rows_min": int(rows.min()),
            "rows_max": int(rows.max()),
            "features": list(self.features),
            "labels": None
            if self.labels is None or self.label_counts is None
            else dict(zip(self.labels, self.label_counts.sum(0).tolist(), strict=True)),
            "remarks": self.remarks,
        }

    def format_lines(self) -> list[str]:
        """Return the summary as lines of text."""
        facts = self.as_dict()
        shape = "×".join(map(str, self.features))
        lines = [
            f"data        {self.title}",
            f"clients     {facts['clients']:,}",
            f"rows        {facts['rows']:,}: {facts['train_rows']:,} for training, "
            f"{facts['test_rows']:,} for testing",
            f"per client  {facts['rows_mean']:,.1f} rows on average, standard deviation "
            f"{facts['rows_std']:,.2f}, from {facts['rows_min']:,} to {facts['rows_max']:,}",
            f"features    {shape}",
        ]
        if facts["labels"] is None:
            lines.append("targets     real numbers")
        else:
            shown = [f"{name}: {count:,}" for name, count in list(facts["labels"].items())[:20]]
            more = len(facts["labels"]) - len(shown)
            lines.append(f"labels      {', '.join(shown)}{f' and {more} more' if more else ''}")
        return lines + [f"note        {remark}" for remark in self.remarks]


def draw_clients(description: DataSummary) -> bytes:
    """Draw the rows of each client as PNG and, where there are labels, the rows per label below."""
    label_counts, labels = description.label_counts, description.labels
    panels = 1 if label_counts is None or labels is None else 2
    height = 2.2 if panels == 1 else 2.2 + min(6.0, 0.8 + 0.25 * len(labels or ()))
    figure, axes = create_figure(
        panels,
        1,
        figsize=(10, height),
        layout="constrained",
        sharex=True,
        squeeze=False,
        height_ratios=[2.2, height - 2.2][:panels],
    )
    # More columns than pixels are slow to draw and invisible, so neighbouring clients are averaged.
    clients_per_column = -(-len(description.clients) // MAX_COLUMNS)
    starts = np.arange(0, len(description.clients), clients_per_column)
    per_column = np.diff([*starts, len(description.clients)])
    top = axes[0, 0]
    train, test = (
        np.add.reduceat(count.numpy(), starts) / per_column for count in (description.train, description.test)
    )
    edges = np.arange(len(train) + 1) - 0.5
    top.stairs(train, edges, fill=True, label="training")
    top.stairs(train + test, edges, baseline=train, fill=True, label="test")
    top.set_ylabel("rows")
    top.margins(x=0)
    figure.legend(fontsize="small", ncols=2, loc="outside upper right")
    if label_counts is not None and labels is not None:
        below = axes[1, 0]
        shown = np.add.reduceat(label_counts.numpy(), starts).T / per_column
        shown[shown == 0] = np.nan
        image = below.imshow(shown, aspect="auto", interpolation="nearest", cmap="viridis_r", vmin=0)
        step = max(1, -(-len(labels) // 30))
        below.set_yticks(range(0, len(labels), step), labels[::step], fontsize="small")
        figure.colorbar(image, ax=below, label="rows", pad=0.01)
    step = max(1, -(-len(starts) // 30))
    names = [description.clients[place] for place in starts[::step]]
    axes[-1, 0].set_xticks(range(0, len(starts), step), names, rotation=90, fontsize="small")
    axes[-1, 0].set_xlabel(
        "client"
        if clients_per_column == 1
        else f"client (columns are means over {clients_per_column} clients)"
    )
    figure.suptitle(f"{description.title}: {len(description.clients)} clients")
    return render_png(figure)
