"""Ray in this process: its start, its number of workers, and its errors in one line."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import ray
from ray._private import services as ray_services
from ray._private import worker as ray_worker
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)

from fedlap.errors import InputError, shorten
from fedlap.summaries import count_nouns
from fedlap.training.shards.cluster import ClusterSettings, LostShardError

_LOG = logging.getLogger("fedlap")
_print_message = ray_worker.print_to_stdstream  # Ray has no setting for it.
FULL_NODE_ERRORS: Final = (ObjectStoreFullError, OutOfDiskError, OutOfMemoryError)
LOST_NODE_ERRORS: Final = (ObjectLostError, NodeDiedError, LocalRayletDiedError)
CONNECT_SECONDS: Final = 15.0  # to the head of a cluster


def start_ray(settings: ClusterSettings, cores_per_worker: int = 1) -> bool:
    """Start Ray on this machine, or join the cluster of the settings.

    Return False if this process uses Ray already; that Ray is used, and should be left running.
    """
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    cores = None if settings.workers is None else settings.workers * cores_per_worker
    try:
        if settings.address is None:
            # Without "local" it would join any Ray that runs on this machine.
            with skip_dashboard():
                ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)
        else:
            _check_reachable(settings.address)
            ray.init(address=settings.address, **quiet)
    except (RayError, ConnectionError, ValueError, OSError, RuntimeError) as error:
        if settings.address is None:
            where, advice = "on this machine", "check its memory and the disk of /tmp"
        else:
            where, advice = f"at {settings.address!r}", "start it by `ray start`, or leave out the address"
        raise InputError(
            f"Ray {where} cannot be used ({shorten_error(error)}); {advice}", field="address"
        ) from error
    ray_worker.print_to_stdstream = _log_message  # type: ignore[assignment]
    return True


@contextmanager
def skip_dashboard() -> Iterator[None]:
    """Start Ray without the process of its dashboard.

    Even if the dashboard and the usage statistics are off, this process asks the metadata services of cloud
    providers, which are other hosts, for the name of the provider. Training does not need it.
    """
    start = ray_services.start_api_server
    ray_services.start_api_server = lambda *_, **__: (None, None)  # what Ray returns if it cannot start
    try:
        yield
    finally:
        ray_services.start_api_server = start


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing answers at an address, which Ray would try for minutes without Ctrl-C."""
    if "://" in address:
        return
    found = ray_services.canonicalize_bootstrap_address(address)  # "auto" is the address of a cluster here
    if found is None:  # "local"
        return
    host, _, port = found.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"no answer from {found}: {error}") from error


def stop_ray() -> None:
    """Stop the Ray that `start_ray` has started, or leave its cluster."""
    ray.shutdown()
    ray_worker.print_to_stdstream = _print_message


def _log_message(message: dict[str, Any], ignore_prefix: bool) -> None:
    """Log a message of Ray, such as the end of a process, which it prints among results otherwise."""
    for line in message["lines"]:
        _LOG.debug("Ray: %s", line)


def count_workers(settings: ClusterSettings, resource: str, share: int = 1) -> int:
    """Return the number of workers that have a share of a resource each; default: as many as there is room.

    Raise InputError if the cluster is too small, or has no GPU for workers that need one.
    """
    found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    amount = int(found.get(resource, 0))
    room = amount // share
    if resource == "GPU" and not room:
        raise InputError("device = 'cuda', but the cluster has no GPU; use cpu", field="device")
    if settings.workers is not None and settings.workers > room:
        raise InputError(
            f"workers = {settings.workers}, but the cluster has {count_nouns(amount, resource)}"
            f"{f', and a worker needs {share}' if share > 1 else ''}; set workers to at most {room}, or add "
            "machines",
            field="workers",
        )
    return settings.workers or max(1, room)


@contextmanager
def explain_errors() -> Iterator[None]:
    """Raise LostShardError for a process that has ended, and InputError for a node that is full or lost."""
    try:
        yield
    except RayError as error:
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, InputError):
            raise cause from None
        if isinstance(cause, FULL_NODE_ERRORS):
            raise InputError(
                f"a machine of the cluster is full ({shorten_error(cause)}); use more machines, or machines "
                "with more memory and disk, and resume from the run's folder"
            ) from error
        if isinstance(cause, RayActorError):
            raise LostShardError(shorten_error(cause)) from error
        if isinstance(cause, LOST_NODE_ERRORS):
            raise InputError(
                f"a machine was lost with the state of its workers ({shorten_error(cause)}); "
                "resume from the run's folder"
            ) from error
        raise


def shorten_error(error: BaseException) -> str:
    """Return the first line of an error's text."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return shorten(lines[0].strip(), 160)
