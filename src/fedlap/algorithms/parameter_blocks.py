"""Blocks of parameters with a strength each; a block of strength zero stays with its client."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.coupling import Coupling, OneBlock, require_strengths
from fedlap.algorithms.server_state import Ids, VertexModels
from fedlap.errors import InputError, suggest_names
from fedlap.models import Model
from fedlap.models.model import Stack

Shared = Float[Tensor, "row shared"]  # parameters that cross the wire
Private = Float[Tensor, "client private"]  # parameters that stay with the client


@dataclass(frozen=True)
class Block:
    """Consecutive parameters of a flat model with the same strength."""

    begin: int
    end: int
    strength: float

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.end - self.begin


@dataclass(frozen=True)
class ParameterBlocks:
    """The blocks of a flat model in its order."""

    blocks: tuple[Block, ...]

    @property
    def has_private(self) -> bool:
        """Return whether some parameters stay with their client."""
        return any(block.strength == 0 for block in self.blocks)

    def share(self, w: Stack) -> Shared:
        """Return the parameters that cross the wire."""
        return self._select(w, private=False) if self.has_private else w

    def withhold(self, w: Stack) -> Private | None:
        """Return the parameters that stay with the client, or None if there are none."""
        return self._select(w, private=True) if self.has_private else None

    def join(self, private: Private | None, shared: Shared) -> Stack:
        """Return whole models from both parts."""
        if private is None:
            return shared
        parts = {True: private, False: shared}
        taken = {True: 0, False: 0}
        columns = []
        for block in self.blocks:
            kind = block.strength == 0
            columns.append(parts[kind][:, taken[kind] : taken[kind] + block.size])
            taken[kind] += block.size
        return torch.cat(columns, 1)

    def mix_(self, coupling: Coupling, w: Shared, ids: Ids | None, others: VertexModels | None) -> Shared:
        """Mix the shared parts of the vertices `ids`, each block with its strength; see `Coupling.mix_`."""
        mixed, begin = [], 0
        for block in self._shared_blocks:
            columns = slice(begin, begin + block.size)
            near = None if others is None else others[:, columns]
            of_block = replace(coupling, strength=block.strength)
            mixed.append(of_block.mix_(w[:, columns], ids, near))
            begin += block.size
        return torch.cat(mixed, 1) if len(mixed) > 1 else mixed[0] if mixed else w

    def scale_pull(self, coupling: Coupling, pull: Shared) -> Shared:
        """Return a pull times μRη of each block."""
        steps = [
            pull.new_full((block.size,), replace(coupling, strength=block.strength).step)
            for block in self._shared_blocks
        ]
        return torch.cat(steps) * pull if steps else pull

    def penalty(self, coupling: Coupling, W: Shared) -> Float[Tensor, ""]:
        """Return Σ_b (η_b/2) tr(W_bᵀLW_b) over the blocks b."""
        total, begin = W.new_zeros((), dtype=torch.float64), 0
        for block in self._shared_blocks:
            columns = W[:, begin : begin + block.size]
            total = total + replace(coupling, strength=block.strength).penalty(columns)
            begin += block.size
        return total

    @property
    def _shared_blocks(self) -> list[Block]:
        return [block for block in self.blocks if block.strength > 0]

    def _select(self, w: Stack, *, private: bool) -> Tensor:
        """Return a copy of the private or of the shared parameters."""
        chosen = [w[:, b.begin : b.end] for b in self.blocks if (b.strength == 0) == private]
        return torch.cat(chosen, 1) if chosen else w[:, :0]


def find_blocks(strength: object, model: Model, scope: str) -> ParameterBlocks | OneBlock:
    """Return the blocks of a model for a mapping from names to strengths; one block for one strength.

    A name is that of a parameter in the module's state_dict, or the part of it before a dot, such as the name
    of a layer. The longest name that fits decides. Parameters that no name fits have the strength zero.
    """
    if not isinstance(strength, Mapping):
        return OneBlock()
    strengths = require_strengths(strength)
    module = model.network.module(torch.zeros(model.size))
    parameters = {
        name: parameter.numel() for name, parameter in module.named_parameters() if parameter.requires_grad
    }
    for block in strengths:
        if not any(_fits(block, name) for name in parameters):
            names = ", ".join(parameters)
            raise InputError(
                f"strength.{block}: the model has no such parameters; "
                f"{suggest_names(block, parameters)}use names of {names}, or parts before a dot",
                field="strength",
                scope=scope,
            )
    found: list[tuple[float, int]] = []
    for name, size in parameters.items():
        fitting = [block for block in strengths if _fits(block, name)]
        found.append((strengths[max(fitting, key=len)] if fitting else 0.0, size))
    blocks, begin = [], 0
    for value, group in groupby(found, key=lambda entry: entry[0]):
        size = sum(parameters for _, parameters in group)
        blocks.append(Block(begin, begin + size, value))
        begin += size
    return ParameterBlocks(tuple(blocks))


def _fits(block: str, name: str) -> bool:
    return name == block or name.startswith(f"{block}.")
