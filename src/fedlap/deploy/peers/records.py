"""Records: what each peer says about its rows before the first round, passed on from neighbour to neighbour.

Every peer needs the counts of all peers for the default strength, and their sums for pooled scaling. A record
holds shapes and sums, never rows, and is signed, so that a neighbour cannot change it on its way. All records
fit into one message.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedlap.data.federation import Federation
from fedlap.deploy.moments import (
    MOMENT_TYPES,
    ScalingConstants,
    check_moments,
    combine_moments,
    compute_moments,
)
from fedlap.deploy.peers.signatures import PROOF_PARTS, Signer
from fedlap.deploy.plan import Plan
from fedlap.deploy.setup import Setup
from fedlap.deploy.site_data import check_shapes, describe_site
from fedlap.errors import InputError
from fedlap.training.state_bytes import decode_state, encode_state

Record = dict[str, Any]  # "name", "shapes", "moments", "plan" and "proof"
SIGNED_PARTS: Final = ("name", "shapes", "moments", "plan")
OTHER_BYTES: Final = 1_000  # of a message with records, apart from the records themselves


def write_record(plan: Plan, name: str, site: Federation, signer: Signer) -> Record:
    """Return the record of this peer."""
    moments = encode_state(compute_moments(site, plan.data.scale)).hex()
    statement = {"name": name, "shapes": describe_site(site), "moments": moments, "plan": plan.digest}
    return {**statement, "proof": signer.sign(statement)}


class RecordBook:
    """The records that a peer has: its own, and those that it has received."""

    def __init__(self, plan: Plan, signer: Signer) -> None:
        """Start without records."""
        self._plan, self._signer = plan, signer
        self._most_bytes = (plan.limits.most_bytes - OTHER_BYTES) // len(plan.clients)  # of a record
        self._known: dict[str, Record] = {}

    def add(self, record: Any) -> bool:
        """Add a record; return whether it is new. Raise InputError if its peer has not signed it.

        A neighbour can add parts to a record of another peer, which are not signed: they are dropped.
        """
        try:
            statement = {part: record[part] for part in SIGNED_PARTS}
            name = statement["name"]
            proof = {part: record["proof"][part] for part in PROOF_PARTS if part in record["proof"]}
            moments = bytes.fromhex(statement["moments"])
            if not all(isinstance(text, str) for text in (name, *proof.values())):
                raise TypeError("the name or the proof is no text")
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("a record is damaged; install one version of fedlap at all peers") from error
        if name in self._known or name not in self._plan.clients:
            return False
        if statement["plan"] != self._plan.digest:
            raise InputError(f"the record of {name!r} is of another plan; use one plan at all peers")
        rows = check_shapes(self._plan.data, statement["shapes"])["train_rows"]
        known = {**statement, "proof": proof}
        if (size := len(json.dumps([known]))) > self._most_bytes:
            raise InputError(
                f"the record of {name!r} has {size:,} bytes; expected at most {self._most_bytes:,}, so that "
                "those of all clients fit into a message; raise most_bytes in [limits]"
            )
        self._signer.check(name, statement, proof)
        check_moments(decode_state(moments, MOMENT_TYPES), self._plan.data, rows)
        self._known[name] = known
        return True

    def list_all(self) -> list[Record]:
        """Return all records."""
        return list(self._known.values())

    def list_missing(self) -> list[str]:
        """Return the clients of the plan whose records are not here yet."""
        return [name for name in self._plan.clients if name not in self._known]

    def build_setup(self) -> tuple[Setup, ScalingConstants]:
        """Return the setup of the run and the constants of its scaling; all peers compute the same."""
        plan = self._plan
        counts: Sequence[int] = [self._known[name]["shapes"]["train_rows"] for name in plan.clients]
        setup = Setup.of(plan, plan.clients, counts, plan.build_graph(plan.clients), 1, 1)
        moments: Mapping[str, Any] = {
            name: decode_state(bytes.fromhex(record["moments"]), MOMENT_TYPES)
            for name, record in self._known.items()
        }
        return setup, combine_moments(moments, plan.clients)
