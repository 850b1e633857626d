"""Peers within one process and thread: their messages are encoded, and can be lost, cut off or changed."""

import os
import shutil
from contextlib import contextmanager

import torch

import fedlap as fl
from deployments import CrashError, read_model, unscale
from fedlap.deploy import failpoints
from fedlap.deploy.event_log import EVENT_LOG_FILE, EventLog
from fedlap.deploy.peers.answering import answer_question
from fedlap.deploy.peers.asking import choose_question, note_failure, take_content
from fedlap.deploy.peers.messages import PEER_ANSWERS, PEER_STATE_TYPES
from fedlap.deploy.peers.run import PeerRun
from fedlap.deploy.peers.signatures import NoSigner
from fedlap.deploy.peers.stages import Stage
from fedlap.deploy.peers.storage import PeerStorage
from fedlap.deploy.transport import PermanentError
from fedlap.deploy.wire import decode_message, encode_message
from fedlap.training.state_bytes import list_state_types
from worker_processes import cut_client

TICK = 10.0  # seconds of the peers' clock per sweep, longer than every pause between attempts
MOST_SWEEPS = 2_000
SILENCE = "it does not answer"


class CheckedLog(EventLog):
    """A log that refuses what the log of a process refuses, and writes nothing."""

    def _append(self, event):
        pass


