"""Options `--keys` and `--insecure` of commands of a deployment."""

from collections.abc import Callable
from pathlib import Path

from fedlap.deploy.keys import Keys
from fedlap.errors import InputError


def load_keys(
    load: Callable[[Path], Keys], folder: Path | None, insecure: bool, name: str | None = None
) -> Keys | None:
    """Return the keys of a folder, or None without TLS, which must be typed.

    load: reads and checks a folder of keys. name: expected name of the certificate; None for a server.
    """
    if (folder is None) != insecure:
        if insecure:
            raise InputError("--keys and --insecure are both set; use one")
        advice = "pass --keys FOLDER (from fedlap keys), or --insecure on a trusted network"
        raise InputError(f"no keys are given; {advice}")
    if folder is None:
        return None
    keys = load(folder)
    if name is not None and keys.name != name:
        raise InputError(
            f"--name {name}: the certificate in {str(folder)!r} is for {keys.name!r}; use that name"
        )
    return keys
