"""The cluster that shards run on: its settings, its session, and the calls of shards."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Final, Protocol, runtime_checkable

from fedlap.errors import InputError, check_integer

# "0" binds a Ray on one machine to 127.0.0.1, on every system.
LOOPBACK_VARIABLE: Final = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@dataclass(frozen=True)
class ClusterSettings:
    """The settings of a cluster, which change no numbers of a run.

    workers: number of processes; None is one per GPU or per core. address: of a cluster to join; None starts
    Ray on this machine. on_gpu: whether each process has a GPU; otherwise it has a core.
    """

    workers: int | None = None
    address: str | None = None
    on_gpu: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_integer("workers", self.workers, 1)
        if self.address is not None and not isinstance(self.address, str):
            raise InputError(f"address = {self.address!r}; pass a text, such as 'auto'", field="address")


@dataclass(eq=False)
class ClusterSession:
    """A cluster that several runs use, one after another; the first run opens it."""

    settings: ClusterSettings
    cluster: "Cluster | None" = None

    def open(self, on_gpu: bool = False) -> "Cluster":
        """Return the cluster; runs on another kind of device replace it."""
        if on_gpu != self.settings.on_gpu:
            self.settings = replace(self.settings, on_gpu=on_gpu)
            if self.cluster is not None:
                self.cluster.close()
                self.cluster = None
        if self.cluster is None:
            self.cluster = open_cluster(self.settings)
        return self.cluster


_session: ContextVar[ClusterSession | None] = ContextVar("session", default=None)


@contextmanager
def use_cluster(settings: ClusterSettings | None = None) -> Iterator[ClusterSession]:
    """Yield a session with a cluster, which ends with this context.

    Without settings, the session that is in use is yielded, if there is one.
    """
    if settings is None and (session := _session.get()) is not None:
        yield session
        return
    session = ClusterSession(settings or ClusterSettings())
    token = _session.set(session)
    try:
        yield session
    finally:
        _session.reset(token)
        if session.cluster is not None:
            session.cluster.close()


def use_workers(
    engine: str, workers: int | None, address: str | None
) -> AbstractContextManager[ClusterSession | None]:
    """Return a context with the workers of an engine; raise InputError for settings that it does not have."""
    if engine == "ray":
        return use_cluster(ClusterSettings(workers, address) if (workers, address) != (None, None) else None)
    for field, value in (("workers", workers), ("address", address)):
        if value is not None:
            raise InputError(
                f"{field} = {value!r}, but engine = {engine!r} trains in this process; set engine to 'ray'",
                field=field,
            )
    return nullcontext()


class LostShardError(Exception):
    """The process of a shard has ended."""


@runtime_checkable
class Cluster(Protocol):
    """Processes that run one shard each.

    A reference stands for a value that may be in another process. Arguments that are references arrive as
    values.
    """

    @property
    def workers(self) -> int:
        """The number of shards that the cluster has room for."""
        ...

    def put(self, value: Any) -> Any:
        """Store a value, and return a reference."""
        ...

    def start(self, shard: int, plan: Any) -> Any:
        """Build a shard in its process, which is started if there is none; return a reference to wait for.

        plan: a reference to a ShardPlan.
        """
        ...

    def call(self, shard: int, verb: str, *arguments: Any, returns: int | None = None) -> list[Any]:
        """Call a method of a shard without waiting, and return references.

        returns: the length of the tuple that the method returns, if each entry is to have its own reference.
        """
        ...

    def fetch(self, references: Sequence[Any]) -> list[Any]:
        """Wait for values; raise LostShardError if a process has ended before it returned them."""
        ...

    def find_lost(self, shards: int) -> list[int]:
        """Return the numbers of the shards whose processes have ended; `shards` is the number of all."""
        ...

    def release(self) -> None:
        """Release the memory of all shards; their processes wait for other shards."""
        ...

    def close(self) -> None:
        """End all processes."""
        ...


def open_cluster(settings: ClusterSettings) -> Cluster:
    """Start Ray, or join a cluster; raise InputError if Ray is not installed."""
    prepare_import("engine = 'ray'", "engine", settings.address)
    from fedlap.training.shards.ray_cluster import RayCluster  # Importing Ray takes a second.

    return RayCluster(settings)


def prepare_import(what: str, field: str, address: str | None) -> None:
    """Set the variables that Ray reads when it is imported; raise InputError if Ray is not installed."""
    if find_spec("ray") is None:
        raise InputError(f"{what} needs the ray extra; run pip install 'fedlap[ray]'", field=field)
    set_variables(address)


def set_variables(address: str | None) -> None:
    """Set the variables that Ray reads when it is imported, unless they are set already.

    A Ray that is started on this machine binds to 127.0.0.1. Nothing is reported to the authors of Ray.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray advises, else it warns
    if address is None:
        os.environ.setdefault(LOOPBACK_VARIABLE, "0")
