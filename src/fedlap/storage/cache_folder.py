"""The platform's folder for files that can be downloaded or computed again."""

from pathlib import Path

from fedlap.errors import InputError


def cache_folder() -> Path:
    """The platform's folder for what can be made again."""
    from platformdirs import user_cache_path  # here, since training alone does not need it

    try:
        return user_cache_path("fedlap").expanduser()  # which older versions of platformdirs leave to us
    except RuntimeError as error:  # an account without a home, as in some containers
        raise InputError("no home directory for the cache; set XDG_CACHE_HOME to a folder") from error
