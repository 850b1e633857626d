"""The status board: states of clients as the coordinator knows them, and since when they hold."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedlap.deploy.coordinator import Coordinator
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.run_state import OpenRound, Phase, Site
from fedlap.deploy.server_board import ServerBoard, choose_state
from fedlap.deploy.status import read_status

NAMES = ("north", "east", "south", "west")


def make_run(**changes):
    """Return the attributes of a coordinator in round 3, in which nobody has answered yet."""
    run = SimpleNamespace(
        plan=SimpleNamespace(name="radon", rounds=50),
        phase=Phase.TRAINING,
        round=3,
        setups=[1],
        setup=SimpleNamespace(clients=NAMES),
        checkpoint=SimpleNamespace(merged={"north": 2}),
        sites={name: Site(name, rows=10, last_seen=0.0, bytes_up=5, bytes_down=7) for name in NAMES},
        open_round=OpenRound(3, [0, 1, 2], dict.fromkeys(range(3)), {}),
        tallies={},
        finished=set(),
        was_done=False,
        refused_change="",
        scores=[],
        list_awaited=lambda now: ["south"],
    )
    vars(run).update(changes)
    return run


def states(run):
    return [choose_state(run, site) for site in run.sites.values()]


def test_the_test_s_run_has_the_attributes_of_a_coordinator():
    attributes = {*vars(Coordinator), *Coordinator.__init__.__code__.co_names}
    assert vars(make_run()).keys() <= attributes | {"checkpoint"}


def test_states_in_a_round():
    run = make_run()
    assert states(run) == ["training", "training", "training", "idle"]
    run.open_round.replies[0] = None
    run.open_round.missing |= {1: EventReason.DECLINED, 2: EventReason.NORM}
    assert states(run) == ["answered", "declined", "refused", "idle"]


def test_states_of_clients_that_are_not_there():
    run = make_run()
    run.sites["north"].is_late = True
    run.sites["east"].is_away = True
    run.sites["south"].is_ejected = True
    run.sites["west"].last_seen = None
    assert states(run) == ["late", "absent", "left", "absent"]


def test_states_between_rounds():
    before = make_run(setups=[], open_round=None, phase=Phase.GATHERING)
    assert states(before) == ["idle"] * 4
    scoring = make_run(open_round=None, phase=Phase.SCORING, tallies={"east": None})
    assert states(scoring) == ["scoring", "answered", "scoring", "scoring"]
    finishing = make_run(open_round=None, phase=Phase.FINISHING, finished={"west"})
    assert states(finishing) == ["finishing", "finishing", "finishing", "answered"]
    assert states(make_run(open_round=None, phase=Phase.DONE)) == ["idle"] * 4


def test_since_when_a_state_holds():
    run = make_run()
    run.sites["east"].is_late = True
    board = ServerBoard(run, None, None)
    first = board.observe(10.0)
    assert (first.since, first.clients["north"].since, first.clients["east"].since) == (10.0, 10.0, 10.0)
    run.open_round.replies[0] = None
    second = board.observe(15.0)
    assert (second.clients["north"].since, second.clients["south"].since) == (15.0, 10.0)
    run.round, run.open_round = 4, OpenRound(4, [0, 1, 2], dict.fromkeys(range(3)), {})
    third = board.observe(20.0)
    assert (third.since, third.clients["south"].since) == (20.0, 20.0)  # a new round begins
    assert third.clients["east"].since == 10.0  # it is late since then, whatever the round
    assert third.clients["west"].since == 10.0


def test_the_status_has_the_numbers_of_the_coordinator():
    score = SimpleNamespace(round=2, loss=0.5, accuracy=None, rmse=0.8)
    status = ServerBoard(make_run(scores=[score]), None, None).observe(10.0)
    assert (status.run, status.round, status.rounds, status.phase) == ("radon", 3, 50, "training")
    assert (status.scores, status.scored_round) == ({"loss": 0.5, "rmse": 0.8}, 2)
    assert (status.awaited, status.bytes_up, status.bytes_down) == (("south",), 20, 28)
    assert [client.round for client in status.clients.values()] == [2, 0, 0, 0]


@pytest.mark.parametrize(("phase", "last"), [(Phase.TRAINING, "stopped"), (Phase.DONE, "done")])
def test_the_file_says_how_the_run_ended(phase, last, tmp_path):
    console, run = Console(file=io.StringIO(), width=200), make_run()
    with ServerBoard.show(tmp_path, run, console, clock=lambda: 5.0) as board:
        assert read_status(tmp_path).phase == "training"
        run.phase = phase
        board.update(5.0)
    assert read_status(tmp_path).phase == last
    assert last in console.file.getvalue().splitlines()[-1]
