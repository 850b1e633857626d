"""Remarks about valid data that may surprise the user."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fedlap.errors import InputError

if TYPE_CHECKING:
    from fedlap.data.federation import Federation


def list_remarks(federation: "Federation") -> list[str]:
    """Return remarks about rows, levels, features and clients of a federation, one line each."""
    remarks = list(federation.notes)
    if federation.encoding is not None and federation.raw is not None:
        remarks += federation.encoding.describe_unknown_levels(
            federation.raw, federation.test.row, "test rows"
        )
    return remarks + _describe_lost_features(federation) + _describe_clients(federation)


def _describe_clients(federation: "Federation") -> list[str]:
    """Describe clients with one label, or without test rows."""
    clients, labels, train = federation.clients, federation.labels, federation.train
    findings = []
    if labels is not None and len(labels) > 1:
        seen = torch.zeros(len(clients), len(labels), dtype=torch.bool)
        seen[train.find_owners(), train.y] = True
        if int(seen.any(0).sum()) == 1:
            return ["all training rows have the same label, so there is nothing to learn"]
        findings.append(
            (seen.sum(1) == 1, "training rows of one label only, so their local models know no other")
        )
    findings.append((federation.test.count == 0, "no test rows and do not count in test scores"))
    return [
        f"{len(names)} of {len(clients)} clients have {complaint}: {abbreviate_names(names)}"
        for mask, complaint in findings
        if (names := [clients[k] for k in mask.nonzero().flatten().tolist()])
    ]


def _describe_lost_features(federation: "Federation") -> list[str]:
    """Describe features that differ between clients only, which a scale per client turns into zeros."""
    train, scale = federation.train, federation.scale
    if scale.kind != "client" or train.store.dim() != 2 or len(federation.clients) < 2:
        return []
    # A constant feature has the factor one; so has a feature of deviation one, hence the values are compared.
    suspects = (scale.factor == 1).all(0).nonzero().flatten()
    x = train.store[:, suspects][train.row]
    begin = x[train.first]
    is_lost = (x == begin.repeat_interleave(train.count, 0)).all(0) & (begin != begin[:1]).any(0)
    names = [
        str(place) if federation.features is None else federation.features[place]
        for place in suspects[is_lost].tolist()
    ]
    if not names:
        return []
    return [
        f"{len(names)} of {train.store.shape[1]} features are constant within every client, and scale = "
        f"client turns them into zeros; use scale = pooled: {abbreviate_names(names)}"
    ]


def leave_out_clients(clients: Sequence[str], empty: Sequence[int]) -> tuple[list[int], tuple[str, ...]]:
    """Return the clients that remain without those that have no training rows, and a remark about these."""
    if len(empty) == len(clients):
        raise InputError("no client has training rows; add rows", scope="data")
    if not empty:
        return list(range(len(clients))), ()
    names = abbreviate_names([clients[k] for k in empty])
    note = f"{len(empty)} of {len(clients)} clients have no training rows and are left out: {names}"
    left_out = set(empty)
    return [k for k in range(len(clients)) if k not in left_out], (note,)


def abbreviate_names(names: Sequence[str]) -> str:
    """Return the first five names."""
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
