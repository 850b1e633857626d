"""Check that the packages of the extra `deploy` are installed."""

from importlib.util import find_spec

from fedlap.errors import InputError

PACKAGES = ("cryptography", "zenoh")


def check_deploy_extra(command: str) -> None:
    """Raise InputError if a package that deployments need is missing."""
    if any(find_spec(package) is None for package in PACKAGES):
        raise InputError(f"`fedlap {command}` needs the deploy extra; run pip install 'fedlap[deploy]'")
