"""Tasks of workers that train a stack, with a process that ends or a stop in the third round."""

import os
import time

from fedlap.comparisons.stack_tasks import train_stored_stack

ROUND = 3


def train_and_end_once(should_stop, experiments, options):
    """Train a stack; in the first attempt, the process ends after a round."""
    return _train(should_stop, experiments, options, _end_process)


def train_and_end(should_stop, experiments, options):
    """Train a stack; the process ends after the first round of every attempt."""
    return train_stored_stack(_end_process, experiments, options)


def train_until_stopped(should_stop, experiments, options):
    """Train a stack; wait after a round until a stop is requested."""

    def wait():
        while not should_stop():
            time.sleep(0.01)

    return _train(should_stop, experiments, options, wait)


def _train(should_stop, experiments, options, interrupt):
    """Train a stack; interrupt the first attempt after a round."""
    mark, rounds = options.out / f"{experiments[0].digest}.interrupted", []

    def count_round():
        rounds.append(None)
        if len(rounds) == ROUND and not mark.exists():
            mark.touch()
            interrupt()
        return should_stop()

    return train_stored_stack(count_round, experiments, options)


def _end_process():
    os._exit(1)
