"""The memory of processes, as Linux reports it."""

from pathlib import Path


def measure_memory() -> tuple[int, int]:
    """Return the resident bytes of this process, and those of them that are not of files."""
    status = read_process_status()
    return status["VmRSS"], status["RssAnon"]


def read_process_status(process: int | str = "self") -> dict[str, int]:
    """Return the sizes in a process's status, in bytes."""
    return _read_sizes(Path(f"/proc/{process}/status"))


def read_proportional_size(process: int) -> int:
    """Return the bytes of a process, its part of shared pages included; 0 once it has ended."""
    try:
        return _read_sizes(Path(f"/proc/{process}/smaps_rollup"))["Pss"]
    except (OSError, KeyError):
        return 0


def list_descendants(process: int) -> list[int]:
    """Return the processes that a process has started, and those that they have started."""
    found = [process]
    for one in found:  # grows as it is walked
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found += map(int, children.read_text(encoding="ascii").split())
            except OSError:  # it has ended meanwhile
                continue
    return found[1:]


def read_title(process: int) -> str:
    """Return the command line of a process; it is empty once the process has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _read_sizes(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if words[-1] == "kB"}
