"""The number of CPU threads: one per physical core that this process may use.

More threads than cores are slower: the threads wait for each other at every small matrix product.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from fedlap.errors import InputError

SYSTEM_ROOT = Path("/")
MAX_THREADS_PER_CPU = 64  # more only wait for each other, and tens of thousands crash the process


def use_threads(threads: int | None) -> None:
    """Set the number of PyTorch threads; None chooses it by `choose_threads`."""
    most = MAX_THREADS_PER_CPU * (os.cpu_count() or 1)
    if threads is not None and threads > most:
        raise InputError(f"--threads {threads}: use at most {most} threads on this machine")
    torch.set_num_threads(threads or choose_threads(torch.get_num_threads()))


def choose_threads(default: int, root: Path = SYSTEM_ROOT) -> int:
    """Return one thread per core, at most PyTorch's default; OMP_NUM_THREADS takes precedence."""
    if os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip().isdecimal():
        return default
    limits = [default, count_cores(list_allowed_cpus(), root)]
    share = read_quota(root)
    if share is not None:
        limits.append(int(share))  # 1.5 CPUs are one thread: the scheduler would throttle two
    return max(1, min(limits))


def list_allowed_cpus() -> set[int]:
    """Return the CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def count_cores(cpus: set[int], root: Path = SYSTEM_ROOT) -> int:
    """Count the physical cores that the CPUs belong to; a CPU without topology counts as one core."""
    listed = _read_cpuinfo(root)

    def identify_core(cpu: int) -> str:
        folder = root / "sys/devices/system/cpu" / f"cpu{cpu}" / "topology"
        siblings = _read_text(folder / "core_cpus_list")
        siblings = siblings or _read_text(folder / "thread_siblings_list")  # the name in older kernels
        return siblings or listed.get(cpu, str(cpu))

    return max(1, len({identify_core(cpu) for cpu in cpus}))


def _read_cpuinfo(root: Path) -> dict[int, str]:
    """Return package and core per CPU from /proc/cpuinfo, if it lists them."""
    found = {}
    for block in (_read_text(root / "proc/cpuinfo") or "").split("\n\n"):
        lines = (line.partition(":") for line in block.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in lines}
        if fields.get("processor", "").isdecimal() and "physical id" in fields and "core id" in fields:
            found[int(fields["processor"])] = f"core {fields['core id']} of {fields['physical id']}"
    return found


def read_quota(root: Path = SYSTEM_ROOT) -> float | None:
    """Return the CPU quota of the strictest control group, in CPUs; None if there is no limit."""
    shares = [share for folder in _list_control_groups(root) if (share := _read_share(folder)) is not None]
    return min(shares, default=None)


def _list_control_groups(root: Path) -> Iterator[Path]:
    """Return the folders of the control groups that may limit CPU time, and all their parents."""
    top = root / "sys/fs/cgroup"
    paths = {top: "/", top / "cpu": "/", top / "cpu,cpuacct": "/"}
    for line in (_read_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths[top] = path  # version 2
            paths[top / "unified"] = path  # version 2 mounted next to version 1
        elif "cpu" in controllers.split(","):
            paths |= {top / controllers: path, top / "cpu": path, top / "cpu,cpuacct": path}
    for base, path in paths.items():
        inner = base / path.strip("/")
        # In a container the path may be the host's; the container's own group is then the topmost folder.
        yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(base))


def _read_share(folder: Path) -> float | None:
    """Return the quota of one control group, in CPUs, if it has one."""
    limit = (_read_text(folder / "cpu.max") or "").split()  # version 2
    if not limit:  # version 1
        limit = [_read_text(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    if len(limit) != 2 or not all(number.isdecimal() for number in limit):  # "max" or -1: no limit
        return None
    return int(limit[0]) / int(limit[1]) if int(limit[1]) else None


def _read_text(file: Path) -> str | None:
    """Return the text of a system file without its last line end; None if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
