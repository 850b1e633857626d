"""The number of threads, read from files in the layout of Linux."""

import pytest
import torch

from fedlap.cli import threads


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The root of a simulated machine with eight CPUs, all of which may be used."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "list_allowed_cpus", lambda: set(range(8)))
    return tmp_path


def write(root, **files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n")


def siblings(root, pairs, name="core_cpus_list"):
    for cpu, text in pairs.items():
        write(root, **{f"sys/devices/system/cpu/cpu{cpu}/topology/{name}": text})


def test_where_nothing_is_known_a_thread_a_cpu(root):
    assert threads.choose_threads(8, root) == 8
    assert threads.choose_threads(64, root) == 8


def test_never_more_than_pytorch_s_own(root):
    assert threads.choose_threads(3, root) == 3


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_hyper_threads_share_a_core(root, name):
    siblings(root, {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}, name)
    assert threads.choose_threads(8, root) == 4


def test_only_the_cores_that_may_be_used(root, monkeypatch):
    siblings(root, {cpu: f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" for cpu in range(8)})
    monkeypatch.setattr(threads, "list_allowed_cpus", lambda: {0, 1, 5})
    assert threads.choose_threads(8, root) == 2


def test_cores_from_cpuinfo(root):
    blocks = [f"processor\t: {n}\nphysical id\t: {n // 4}\ncore id\t\t: {n % 2}\n" for n in range(8)]
    write(root, **{"proc/cpuinfo": "\n".join(blocks)})
    assert threads.choose_threads(8, root) == 4


def test_a_cpuinfo_that_does_not_say_counts_cpus(root):
    write(root, **{"proc/cpuinfo": "\n\n".join(f"processor\t: {n}\nBogoMIPS : 50" for n in range(8))})
    assert threads.choose_threads(8, root) == 8


@pytest.mark.parametrize(
    ("limit", "number"),
    [("200000 100000", 2), ("150000 100000", 1), ("20000 100000", 1), ("max 100000", 8), ("junk", 8)],
)
def test_a_quota_of_version_2(root, limit, number):
    write(root, **{"sys/fs/cgroup/cpu.max": limit})
    assert threads.choose_threads(8, root) == number


def test_the_strictest_group_on_the_way_up(root):
    files = {
        "proc/self/cgroup": "0::/outer/inner",
        "sys/fs/cgroup/outer/cpu.max": "300000 100000",
        "sys/fs/cgroup/outer/inner/cpu.max": "max 100000",
        "sys/fs/cgroup/other/cpu.max": "100000 100000",
    }
    write(root, **files)
    assert threads.choose_threads(8, root) == 3


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("quota", "number"), [("250000", 2), ("-1", 8)])
def test_a_quota_of_version_1(root, folder, quota, number):
    files = {
        "proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/job\n0::/",
        f"sys/fs/cgroup/{folder}/job/cpu.cfs_quota_us": quota,
        f"sys/fs/cgroup/{folder}/job/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/memory/job/cpu.cfs_quota_us": "100000",
    }
    write(root, **files)
    assert threads.choose_threads(8, root) == number


def test_in_a_container_the_topmost_group_is_its_own(root):
    files = {"proc/self/cgroup": "0::/../../host/job", "sys/fs/cgroup/cpu.max": "400000 100000"}
    write(root, **files)
    assert threads.choose_threads(8, root) == 4


@pytest.mark.parametrize(("setting", "number"), [("6", 6), ("6,2", 6), ("junk", 2), ("", 2)])
def test_omp_num_threads_has_decided(root, monkeypatch, setting, number):
    write(root, **{"sys/fs/cgroup/cpu.max": "200000 100000"})
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    assert threads.choose_threads(6, root) == number


def test_here(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert 1 <= threads.choose_threads(1000) <= len(threads.list_allowed_cpus())


def test_an_option_overrides(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(threads, "choose_threads", lambda usual: 5)
    threads.use_threads(3)
    threads.use_threads(None)
    assert asked == [3, 5]
