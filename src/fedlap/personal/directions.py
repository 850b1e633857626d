"""Directions of a feature space in which rows differ, and those that no row has."""

import torch
from jaxtyping import Float64
from torch import Tensor

from fedlap.personal.smoothness import SINGULAR

ROUNDING = 1e-5  # relative to the largest term; below it, a sum over float32 features is zero


def split_directions(
    products: Float64[Tensor, "width width"],
) -> tuple[Float64[Tensor, "width rank"], Float64[Tensor, "width empty"]]:
    """Return orthonormal bases of the directions in which rows differ, and of the others.

    products: XᵀX of the rows, whose last feature is the constant 1. The first basis has the axis of a feature
        that no others repeat. It begins at the intercept, so that the levels of a text have contrasts.
    """
    unit = products.diagonal().sqrt()
    unit = unit.where(unit > 0, 1)
    value, vector = torch.linalg.eigh(products / unit.unsqueeze(1) / unit)
    is_empty = value <= SINGULAR * value[-1]
    eye = torch.eye(len(unit), dtype=torch.float64)
    if not bool(is_empty.any()):
        return eye, eye[:, :0]
    empty = torch.linalg.qr(vector[:, is_empty] / unit.unsqueeze(1)).Q
    is_alone = empty.norm(dim=1) < ROUNDING
    empty = torch.linalg.qr(empty.masked_fill(is_alone.unsqueeze(1), 0)).Q
    basis, used = torch.cat([empty, torch.zeros_like(eye)], 1), empty.shape[1]
    for axis in eye.flip(0):  # Gram and Schmidt, axis by axis
        rest = axis
        for _ in range(2):  # The second time removes rounding errors.
            rest = rest - basis[:, :used] @ (basis[:, :used].mT @ rest)
        if float(rest.norm()) > ROUNDING:
            basis[:, used] = rest / rest.norm()
            used += 1
    return basis[:, empty.shape[1] : used], empty
