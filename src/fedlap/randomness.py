"""Counter-based draws: every random number is a pure function of (seed, purpose, round, client, step, index).

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), in
integer tensor arithmetic, so that every device computes the same words. A client is identified by a 64-bit
digest of its name, never by its position. There is no generator state, and no global generator is used.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fedlap.errors import check_integer

Purpose = Literal[
    "start",
    "sample",
    "batches",
    "split",
    "partition",
    "scarce",
    "fold",
    "data",
    "coin",
    "heterogeneity",
    "vertices",
]

_LOW = 0xFFFFFFFF  # the lower 32 bits of a 64-bit word
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)

Words = tuple[Tensor, Tensor, Tensor, Tensor]
# One key for all counters, or tensors that broadcast with the counters.
Key = tuple[int, int] | tuple[Tensor, Tensor]

COUNTERS_PER_CHUNK = 16_384  # counters per pass on a CPU, so that intermediate words stay in its cache
CLIENTS_PER_CHUNK = 65_536  # clients that are sorted take 100 bytes each while their keys are drawn


def philox(counter: Words, key: Key) -> Words:
    """Ten rounds of Philox4x32 on 32-bit words held in int64 tensors."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # int64 products wrap modulo 2^64, which preserves both 32-bit halves of the unsigned product.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> 32 & _LOW) ^ c1 ^ k0, p1 & _LOW, (p0 >> 32 & _LOW) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = k0 + _WEYL[0] & _LOW, k1 + _WEYL[1] & _LOW
    return c0, c1, c2, c3


def _philox_on_host(counter: Words, key: Key) -> Int64[Tensor, "... 4"]:
    """Compute the words of `philox`, along the last axis, by NumPy, whose calls cost a tenth of PyTorch's."""
    keys = [np.asarray(k, dtype=np.int64).view(np.uint64) for k in key]
    shape = np.broadcast_shapes(*(word.shape for word in counter), *(k.shape for k in keys))
    words = [np.broadcast_to(word.numpy().view(np.uint64), shape) for word in counter]
    out = np.empty((*shape, 4), dtype=np.uint64)
    if keys[0].size == 1:
        _philox_by_chunks(words, [k.ravel()[0] for k in keys], out)
    elif keys[0].shape == (shape[0], *(1 for _ in shape[1:])) and out[0].size >= COUNTERS_PER_CHUNK:
        for place, row_keys in enumerate(zip(*(k.ravel() for k in keys), strict=True)):
            _philox_by_chunks([word[place] for word in words], row_keys, out[place])
    else:
        _philox_by_chunks(words, [np.broadcast_to(k, shape).reshape(-1) for k in keys], out)
    return torch.from_numpy(out.view(np.int64))


def _philox_by_chunks(words: Sequence[np.ndarray], keys: Sequence[Any], out: np.ndarray) -> None:
    """Compute words chunk by chunk; keys are scalars, which is faster, or arrays with one key per counter."""
    counters, out = [word.flatten() for word in words], out.reshape(-1, 4)
    for begin in range(0, len(out), COUNTERS_PER_CHUNK):
        chunk = slice(begin, begin + COUNTERS_PER_CHUNK)
        chunk_keys = [k[chunk] if isinstance(k, np.ndarray) else k for k in keys]
        _philox_chunk([word[chunk] for word in counters], chunk_keys, out[chunk])


def _philox_chunk(c: list[np.ndarray], keys: list[Any], out: np.ndarray) -> None:
    """Run ten rounds in place, on unsigned words, so that no sign has to be masked."""
    half, low = np.uint64(32), np.uint64(_LOW)
    m0, m1 = (np.uint64(m) for m in _MULTIPLIERS)
    w0, w1 = (np.uint64(w) for w in _WEYL)
    p0, p1 = np.empty_like(c[0]), np.empty_like(c[0])
    k0, k1 = keys
    for _ in range(10):
        np.multiply(c[0], m0, out=p0)
        np.multiply(c[2], m1, out=p1)
        np.right_shift(p1, half, out=c[0])
        np.bitwise_xor(c[0], c[1], out=c[0])
        np.bitwise_xor(c[0], k0, out=c[0])
        np.right_shift(p0, half, out=c[2])
        np.bitwise_xor(c[2], c[3], out=c[2])
        np.bitwise_xor(c[2], k1, out=c[2])
        np.bitwise_and(p1, low, out=c[1])
        np.bitwise_and(p0, low, out=c[3])
        k0, k1 = k0 + w0 & low, k1 + w1 & low
    for place in range(4):
        out[:, place] = c[place]


def digest_name(name: str) -> int:
    """Return the 64-bit digest of a client's name, signed, since tensors have no unsigned type."""
    return int.from_bytes(
        hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest(), "little", signed=True
    )


def digest_names(names: Sequence[str]) -> Int64[Tensor, "client"]:
    """Return the digests of several clients' names."""
    return torch.tensor([digest_name(name) for name in names], dtype=torch.int64)


