"""Changes of a process of `fedlap` before its command: another version, slow training, a dump of messages."""

import time
from pathlib import Path

import torch

import fedlap.deploy.client
from fedlap.deploy.zenoh_client import ZenohClient
from fedlap.training.worker import Worker


def set_version(version):
    """Claim another version of fedlap."""
    fedlap.deploy.client.FEDLAP_VERSION = version


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