class PeerNetwork:
    """Peers that take turns. In a sweep each does its work and asks each neighbour once.

    lost: tells by the sender's name, the receiver's name, the round and the number of the attempt to send it
    whether a model is lost.
    cut: tells by two names and the number of the sweep whether the link between them is broken.
    change: replaces a peer's answer; called with the names of sender and receiver and the message, it returns
    a message or bytes.
    disturb: carries a question of a peer to a neighbour instead of `carry`; for other faults of messages.
    points: names of peers with the points at which each of them ends, as in `FEDLAP_FAILPOINT`; it is started
    again at once.
    newcomers: names that the logs may have, apart from those of the plan.
    """

    def __init__(
        self,
        folder,
        plan,
        federation,
        lost=None,
        cut=None,
        change=None,
        names=None,
        signers=None,
        newcomers="",
    ):
        self.newcomers = newcomers
        self.folder, self.plan, self.federation = folder, plan, federation
        self.lost = lost or (lambda sender, receiver, round, attempt: False)
        self.cut = cut or (lambda one, other, sweep: False)
        self.change = change or (lambda sender, receiver, message: message)
        self.disturb = lambda network, run, neighbour, content: network.carry(run, neighbour, content)
        self.signers = signers or {}
        self.events, self.texts, self.now, self.sweeps, self.runs = [], [], 0.0, 0, {}
        self.is_supervised = False
        self.points, self.passed, self.ended, self.attempts, self.requests = {}, {}, [], {}, {}
        for name in names or plan.clients:
            self.start(name)

    # Processes.

    def start(self, name, join=None, federation=None):
        """Start a peer, or restart it with what is on its disk.

        join, federation: of a newcomer; they are known when it is restarted.
        """
        if join is not None:
            self.requests[name] = join, federation
        join, whole = self.requests.get(name, (None, None))
        whole = whole or self.federation
        k = whole.clients.index(name)
        names = {*self.plan.clients, *self.newcomers}
        log = CheckedLog(self.folder / name / EVENT_LOG_FILE, self.plan.name, names)

        def write(event, **facts):
            log.write(event, **facts)
            self.events.append((name, event, facts))

        self.runs.pop(name, None)
        with self.act(name):
            self.runs[name] = PeerRun(
                self.plan, name, lambda data, seed: cut_client(unscale(whole), k),
                PeerStorage(self.folder / name), self.signers.get(name, NoSigner()), write, self.now,
                say=lambda text: self.texts.append((name, text)), join=join,
            )  # fmt: skip

    def kill(self, name, disk=True):
        """End a peer; its disk stays unless `disk` is false."""
        del self.runs[name]
        if not disk:
            shutil.rmtree(self.folder / name)

    @contextmanager
    def act(self, name):
        """Switch on the failpoints of one peer, and no others."""
        if self.points:
            os.environ[failpoints.VARIABLE] = self.points.get(name, "")
            failpoints._passed = self.passed.setdefault(name, {})
        yield

    def restart(self, name):
        """Start a peer again that has ended by an error or at a point; it may end again at once."""
        for _ in range(10):
            try:
                return self.start(name)
            except CrashError:
                continue
        raise AssertionError(f"{name} ends whenever it is started")

    def _end(self, name, error):
        """Note the error that a peer ends with; a supervised one is started again."""
        self.ended.append((name, error))
        if self.is_supervised:
            self.restart(name)
        else:
            del self.runs[name]

    # Messages.

    def sweep(self):
        """Do the work of every peer, which asks each neighbour once."""
        self.now += TICK
        self.sweeps += 1
        for name in list(self.runs):
            if name in self.runs:
                try:
                    with self.act(name):
                        self._step(name)
                except CrashError:
                    self.restart(name)
                except PermanentError as error:
                    self._end(name, error)

    def _step(self, name):
        run = self.runs[name]
        run.advance(self.now)
        if (work := run.take_work()) is not None:
            run.finish_work(work(), self.now)
        for neighbour in list(run.links):
            question = choose_question(run, neighbour, self.now) if neighbour in run.links else None
            if question is not None:
                self._ask(run, neighbour, encode_message(question))
        run.advance(self.now)

    def _ask(self, run, neighbour, content):
        is_there = neighbour in self.runs and self.runs[neighbour].stage is not Stage.DONE
        if not is_there or self.cut(run.name, neighbour, self.sweeps):
            note_failure(run, neighbour, SILENCE, 0, self.now)
            return
        answer = self.disturb(self, run, neighbour, content)
        if answer is None:
            note_failure(run, neighbour, SILENCE, 0, self.now)
        elif answer:
            take_content(run, neighbour, answer, self.now)

    def carry(self, run, neighbour, content):
        """Return the bytes of a neighbour's answer, None if it ends, or nothing if the answer is lost."""
        try:
            with self.act(neighbour):
                _, answer = answer_question(self.runs[neighbour], run.name, content, self.now)
        except CrashError:
            self.restart(neighbour)
            return None
        except PermanentError as error:
            self._end(neighbour, error)
            return None
        finally:
            self.act(run.name).__enter__()
        if answer.kind == "wait":
            return b""
        answer = self.change(neighbour, run.name, answer)
        if isinstance(answer, bytes):
            return answer
        if answer.kind == "model":
            key = neighbour, run.name, answer.facts["round"]
            self.attempts[key] = self.attempts.get(key, 0) + 1
            if self.lost(*key, self.attempts[key]):
                return b""
        return encode_message(answer)

    # Progress.

    def run_until(self, condition):
        """Sweep until a condition holds."""
        for _ in range(MOST_SWEEPS):
            if condition():
                return self
            self.sweep()
        raise AssertionError(f"the peers are stuck: {self.describe()}")

    def describe(self):
        """Return the stage of every peer, its round, and the peers that it waits for."""
        return {
            name: (str(run.stage), run.round, run.list_awaited(self.now)) for name, run in self.runs.items()
        }

    def run(self):
        """Sweep until all peers have ended."""
        return self.run_until(lambda: all(run.stage is Stage.DONE for run in self.runs.values()))

    def reach(self, round, names=None):
        """Sweep until every peer, or every named one, has finished a round."""
        return self.run_until(lambda: all(self.runs[name].round >= round for name in names or self.runs))

    @property
    def models(self):
        """The personal models that the peers have stored."""
        return torch.cat([read_model(self.folder / name) for name in self.plan.clients])

    @property
    def current(self):
        """The peers' present models."""
        workers = [self.runs[name].peer.worker for name in self.plan.clients]
        return torch.cat([worker.personal_model(None) for worker in workers])

    def list_events(self, event, owner=None):
        """Return the facts of all such events, of one peer or of all."""
        return [facts for name, found, facts in self.events if found == event and owner in (None, name)]


def decode_answer(content):
    """Return the message of an answer's bytes."""
    return decode_message(content, PEER_ANSWERS, [*PEER_STATE_TYPES, *list_state_types(fl.DFedU)])
