"""The model file of a client, ready for `fedlap predict`: the client writes it with the run's constants."""

from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from fedlap.data.federation import Federation
from fedlap.errors import InputError
from fedlap.models import Model
from fedlap.personal import ModelMetadata, Personal
from fedlap.training.placement import check_models

PRIVATE_FILE = 0o600


def build_site_model(w: Float[Tensor, "1 param"], site: Federation, model: Model) -> Personal:
    """Return the client's model with everything that prediction from raw values needs.

    w: the personal model, adapted to the client's rows if the method does so (`Worker.adapt`).
    site: the client's rows with the constants of the run (`apply_constants`); no row enters the model.
    """
    if len(site.clients) != 1:
        raise InputError(f"the site has {len(site.clients)} clients; expected one; pass its rows alone")
    check_models("w", w, 1, model, w.dtype)
    metadata = ModelMetadata.of(site, model)
    return Personal(site.clients[0], metadata, model.network, w[0].detach(), site.scale, site.target_scale)


def write_site_model(path: Path, w: Float[Tensor, "1 param"], site: Federation, model: Model) -> None:
    """Write the client's model to path (.safetensors) and a .json file next to it, both or neither.

    Only the owner can read them. The arguments are those of `build_site_model`.
    """
    build_site_model(w, site, model).save(path)
    for file in (path, path.with_suffix(".json")):
        file.chmod(PRIVATE_FILE)
