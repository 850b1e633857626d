"""FedPer: all share the first layers, and each client has last layers of its own."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlap.algorithms.fedavg import mean
from fedlap.algorithms.interface import Algorithm, Ids, Kind, Steadiness, check_work
from fedlap.algorithms.local import Local
from fedlap.algorithms.task import Stack, Task
from fedlap.data.federation import Federation
from fedlap.errors import UnsuitedError, whole
from fedlap.models import Model

One = Float[Tensor, "1 base"]
Bases = Float[Tensor, "client base"]
Heads = Float[Tensor, "client head"]
Counted = tuple[Bases, Float[Tensor, "client 1"]]


@dataclass(frozen=True)
class FedPer:
    """FedPer (Arivazhagan et al. 2019, Algorithms 1 and 2): FedAvg of the first layers only.

    b_k ← b                                                  at each sampled client k
    (b_k, h_k) ← (b_k, h_k) − μ ∇F̃_k(b_k, h_k)              R times
    b ← Σ_k n_k b_k / Σ_k n_k                                at the server, over the sampled, n_k rows each

    The head h_k, a model's last layers, stays with the client; only the base b crosses the wire. A client is
    scored with (b, h_k) at the server's b. A layer is a part of the network with parameters of its own, in
    the order of its state_dict. Where every layer is personal, as the one layer of a linear model is, nothing
    is left to share and the method is Local.

    personal_layers: how many layers are the head (1; the paper tries 1 to 4); at 0 this is FedAvg.
    lr: μ, the length of a local step; 0.03 as for every method here.
    local_steps: R mini-batch steps a round (5 where neither is given), or …
    local_epochs: … R passes over the client's rows.
    """

    personal_layers: int = 1
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    head: int = field(default=0, init=False, repr=False)  # how many parameters, as `suited` finds

    kind: ClassVar[Kind] = "personal"
    steady: ClassVar[Steadiness] = "round"
    citation: ClassVar[str] = (
        "M. G. Arivazhagan, V. Aggarwal, A. K. Singh and S. Choudhary. Federated Learning with "
        "Personalization Layers. arXiv:1912.00818, 2019."
    )

    def __post_init__(self) -> None:
        check_work("fedper", self.lr, self.local_steps, self.local_epochs)
        whole("personal_layers", self.personal_layers, 0, scope="fedper")

    def suited(self, federation: Federation, model: Model) -> Algorithm:
        """The same method for the layers of this model."""
        sizes = layers(model.network.module(torch.zeros(model.size)))
        shared = len(sizes) - self.personal_layers
        if shared < 0:
            raise UnsuitedError(
                f"personal_layers = {self.personal_layers}, and the model has {len(sizes)} in all; "
                f"take at most {len(sizes)}",
                field="personal_layers",
                scope="fedper",
            )
        if shared == 0:
            return Local(self.lr, self.local_steps, self.local_epochs)
        made = replace(self)
        made.__dict__["head"] = sum(sizes[shared:])
        return made

    def begin(self, start: Stack) -> tuple[One, Heads]:
        """One base, the mean of the starts; each client's head begins at its own start."""
        base = start.shape[1] - self.head
        return start[:, :base].mean(0, keepdim=True), start[:, base:].clone()

    def send(self, b: One, ids: Ids) -> Bases:
        """The base."""
        return b.expand(len(ids), -1)

    def local(self, h: Heads, b: Bases, task: Task) -> tuple[Heads, Counted]:
        """R mini-batch steps of both; the head is kept, the base is sent with the number of rows."""
        w = torch.cat([b, h], 1)
        w = task.descended(w, self.lr)
        return w[:, b.shape[1] :].clone(), (w[:, : b.shape[1]].clone(), task.count)

    def merge(self, b: One, ids: Ids, ups: Counted) -> One:
        """The count-weighted mean of the bases."""
        return mean(ups)

    def personal(self, b: One, h: Heads, clients: int) -> Stack:
        """The base with each client's head."""
        return torch.cat([b.expand(clients, -1), h], 1)


def layers(net: nn.Module) -> list[int]:
    """How many trained parameters each layer has, in the order of the flat row."""
    sizes: dict[str, int] = {}
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            layer = name.rpartition(".")[0]
            sizes[layer] = sizes.get(layer, 0) + parameter.numel()
    return list(sizes.values())
