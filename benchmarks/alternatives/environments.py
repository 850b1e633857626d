"""An environment of its own for every alternative: they want versions that do not go together, nor with ours.

Each is made under `.bench/<name>/` the first time it is asked for, from the pinned `requirements/<name>.txt`,
and made anew when those change.

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


class NotToBeHadError(RuntimeError):
    """An environment cannot be made here; its text says why, in one line."""


def _run(*command: str | Path) -> None:
    """Run a command, and where it fails raise the first line that names the error."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        named = [line for line in lines if line.lstrip().lower().startswith("error")]
        reason = (named or lines[-1:] or ["it did not say why"])[0].strip().removeprefix("ERROR: ")
        reason = reason.partition(" (from versions")[0]  # pip lists all that there are
        raise NotToBeHadError(reason if len(reason) <= 160 else reason[:159] + "…")


def environment(name: str) -> Path:
    """Return the Python of a system's environment, made where it is not there yet."""
    if name == "ours":
        return Path(sys.executable)
    if name not in NAMES:
        raise NotToBeHadError(f"no requirements for {name!r}; there are some for {', '.join(NAMES)}")
    requirements = HERE / "requirements" / f"{name}.txt"
    folder = ROOT / name
    python, made = folder / "bin" / "python", folder / "made"
    mark = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    if not made.exists() or made.read_text() != mark:
        shutil.rmtree(folder, ignore_errors=True)
        _run(sys.executable, "-m", "venv", folder)
        _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements)
        made.write_text(mark)  # last, so that a half-made environment is not taken for a whole one
    return python


def main() -> int:
    """Make the environments asked for, or all of them."""
    failed = False
    for name in sys.argv[1:] or NAMES:
        try:
            print(f"{name}: {environment(name)}")
        except NotToBeHadError as reason:
            print(f"{name}: not to be had here: {reason}")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
