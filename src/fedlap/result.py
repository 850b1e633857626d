"""What training gave."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlap.algorithms import Algorithm, State
from fedlap.errors import InputError, unknown
from fedlap.federation import Federation
from fedlap.models import Model
from fedlap.scores import Score


@dataclass(frozen=True, eq=False)
class Result:
    """Every client's model, what the server and the clients kept, and the scores round by round."""

    algorithm: Algorithm
    federation: Federation
    objective: Model  # the network, its loss and its L2 term
    models: Float[Tensor, "client param"]
    server: State
    private: State
    scores: list[Score]

    def model(self, client: str) -> nn.Module:
        """A client's own model, an ordinary module; it takes features as scaled for training."""
        return self.objective.network.module(self.models[self._place(client)])

    def predict(self, client: str, x: Any) -> Tensor:
        """A client's answers for raw features: the label's number for classes, the values otherwise."""
        place = self._place(client)
        try:
            raw = torch.as_tensor(x)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"predict: x is not an array of numbers: {error}") from error
        if raw.is_floating_point() and not bool(raw.isfinite().all()):
            raise InputError("predict: x holds NaN or infinity; fill in or drop such rows first")
        if raw.dim() == 0 or tuple(raw.shape[1:]) != self.federation.inputs:
            raise InputError(
                f"predict: x has shape {tuple(raw.shape)}; "
                f"give rows of features of shape {self.federation.inputs}"
            )
        at = torch.tensor([place], device=self.models.device)
        seen = self.federation.scale.apply(raw.to(at.device).unsqueeze(0), at, self.models.dtype)
        with torch.no_grad():
            scores = self.objective.scores(self.models[at], seen)[0]
        return scores.argmax(-1) if self.federation.labels is not None else scores

    def _place(self, client: str) -> int:
        if str(client) not in self.federation.clients:
            raise unknown("client", client, self.federation.clients)
        return self.federation.clients.index(str(client))
