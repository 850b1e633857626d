"""The platform's folder for files that can be downloaded or computed again."""

from pathlib import Path

from fedlap.errors import InputError


def get_cache_folder() -> Path:
    """Return the platform's cache folder of fedlap; it need not exist."""
    from platformdirs import user_cache_path  # imported here, since training alone does not need it

    try:
        return user_cache_path("fedlap").expanduser()  # older versions of platformdirs do not expand ~
    except RuntimeError as error:  # the account has no home, as in some containers
        raise InputError("no home directory for the cache; set XDG_CACHE_HOME to a folder") from error
