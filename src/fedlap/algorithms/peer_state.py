"""The state of a peer and its messages: whole models, or compressed differences to its public model."""

from typing import Any, NamedTuple

from fedlap.algorithms.compression import HalfValues, LargestValues, ScaledBytes, parse_compression
from fedlap.algorithms.coupling import OneBlock
from fedlap.algorithms.parameter_blocks import ParameterBlocks, Shared
from fedlap.models.model import Stack


class CompressedPeer(NamedTuple):
    """A peer whose messages are compressed; its public model is its start model plus all its messages."""

    model: Stack  # w_k
    public: Shared  # ŵ_k, which all neighbours know; without private blocks


PeerState = Stack | CompressedPeer  # a model alone without compression
PeerMessage = Shared | HalfValues | ScaledBytes | LargestValues  # a model, or a compressed difference


def start_peer(compression: str | None, start: Stack, shared: Shared) -> PeerState:
    """Return the state before the first round; the neighbours know the shared part of the start model."""
    return (
        start.clone()
        if parse_compression(compression) is None
        else CompressedPeer(start.clone(), shared.clone())
    )


def send_model(
    compression: str | None, peer: PeerState, w: Stack, shared: Shared
) -> tuple[PeerState, PeerMessage]:
    """Return the state of a peer with its new model `w`, and its message of the shared part.

    With compression C, ŵ ← ŵ + C(w − ŵ).
    """
    if not isinstance(peer, CompressedPeer):
        return w, shared
    how = parse_compression(compression)
    assert how is not None
    message = how.compress(shared - peer.public)
    return CompressedPeer(w, peer.public + how.decompress(message, shared)), message


def receive_model(compression: str | None, known: Shared, message: Any) -> Shared:
    """Return the public model of a neighbour after its message, from the one before."""
    how = parse_compression(compression)
    if how is None:
        model: Shared = message
        return model
    how.check(message, known)
    return known + how.decompress(message, known)


def get_model(peer: PeerState) -> Stack:
    """Return w."""
    return peer.model if isinstance(peer, CompressedPeer) else peer


def replace_shared(blocks: ParameterBlocks | OneBlock, peer: PeerState, shared: Shared) -> PeerState:
    """Return the state of a peer with another shared part of its model, before its next message."""
    w = blocks.join(blocks.withhold(get_model(peer)), shared)
    return peer._replace(model=w) if isinstance(peer, CompressedPeer) else w
