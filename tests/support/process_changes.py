"""Changes of a process of `fedlap` before its command: another version or clock, slow training, losses."""

import os
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import torch

import fedlap.deploy.client
import fedlap.deploy.peers.asking
import fedlap.deploy.peers.messages
import fedlap.deploy.requests
from fedlap.deploy.zenoh_client import ZenohClient
from fedlap.randomness import digest_name, draws
from fedlap.training.worker import Worker
from skewed_clock import CLOCK


def set_version(version):
    """Claim another version of fedlap."""
    fedlap.deploy.client.FEDLAP_VERSION = version


def set_peer_version(version):
    """Claim another version of fedlap to other peers."""
    fedlap.deploy.peers.messages.FEDLAP_VERSION = version


def answer_with_another_clock(seconds):
    """Answer clients that check their clocks by a time that is wrong."""
    fedlap.deploy.requests.time = SimpleNamespace(time=lambda: time.time() + seconds)


def train_slowly(seconds, longest=0.0, round=0):
    """Compute for `seconds` in every round, and for `longest` in one of them."""
    local = Worker.local

    def compute_long(self, number, down, *, merged):
        end = time.monotonic() + (longest if number == round else seconds)
        square = torch.rand(50, 50)
        while time.monotonic() < end:
            square = (square @ square).clamp(0, 1)
        return local(self, number, down, merged=merged)

    Worker.local = compute_long


def train_slowly_while(path, seconds):
    """Wait for `seconds` in every round while a file exists."""
    local = Worker.local

    def wait(self, number, down, *, merged):
        end = time.monotonic() + seconds
        while Path(path).exists() and time.monotonic() < end:
            time.sleep(0.01)
        return local(self, number, down, merged=merged)

    Worker.local = wait


def dump_messages(path):
    """Append every message that is sent or received to a file."""
    ask = ZenohClient.ask

    def ask_and_dump(self, content, timeout):
        with Path(path).open("ab") as file:
            file.write(content)
            answer = ask(self, content, timeout)
            file.write(answer)
        return answer

    ZenohClient.ask = ask_and_dump


def lose_models(share, seed, pause):
    """Lose a share of the models that arrive, drawn by the seed, the edge, the round and the attempt.

    pause: seconds before the neighbour is asked again; a round that lasts shorter goes without its model.
    """
    asking, attempts = fedlap.deploy.peers.asking, Counter()
    take_answer = asking.take_answer

    def take_or_lose(run, name, answer, now):
        if answer.kind == "model":
            edge, round = digest_name(f"{name} {run.name}"), answer.facts["round"]
            attempts[edge, round] += 1
            if float(draws(seed, "coin", round).uniform(edge, attempts[edge, round], 1)) < share:
                run.links[name].next_ask = now + pause
                return
        take_answer(run, name, answer, now)

    asking.take_answer = take_or_lose


def set_clock(first, second, period):
    """Set the wall clock of the process wrong, by hours that change every `period` seconds."""
    os.environ[CLOCK] = f"{first} {second} {period}"
