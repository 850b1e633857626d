"""The lower bounds of the package are those that `make test-oldest` installs."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def numbers(version):
    """1.20 and 1.20.0 alike."""
    parts = [int(part) for part in version.split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return parts


def read_pins():
    lines = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


# Versions that do not exist without a patch number, or were withdrawn.
FIRST = {"nvidia-cuda-nvrtc": "13.0.48", "pytest-xdist": "3.6.1"}


def test_every_lower_bound_is_pinned_for_the_oldest_environment():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    # A package that is pinned exactly is its own lower bound.
    bounds = dict(re.match(r"([\w-]+)[>=]=([\d.]+)", requirement).groups() for requirement in requirements)
    versions = read_pins()
    for name, bound in bounds.items():
        assert numbers(versions[name]) == numbers(FIRST.get(name, bound)), name


def test_the_oldest_environment_has_what_flower_and_others_still_need():
    versions = read_pins()
    assert numbers(versions["protobuf"]) < [7]
    assert numbers(versions["packaging"]) < [26]
    assert numbers(versions["typer"])[:2] == [0, 20]
    assert numbers(versions["rich"]) == [14]
    assert numbers(versions["pandas"])[:2] == [2, 2]
