"""The stages of a peer's run."""

from enum import StrEnum


class Stage(StrEnum):
    """The stage of a peer's run."""

    GATHERING = "gathering"  # before the first round: greetings, records, the setup
    COLLECTING = "collecting"  # a newcomer, or a peer without its disk, asks for its neighbours' models
    TRAINING = "training"
    FINISHING = "finishing"  # it has done its last round, and answers neighbours that have not
    DONE = "done"
