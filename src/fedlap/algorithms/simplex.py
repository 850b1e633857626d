"""The simplex: vectors with non-negative entries that sum to one."""

import torch
from jaxtyping import Float
from torch import Tensor


def project_to_simplex(v: Float[Tensor, "row entry"]) -> Float[Tensor, "row entry"]:
    """Return the nearest point of the simplex to each row, by one sort per row (Duchi et al., ICML 2008)."""
    falling = v.sort(descending=True).values
    excess = (falling.cumsum(1) - 1) / torch.arange(1, v.shape[1] + 1, device=v.device)
    last = ((falling > excess).sum(1, keepdim=True) - 1).clamp_min(0)  # −1 if training has diverged
    return (v - excess.gather(1, last)).clamp_min(0)
