"""How many CPU threads to compute with: one for each core that this process may really use.

More threads than cores is the one thing to avoid: they wait for each other at every small product.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from fedlap.errors import InputError

ROOT = Path("/")
MOST_PER_CPU = 64  # threads: more only wait for each other, and some tens of thousands end the process


def use_threads(asked: int | None) -> None:
    """Compute with so many threads, or with as many as suit this machine."""
    most = MOST_PER_CPU * (os.cpu_count() or 1)
    if asked is not None and asked > most:
        raise InputError(f"--threads {asked}: use at most {most} threads on this machine")
    torch.set_num_threads(asked or default_threads(torch.get_num_threads()))


def default_threads(usual: int, root: Path = ROOT) -> int:
    """A thread a core, and never more than PyTorch would take; OMP_NUM_THREADS, where set, has decided."""
    if os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip().isdecimal():
        return usual
    limits = [usual, cores(allowed_cpus(), root)]
    share = quota(root)
    if share is not None:
        limits.append(int(share))  # 1.5 CPUs are one thread: two would be stopped again and again
    return max(1, min(limits))


def allowed_cpus() -> set[int]:
    """The numbers of the CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def cores(cpus: set[int], root: Path = ROOT) -> int:
    """How many physical cores these CPUs are; CPUs of which nothing is known are one each."""
    listed = _listed_cores(root)

    def core(cpu: int) -> str:
        folder = root / "sys/devices/system/cpu" / f"cpu{cpu}" / "topology"
        siblings = _text(folder / "core_cpus_list") or _text(folder / "thread_siblings_list")  # newer, older
        return siblings or listed.get(cpu, str(cpu))

    return max(1, len({core(cpu) for cpu in cpus}))


def _listed_cores(root: Path) -> dict[int, str]:
    """Package and core of each CPU in /proc/cpuinfo, where it says them."""
    found = {}
    for block in (_text(root / "proc/cpuinfo") or "").split("\n\n"):
        lines = (line.partition(":") for line in block.splitlines())
        about = {key.strip(): value.strip() for key, _, value in lines}
        if about.get("processor", "").isdecimal() and "physical id" in about and "core id" in about:
            found[int(about["processor"])] = f"core {about['core id']} of {about['physical id']}"
    return found


def quota(root: Path = ROOT) -> float | None:
    """How many CPUs' time the process's control groups grant it, the strictest of them; None: all."""
    shares = [share for folder in _groups(root) if (share := _share(folder)) is not None]
    return min(shares, default=None)


def _groups(root: Path) -> Iterator[Path]:
    """The folders of the process's control groups that may limit CPU time, and all above them."""
    top = root / "sys/fs/cgroup"
    paths = {top: "/", top / "cpu": "/", top / "cpu,cpuacct": "/"}
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths[top] = path  # version 2
            paths[top / "unified"] = path  # beside version 1
        elif "cpu" in controllers.split(","):
            paths |= {top / controllers: path, top / "cpu": path, top / "cpu,cpuacct": path}
    for base, path in paths.items():
        inner = base / path.strip("/")
        # In a container the path may be the host's; the topmost folder is then the container's own.
        yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(base))


def _share(folder: Path) -> float | None:
    """CPUs' time that one control group grants, if it says so."""
    limit = (_text(folder / "cpu.max") or "").split()  # version 2
    if not limit:  # version 1
        limit = [_text(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    if len(limit) != 2 or not all(number.isdecimal() for number in limit):  # "max" or -1: no limit
        return None
    return int(limit[0]) / int(limit[1]) if int(limit[1]) else None


def _text(file: Path) -> str | None:
    """What is in a file of the system, without the last line's end; None where there is none to read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
