"""Faults of messages between peers, one for each question, by a script."""

from deployments import CrashError
from fedlap.deploy.peers.asking import take_content
from fedlap.training.state import count_bytes
from peer_networks import decode_answer


class DisturbedLinks:
    """Carries questions and answers as a script says; nothing happens after its last entry.

    script: pairs of a fault and a number, which chooses a byte or an earlier message. drop: the question is
    lost. forget: the answer is lost. twice: the question arrives twice. replay: an earlier question of the
    same peer arrives first. late: an earlier answer arrives once more, before the answer. corrupt, truncate:
    a byte of the question or the answer is changed, or its end is cut off, and it arrives like that. end
    asker, end holder: that peer ends, and is started again. No byte of a number is changed: that would be
    another model, which TLS notices, and the peer cannot.
    """

    def __init__(self, script):
        self.script, self.questions, self.answers = list(script), {}, {}

    def __call__(self, network, run, neighbour, content):
        kind, number = self.script.pop(0) if self.script else ("none", 0)
        link = run.name, neighbour
        earlier = self.questions.setdefault(link, [])
        if kind == "replay" and earlier:
            network.carry(run, neighbour, earlier[number % len(earlier)])
        earlier.append(content)
        if kind == "drop":
            return None
        if kind == "end holder":
            network.restart(neighbour)
            return None
        if kind.endswith(" question"):
            network.carry(run, neighbour, damage(kind, content, number))
            return None
        if kind == "twice":
            network.carry(run, neighbour, content)
        answer = network.carry(run, neighbour, content)
        if kind == "end asker":
            raise CrashError
        if kind == "forget" or not answer:
            return answer and None
        known = self.answers.setdefault(link, [])
        if kind == "late" and known:
            take_content(run, neighbour, known[number % len(known)], network.now)
        known.append(answer)
        if kind.endswith(" answer"):
            size = count_bytes(decode_answer(answer).state)
            return damage(kind, answer, number, size)
        return answer


def damage(kind, content, number, untouched=0):
    """Return content with one byte changed, except for the last ones, or without its end."""
    place = number % (len(content) - untouched)
    if kind.startswith("truncate"):
        return content[:place] or b"?"
    return content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]
