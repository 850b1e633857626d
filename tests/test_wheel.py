"""The wheel holds every file of the package, and works where only the wheel is installed.

The quick tests compare `package-data` in pyproject.toml with the files that git tracks. The slow tests build
the wheel from a copy of the tracked files, install it into a fresh environment without network, and train
there by the compiled C++ kernel. The environment borrows the dependencies of the running one, but not its
fedlap.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGE = "src/fedlap/"

# Trains in the fresh environment. Functions of libraries that lie in the cache folder are counted when they
# are called, so a library that is compiled and then not used is noticed.
TRAINING = """
import ctypes, json, os, sys

calls = {}

class Counted(ctypes.CDLL):
    def __init__(self, name, *rest, **more):
        super().__init__(name, *rest, **more)
        if name is None or not str(name).startswith(os.environ["XDG_CACHE_HOME"]):
            return

        class Function(self._FuncPtr):
            _flags_, _restype_ = self._FuncPtr._flags_, self._FuncPtr._restype_

            def __call__(self, *given):
                calls[self.__name__] = calls.get(self.__name__, 0) + 1
                return super().__call__(*given)

        self._FuncPtr = Function

ctypes.CDLL = Counted

import fedlap as fl

federation = fl.data.load("digits")
method = fl.FedU(fl.Graph.complete(federation.clients), lr=0.1)
result = fl.fit(method, federation, fl.models.linear(), rounds=3)
answer = {"file": fl.__file__, "path": sys.path, "calls": calls, "accuracy": result.scores[-1].accuracy}
print(json.dumps(answer))
"""


def tracked_files() -> list[str]:
    """Paths that git tracks or would track, without those that are deleted."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git checkout: the files of the package are listed by git")
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sorted({name for name in listed.split("\0") if name and (ROOT / name).is_file()})


def package_files() -> set[str]:
    return {name.removeprefix("src/") for name in tracked_files() if name.startswith(PACKAGE)}


def data_files() -> set[str]:
    """Files of the package that are not Python modules, as paths below src/."""
    return {name for name in package_files() if not name.endswith(".py")}


def matches() -> dict[str, set[str]]:
    """Files below src/ that each pattern of `package-data` matches."""
    source, found = ROOT / "src", dict[str, set[str]]()
    for package, patterns in SETTINGS["tool"]["setuptools"]["package-data"].items():
        inside = "fedlap/**" if package == "*" else package.replace(".", "/")
        for pattern in patterns:
            paths = [path for folder in source.glob(inside) for path in folder.glob(pattern)]
            names = {path.relative_to(source).as_posix() for path in paths if path.is_file()}
            found[f"{package}: {pattern}"] = names
    return found


def test_every_data_file_is_in_package_data():
    assert data_files() - set().union(*matches().values()) == set()


def test_every_pattern_of_package_data_matches_a_file():
    files = data_files()
    assert [pattern for pattern, found in matches().items() if not found & files] == []


@dataclass(frozen=True)
class Installed:
    """A wheel, and an environment that has fedlap from it alone."""

    wheel: Path
    environment: Path
    cache: Path

    def run(self, *command: str, cwd: Path) -> str:
        """Run a program of the environment and return what it prints."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FEDLAP_", "CXX"))}
        env = inherited | {"XDG_CACHE_HOME": str(self.cache), "VIRTUAL_ENV": str(self.environment)}
        program = str(self.environment / "bin" / command[0])
        done = subprocess.run([program, *command[1:]], capture_output=True, text=True, cwd=cwd, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    check_build_backend()
    place = tmp_path_factory.mktemp("wheel")
    for name in tracked_files():  # a copy, so that no older build folder fills in what is missing
        if name.startswith(PACKAGE) or "/" not in name:
            (place / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, place / "copy" / name)
    pip("wheel", str(place / "copy"), "--no-build-isolation", "--wheel-dir", str(place / "built"))
    (wheel,) = (place / "built").glob("fedlap-*.whl")
    environment = place / "environment"
    venv.create(environment, symlinks=True)
    pip("--python", str(environment / "bin" / "python"), "install", str(wheel))
    (packages,) = environment.glob("lib/python*/site-packages")
    borrowed = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    # Python reads no .pth files in these folders, so an editable fedlap there stays out of reach.
    (packages / "borrowed.pth").write_text("".join(f"{entry}\n" for entry in borrowed), "utf-8")
    return Installed(wheel, environment, place / "cache")


def check_build_backend() -> None:
    """Skip where pyproject.toml asks for another setuptools than the running environment has."""
    (needed,) = SETTINGS["build-system"]["requires"]
    name, _, least = needed.partition(">=")
    try:
        if int(version(name).partition(".")[0]) >= int(least):
            return
    except PackageNotFoundError:
        pass
    pytest.skip(f"no build backend: {needed}")


def pip(*words: str) -> None:
    """Run pip without network and without dependencies."""
    place = words.index("wheel" if "wheel" in words else "install") + 1
    command = [*words[:place], "--no-deps", "--no-index", "--quiet", *words[place:]]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *command], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(installation):
    with zipfile.ZipFile(installation.wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert held == package_files()
        assert [
            name for name in data_files() if archive.read(name) != (ROOT / "src" / name).read_bytes()
        ] == []


@pytest.mark.slow
def test_the_wheel_trains_by_the_compiled_kernel(installation, tmp_path):
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("no compiler")
    answer = json.loads(installation.run("python", "-c", TRAINING, cwd=tmp_path))
    assert Path(answer["file"]).is_relative_to(installation.environment)
    assert str(ROOT / "src") not in answer["path"]
    assert list(installation.cache.rglob("*.so"))
    assert sum(answer["calls"].values()) >= 3  # once per round at least
    assert answer["accuracy"] > 0.5


@pytest.mark.slow
def test_commands_of_the_wheel_find_recipes_and_the_page(installation, tmp_path):
    assert installation.run("fedlap", "--version", cwd=tmp_path).strip() == SETTINGS["project"]["version"]
    installation.run("fedlap", "run", "--rounds", "2", "--out", "runs", cwd=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    installation.run("fedlap", "report", str(folder), cwd=tmp_path)
    (page,) = tmp_path.rglob("page.html")
    for ending in ("css", "js"):
        (source,) = (ROOT / "src" / name for name in data_files() if name.endswith(f".{ending}"))
        assert source.read_text("utf-8").strip() in page.read_text("utf-8")
    help_text = "".join(
        installation.run("fedlap", "reproduce", "--help", cwd=tmp_path).split()
    )  # lines are wrapped
    known = {Path(name).stem for name in data_files() if name.endswith(".toml")}
    assert [name for name in known if name not in help_text] == []
