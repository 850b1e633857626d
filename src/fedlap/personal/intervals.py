"""Standard errors whose 95 % intervals hold although the variances of differences are estimated."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from scipy.special import betaincinv
from torch import Tensor

COVERAGE = 0.95
QUANTILE = 1.959964  # half the width of a normal interval of this level, in standard errors
DIRECTIONS = 64  # values of r that stand for its distribution; half-widths are exact to half a percent
SMALLEST_SHAPE = 1e-3  # of the distribution of r², whose second shape is 0 for one square
HALVINGS = 30  # of the interval in which a half-width is sought; leaves a relative error of 1e-8


@dataclass(frozen=True, eq=False)
class ErrorNodes:
    """Distribution of each client's error at equally likely values of the variances of differences.

    noise, bias: the covariance of the error over rows, and that over true models, which add up.
    rest: the covariance that remains once the rows are known.
    ratio: the mean square of the differences that the rows show, relative to its mean at these variances.
    freedom: ν, the number of squares in this mean.

    The variance v of the error that exceeds `rest` is linear in the differences that the rows show. Given
    their mean square, this part of the error is √(ratio · ν · v) r, where r is a coordinate of a random
    direction: r² ~ Beta(½, (ν − 1)/2). A part that is noise is not taken to be smaller or larger by chance:
    at most the bias counts in v.
    """

    noise: Float64[Tensor, "client param param"]
    bias: Float64[Tensor, "node client param param"]
    rest: Float64[Tensor, "node client param param"]
    ratio: Float64[Tensor, "node param"]
    freedom: Float64[Tensor, "param"]

    def find_half_widths(self) -> Float64[Tensor, "client param"]:
        """Return the half-widths of intervals around zero that hold the errors with probability COVERAGE."""
        noise, bias = self.noise.diagonal(dim1=1, dim2=2), self.bias.diagonal(dim1=2, dim2=3)
        total = noise + bias
        rest = torch.minimum(torch.maximum(self.rest.diagonal(dim1=2, dim2=3), noise), total)
        scale = (self.ratio.unsqueeze(1) * (total - rest)).sqrt()  # (node, client, param)
        centres = (scale.unsqueeze(3) * _draw_directions(self.freedom)).permute(1, 2, 0, 3)
        spread = rest.sqrt().permute(1, 2, 0).unsqueeze(3).clamp_min(torch.finfo(torch.float64).tiny)
        low, high = torch.zeros_like(total[0]), (centres + 6 * spread).flatten(2).amax(2)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            edge = middle[:, :, None, None]
            inside = torch.special.ndtr((edge - centres) / spread)
            inside -= torch.special.ndtr((-edge - centres) / spread)
            enough = inside.mean((2, 3)) >= COVERAGE
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        return high


def scale_covariance(nodes: ErrorNodes) -> Float64[Tensor, "client param param"]:
    """Return the mean covariance, scaled so that QUANTILE standard errors are the half-widths."""
    mean = nodes.noise + nodes.bias.mean(0)
    error = mean.diagonal(dim1=1, dim2=2).sqrt()
    factor = (nodes.find_half_widths() / (QUANTILE * error)).nan_to_num(1.0, posinf=1.0)
    return mean * factor.unsqueeze(2) * factor.unsqueeze(1)


def _draw_directions(freedom: Float64[Tensor, "param"]) -> Float64[Tensor, "param direction"]:
    """Return equally likely values of √ν |r| for each ν; those of a normal distribution if ν is infinite."""
    levels = (torch.arange(DIRECTIONS, dtype=torch.float64) + 0.5) / DIRECTIONS
    normal = torch.special.ndtri((1 + levels) / 2)
    rows = []
    for number in freedom.tolist():
        if math.isinf(number):
            rows.append(normal)
            continue
        squares = betaincinv(0.5, max((number - 1) / 2, SMALLEST_SHAPE), levels.numpy())
        rows.append((number * torch.from_numpy(squares)).sqrt())
    return torch.stack(rows)
