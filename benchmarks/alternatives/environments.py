"""Build one virtual environment per alternative, since their requirements conflict with each other and ours.

An environment is built under `.bench/<name>/` at its first use, from the pinned `requirements/<name>.txt`,
and rebuilt when the requirements change.

    python benchmarks/alternatives/environments.py [flower pfl_research fedjax_simulation]
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1] / ".bench"
NAMES = tuple(sorted(path.stem for path in (HERE / "requirements").glob("*.txt")))


class UnavailableError(RuntimeError):
    """An environment cannot be built here; the message gives the reason in one line."""


def _run(*command: str | Path) -> None:
    """Run a command; if it fails, raise the first line that names the error."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        named = [line for line in lines if line.lstrip().lower().startswith("error")]
        reason = (named or lines[-1:] or ["no error message"])[0].strip().removeprefix("ERROR: ")
        reason = reason.partition(" (from versions")[0]  # pip lists all versions
        raise UnavailableError(reason if len(reason) <= 160 else reason[:159] + "…")


def environment(name: str) -> Path:
    """Return the Python of a system's environment; build it if it is missing."""
    if name == "ours":
        return Path(sys.executable)
    if name not in NAMES:
        raise UnavailableError(f"no requirements for {name!r}; use one of {', '.join(NAMES)}")
    requirements = HERE / "requirements" / f"{name}.txt"
    folder = ROOT / name
    python, marker = folder / "bin" / "python", folder / "made"
    mark = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    if not marker.exists() or marker.read_text() != mark:
        shutil.rmtree(folder, ignore_errors=True)
        _run(sys.executable, "-m", "venv", folder)
        _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements)
        marker.write_text(mark)  # written last, so that an incomplete environment is not reused
    return python


def main() -> int:
    """Build the requested environments, or all."""
    failed = False
    for name in sys.argv[1:] or NAMES:
        try:
            print(f"{name}: {environment(name)}")
        except UnavailableError as reason:
            print(f"{name}: unavailable here: {reason}")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
