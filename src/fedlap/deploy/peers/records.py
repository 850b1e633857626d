"""Records: what each peer says about its rows before the first round, passed on from neighbour to neighbour.

Every peer needs the counts of all peers for the default strength, and their sums for pooled scaling. A record
holds shapes and sums, never rows, and is signed, so that a neighbour cannot change it on its way.
"""

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
from fedlap.deploy.peers.signatures import Signer
from fedlap.deploy.plan import Plan
from fedlap.deploy.setup import Setup
from fedlap.deploy.site_data import check_shapes, describe_site
from fedlap.errors import InputError
from fedlap.training.state_bytes import decode_state, encode_state

Record = dict[str, Any]  # "name", "shapes", "moments", "plan" and "proof"
SIGNED_PARTS: Final = ("name", "shapes", "moments", "plan")


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
        self._known: dict[str, Record] = {}

    def add(self, record: Any) -> bool:
        """Add a record; return whether it is new. Raise InputError if its peer has not signed it."""
        try:
            statement = {part: record[part] for part in SIGNED_PARTS}
            name, proof = statement["name"], dict(record["proof"])
            moments = bytes.fromhex(statement["moments"])
            if not isinstance(name, str):
                raise TypeError("the name is no text")
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("a record is damaged; install one version of fedlap at all peers") from error
        if name in self._known or name not in self._plan.clients:
            return False
        if statement["plan"] != self._plan.digest:
            raise InputError(f"the record of {name!r} is of another plan; use one plan at all peers")
        self._signer.check(name, statement, proof)
        rows = check_shapes(self._plan.data, statement["shapes"])["train_rows"]
        check_moments(decode_state(moments, MOMENT_TYPES), self._plan.data, rows)
        self._known[name] = dict(record)
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
