"""The training loop. A round is: send, local work, merge; or, between peers: local work, mix."""

from collections.abc import Iterator, Sequence

from fedlap.algorithms import State
from fedlap.training.cuda_graph import PlayRound, capture_rounds
from fedlap.training.engines import Engine, LeadingEngine, SampledClients
from fedlap.training.recorder import Recorder
from fedlap.training.schedule import Schedule
from fedlap.training.stacking import ManyRuns
from fedlap.training.state import Traffic, apply_updates, count_traffic

ServerStates = Sequence[State]  # one per run


def play(
    method: ManyRuns, engine: Engine, server: ServerStates, round: int, cohort: SampledClients
) -> tuple[ServerStates, list[Traffic]]:
    """Play one round and return the new server state and the traffic of each run."""
    if method.has_server:
        down = method.send(server, cohort.ids)  # the message to each sampled client
        replies = engine.local(method, round, cohort, down)  # rows and private state stay behind the engine
        server = apply_updates(server, method.merge(server, replies.ids, replies.up))  # only here rows meet
        return server, count_traffic(down, replies.up)
    replies = engine.local(method, round, cohort, None)
    return server, engine.mix(method, round, replies.up)  # every exchange between peers


def play_rounds(
    method: ManyRuns, engine: Engine, server: ServerStates, rounds: range
) -> Iterator[tuple[int, ServerStates, list[Traffic]]]:
    """Play rounds; yield, after each, its number, the new server state and the traffic of each run."""
    play_round: PlayRound
    if isinstance(engine, LeadingEngine):  # Its clients are in several processes.
        play_round = engine.play
    else:  # On a GPU, rounds are recorded once and replayed.
        play_round = capture_rounds(play, engine, len(rounds))
    for round in rounds:
        server, traffic = play_round(method, engine, server, round, engine.sampler.draw(round))
        yield round, server, traffic


def train(
    method: ManyRuns, engine: Engine, server: ServerStates, schedule: Schedule, recorder: Recorder
) -> ServerStates:
    """Play the remaining rounds, with scores as scheduled, and return the last server state of each run."""
    remaining = range(recorder.round + 1, schedule.rounds + 1)
    for round, server, traffic in play_rounds(method, engine, server, remaining):  # noqa: B020
        recorder.add_round(round, traffic)
        if schedule.is_scored(round):
            recorder.add_scores(engine, method, server)
        if recorder.end_round(engine, server):  # a checkpoint; True if asked to stop, or if all have diverged
            break
    return server
