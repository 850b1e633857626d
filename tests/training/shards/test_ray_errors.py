"""Errors of Ray become one line that says what to do, or a worker that starts again."""

import pytest

import fedlap as fl
from fedlap.training.shards.cluster import LostShardError, set_variables

set_variables(None)  # before Ray is imported
pytest.importorskip("ray", reason="needs the extra fedlap[ray]")

from ray import exceptions  # noqa: E402

from fedlap.training.shards.ray_session import explain_errors  # noqa: E402

DETAILS = "node 10.0.0.7 has no room left\n\nThe top ten processes are:\n" + "x" * 500
OBJECT = "00ffffffffffffff", None, ""
FULL = [
    exceptions.ObjectStoreFullError(DETAILS),
    exceptions.OutOfDiskError(DETAILS),
    exceptions.OutOfMemoryError(DETAILS),
]
LOST = [
    exceptions.ObjectLostError(*OBJECT),
    exceptions.OwnerDiedError(*OBJECT),
    exceptions.NodeDiedError(DETAILS),
    exceptions.LocalRayletDiedError(DETAILS),
]


def catch(error):
    """Return what an error of Ray becomes."""
    with pytest.raises(Exception) as caught, explain_errors():  # noqa: PT011
        raise error
    return caught.value


def in_task(error):
    """Return the error of a worker's call that ended with this error."""
    return exceptions.RayTaskError("merge", "Traceback\n" + DETAILS, error)


@pytest.mark.parametrize("wrap", [lambda error: error, in_task])
@pytest.mark.parametrize("error", FULL, ids=lambda error: type(error).__name__)
def test_a_full_machine_is_one_line(error, wrap):
    found = catch(wrap(error))
    assert isinstance(found, fl.InputError)
    assert str(found).startswith("a machine of the cluster is full (")
    assert str(found).endswith("resume from the run's folder")
    assert "\n" not in str(found)
    assert len(str(found)) < 350
    assert "node 10.0.0.7 has no room left" in str(found)


@pytest.mark.parametrize("wrap", [lambda error: error, in_task])
@pytest.mark.parametrize("error", LOST, ids=lambda error: type(error).__name__)
def test_a_lost_machine_is_one_line(error, wrap):
    found = catch(wrap(error))
    assert isinstance(found, fl.InputError)
    assert str(found).startswith("a machine was lost with the state of its workers (")
    assert str(found).endswith("resume from the run's folder")
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ActorDiedError(),
        exceptions.ActorUnavailableError(DETAILS, None),
        exceptions.RayActorError(error_msg=DETAILS),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_worker_that_ended_starts_again(error):
    found = catch(error)
    assert isinstance(found, LostShardError)
    assert "\n" not in str(found)


def test_an_error_of_the_input_is_that_of_the_worker():
    wrong = fl.InputError("rows = 0; add rows", field="rows")
    assert catch(in_task(wrong)) is wrong


def test_other_errors_stay_what_they_are():
    bug = in_task(ZeroDivisionError("division by zero"))
    assert catch(bug) is bug
