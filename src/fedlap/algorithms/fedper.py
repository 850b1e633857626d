"""FedPer: shared first layers, and personal last layers at each client."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlap.algorithms.fedavg import average_by_count
from fedlap.algorithms.interface import Algorithm, Ids, Kind, Steadiness, check_local_work
from fedlap.algorithms.local import Local
from fedlap.algorithms.task import Task
from fedlap.data.federation import Federation
from fedlap.errors import UnsuitedError, check_integer
from fedlap.models import Model
from fedlap.models.model import Stack

SharedBase = Float[Tensor, "1 base"]
BaseStack = Float[Tensor, "client base"]
HeadStack = Float[Tensor, "client head"]
CountedBases = tuple[BaseStack, Float[Tensor, "client 1"]]


@dataclass(frozen=True)
class FedPer:
    """FedPer (Arivazhagan et al. 2019, Algorithms 1 and 2): FedAvg of the first layers only.

    b_k ← b                                                  at each sampled client k
    (b_k, h_k) ← (b_k, h_k) − μ ∇F̃_k(b_k, h_k)              R times
    b ← Σ_k n_k b_k / Σ_k n_k                                at the server, n_k rows at client k

    The head h_k, a model's last layers, stays with the client; only the base b crosses the wire. A client is
    scored with (b, h_k) at the server's b. A layer is a submodule that holds parameters, in the order of the
    state_dict. If every layer is personal, like the one layer of a linear model, nothing is shared and the
    method is Local.

    personal_layers: number of layers in the head (1; the paper tries 1 to 4); 0 is FedAvg.
    lr: μ, the length of a local step; 0.03 as for every method here.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    """

    personal_layers: int = 1
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    head: int = field(default=0, init=False, repr=False)  # number of parameters in the head, set by `bind`

    kind: ClassVar[Kind] = "personal"
    steady: ClassVar[Steadiness] = "round"
    citation: ClassVar[str] = (
        "M. G. Arivazhagan, V. Aggarwal, A. K. Singh and S. Choudhary. Federated Learning with "
        "Personalization Layers. arXiv:1912.00818, 2019."
    )

    def __post_init__(self) -> None:
        check_local_work("fedper", self.lr, self.local_steps, self.local_epochs)
        check_integer("personal_layers", self.personal_layers, 0, scope="fedper")

    def bind(self, federation: Federation, model: Model) -> Algorithm:
        """Return the method for the layers of this model."""
        sizes = count_layer_parameters(model.network.module(torch.zeros(model.size)))
        shared = len(sizes) - self.personal_layers
        if shared < 0:
            raise UnsuitedError(
                f"personal_layers = {self.personal_layers}; expected at most {len(sizes)}, "
                "the number of layers of the model",
                field="personal_layers",
                scope="fedper",
            )
        if shared == 0:
            return Local(self.lr, self.local_steps, self.local_epochs)
        bound = replace(self)
        bound.__dict__["head"] = sum(sizes[shared:])
        return bound

    def init(self, start: Stack) -> tuple[SharedBase, HeadStack]:
        """Start the base at the mean of the starts, and each head at its client's start."""
        base = start.shape[1] - self.head
        return start[:, :base].mean(0, keepdim=True), start[:, base:].clone()

    def send(self, b: SharedBase, ids: Ids) -> BaseStack:
        """Send the base."""
        return b.expand(len(ids), -1)

    def local(self, h: HeadStack, b: BaseStack, task: Task) -> tuple[HeadStack, CountedBases]:
        """Run R mini-batch steps on both; store the head, send the base with the row count."""
        w = torch.cat([b, h], 1)
        w = task.sgd(w, self.lr)
        return w[:, b.shape[1] :].clone(), (w[:, : b.shape[1]].clone(), task.count)

    def merge(self, b: SharedBase, ids: Ids, ups: CountedBases) -> SharedBase:
        """Average the bases, weighted by their row counts."""
        return average_by_count(ups)

    def personal_models(self, b: SharedBase, h: HeadStack, clients: int) -> Stack:
        """Return the base with each client's head."""
        return torch.cat([b.expand(clients, -1), h], 1)


def count_layer_parameters(net: nn.Module) -> list[int]:
    """Return the number of trained parameters of each layer, in the order of the flat model."""
    sizes: dict[str, int] = {}
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            layer = name.rpartition(".")[0]
            sizes[layer] = sizes.get(layer, 0) + parameter.numel()
    return list(sizes.values())