@dataclass(frozen=True)
class Draws:
    """The draws for one purpose in one round.

    If the keys are tensors, each of their elements stands for one seed and round.
    """

    key: Key

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the keys, which must broadcast with the shape of the draws."""
        return () if isinstance(self.key[0], int) else tuple(self.key[0].shape)

    def map_keys(self, function: Callable[[Tensor], Tensor]) -> "Draws":
        """Return the draws with reshaped keys; a single key for all is not changed."""
        first, second = self.key
        if isinstance(first, int) or isinstance(second, int):
            return self
        return Draws((function(first), function(second)))

    def words(
        self, client: Int64[Tensor, "*shape"], step: Int64[Tensor, "*shape"] | int, count: int
    ) -> Int64[Tensor, "*shape count"]:
        """`count` uniform words in [0, 2³²) for each client and step."""
        block = torch.arange(-(-count // 4), device=client.device)
        shape = (*client.shape, len(block))
        steps = step.unsqueeze(-1) if isinstance(step, Tensor) else torch.full_like(block, step)
        draws = self.map_keys(lambda key: key.unsqueeze(-1))
        words = draws.blocks(client.unsqueeze(-1).expand(shape), steps.expand(shape), block.expand(shape))
        return words.flatten(-2)[..., :count]

    def blocks(
        self, client: Int64[Tensor, "..."], step: Int64[Tensor, "..."], block: Int64[Tensor, "..."]
    ) -> Int64[Tensor, "... 4"]:
        """Words 4·block to 4·block + 3 of each client and step; the three shapes are broadcast."""
        counter = (client & _LOW, client >> 32 & _LOW, block, step)
        if client.device.type == "cpu":
            return _philox_on_host(counter, self.key)
        return torch.stack(philox(counter, self.key), dim=-1)

    def keys(self, client: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """One 63-bit number per client, by which clients are sorted."""
        if (
            client.device.type == "cpu"
            and client.shape[-1] > CLIENTS_PER_CHUNK
            and self.shape[-1:] in ((), (1,))
        ):
            return torch.cat([self.keys(chunk) for chunk in client.split(CLIENTS_PER_CHUNK, -1)], -1)
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

    def uniforms(
        self, client: Int64[Tensor, "client"], step: int, count: int
    ) -> Float64[Tensor, "client count"]:
        """The numbers of `uniform` for several clients."""
        high, low = self.words(client, step, 2 * count).view(len(client), count, 2).unbind(-1)
        return ((high << 20 | low >> 12).double() + 0.5) / 2**52

    def normals(
        self, client: Int64[Tensor, "client"], step: int, count: int
    ) -> Float64[Tensor, "client count"]:
        """The numbers of `normal` for several clients."""
        half = -(-count // 2)
        radius, angle = self.uniforms(client, step, 2 * half).view(len(client), 2, half).unbind(1)
        radius, angle = (-2 * radius.log()).sqrt(), 2 * math.pi * angle
        return torch.cat([radius * angle.cos(), radius * angle.sin()], 1)[:, :count]

    def permutations(
        self, client: Int64[Tensor, "client"], step: int, count: Int64[Tensor, "client"]
    ) -> Int64[Tensor, "row"]:
        """The orders of `permutation` for several clients, one client after another.

        Clients of similar size are drawn together; surplus draws of the smaller ones are sorted last.
        """
        first = count.cumsum(0) - count
        orders = torch.empty(int(count.sum()), dtype=torch.int64)
        group = (4 * count.double().log2()).floor()
        for size in group[count > 0].unique():
            members = (group == size).nonzero().flatten()
            width = int(count[members].max())
            place = torch.arange(width)
            for part in members.split(max(1, 4 * COUNTERS_PER_CHUNK // width)):
                inside = place < count[part].unsqueeze(1)
                numbers = self.uniforms(client[part], step, width)
                order = torch.where(inside, numbers, 1.0).argsort(stable=True, dim=1)
                orders[(first[part].unsqueeze(1) + place)[inside]] = order[inside]
        return orders


def draws(seed: int, purpose: Purpose, round: int = 0) -> Draws:
    """Return the draws of a seed for one purpose in one round."""
    return Draws(_derive_key(check_integer("seed", seed), purpose, round))


def derive_keys(
    seeds: Sequence[int], purpose: Purpose, rounds: Sequence[int], device: torch.device
) -> tuple[Int64[Tensor, "round seed"], Int64[Tensor, "round seed"]]:
    """Return the keys of several rounds and seeds, as tensors for `Draws`."""
    distinct = list(dict.fromkeys(seeds))
    places = {seed: place for place, seed in enumerate(distinct)}
    keys = torch.tensor([[_derive_key(seed, purpose, round) for seed in distinct] for round in rounds])
    both = keys[:, [places[seed] for seed in seeds]].to(device)
    return both[..., 0], both[..., 1]


def _derive_key(seed: int, purpose: Purpose, round: int) -> tuple[int, int]:
    key = hashlib.blake2b(f"{seed}/{purpose}/{round}".encode(), digest_size=8).digest()
    return int.from_bytes(key[:4], "little"), int.from_bytes(key[4:], "little")
