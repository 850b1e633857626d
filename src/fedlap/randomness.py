"""Counter-based draws: every random number is a pure function of (seed, purpose, round, client, step, index).

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), in
plain integer tensor arithmetic, so that every device gives the same words. A client is known by a 64-bit
digest of its name, never by its position. No generator state exists, and no global one is read or seeded.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fedlap.errors import whole

Purpose = Literal[
    "start", "sample", "batches", "split", "partition", "scarce", "data", "coin", "heterogeneity"
]

_LOW = 0xFFFFFFFF  # the lower 32 bits of a 64-bit word
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Ten rounds of Philox4x32 on 32-bit words held in int64 tensors."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # int64 products wrap modulo 2^64, which keeps both 32-bit halves of the unsigned product intact.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> 32 & _LOW) ^ c1 ^ k0, p1 & _LOW, (p0 >> 32 & _LOW) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = k0 + _WEYL[0] & _LOW, k1 + _WEYL[1] & _LOW
    return c0, c1, c2, c3


def digest(name: str) -> int:
    """A client's 64-bit number, from its name alone (signed, as tensors hold it)."""
    return int.from_bytes(
        hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest(), "little", signed=True
    )


def digests(names: Sequence[str]) -> Int64[Tensor, "client"]:
    """The numbers of many clients."""
    return torch.tensor([digest(name) for name in names], dtype=torch.int64)


@dataclass(frozen=True)
class Draws:
    """All draws for one purpose in one round."""

    key: tuple[int, int]

    def words(
        self, client: Int64[Tensor, "*shape"], step: Int64[Tensor, "*shape"] | int, count: int
    ) -> Int64[Tensor, "*shape count"]:
        """`count` uniform words in [0, 2³²) for each client and step."""
        block = torch.arange(-(-count // 4), device=client.device)
        shape = (*client.shape, len(block))
        at = step.unsqueeze(-1) if isinstance(step, Tensor) else torch.full_like(block, step)
        words = self.blocks(client.unsqueeze(-1).expand(shape), at.expand(shape), block.expand(shape))
        return words.flatten(-2)[..., :count]

    def blocks(
        self, client: Int64[Tensor, "*shape"], step: Int64[Tensor, "*shape"], block: Int64[Tensor, "*shape"]
    ) -> Int64[Tensor, "*shape 4"]:
        """Words 4·block to 4·block + 3 of each client and step."""
        return torch.stack(philox((client & _LOW, client >> 32 & _LOW, block, step), self.key), dim=-1)

    def keys(self, client: Int64[Tensor, "client"]) -> Int64[Tensor, "client"]:
        """One 63-bit number a client, to sort clients by."""
        high, low = self.words(client, 0, 2).unbind(-1)
        return (high >> 1) << 32 | low

    def uniform(self, client: int, step: int, count: int) -> Float64[Tensor, "count"]:
        """Uniform numbers in the open interval (0, 1), with 52 bits each."""
        high, low = self.words(torch.tensor(client), step, 2 * count).view(count, 2).unbind(-1)
        return ((high << 20 | low >> 12).double() + 0.5) / 2**52

    def normal(self, client: int, step: int, count: int) -> Float64[Tensor, "count"]:
        """Standard normal numbers (Box and Muller)."""
        half = -(-count // 2)
        radius, angle = self.uniform(client, step, 2 * half).view(2, half)
        radius, angle = (-2 * radius.log()).sqrt(), 2 * math.pi * angle
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]

    def permutation(self, client: int, step: int, count: int) -> Int64[Tensor, "count"]:
        """A random order of the numbers below `count`."""
        return self.uniform(client, step, count).argsort(stable=True)


def draws(seed: int, purpose: Purpose, round: int = 0) -> Draws:
    """The draws that `seed` gives for `purpose` in `round`."""
    text = f"{whole('seed', seed)}/{purpose}/{round}".encode()
    key = hashlib.blake2b(text, digest_size=8).digest()
    return Draws((int.from_bytes(key[:4], "little"), int.from_bytes(key[4:], "little")))
