"""Tables of the server state with one row per client, read and written at the sampled clients alone."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Float, Int64
from torch import Tensor

Ids = Int64[Tensor, "client"]


@dataclass(frozen=True, eq=False)
class GatheredRows:
    """The rows `ids` of a table, one per client; the engine gathers them where the clients run."""

    table: Float[Tensor, "row ..."]
    ids: Ids


@dataclass(frozen=True, eq=False)
class RowUpdate:
    """New values for the rows `ids` of a table; the engine writes them, and other rows stay unchanged."""

    ids: Int64[Tensor, "row"]
    values: Float[Tensor, "row ..."]


class ClientTable(NamedTuple):
    """A field of the server state: one row per client, and a last one for a server vertex if there is one.

    Both verbs only describe: rows are gathered and written by the engine, at a cost that grows with the
    sampled clients and not with all clients.
    """

    values: Float[Tensor, "row ..."]

    def rows(self, ids: Ids) -> GatheredRows:
        """Return the rows of clients `ids`, as a message to them."""
        return GatheredRows(self.values, ids)

    def with_rows(self, ids: Int64[Tensor, "row"], values: Float[Tensor, "row ..."]) -> Any:
        """Return this table with new values in the rows `ids`, as the field of a new server state.

        It is a `RowUpdate`, which stands for a table until the engine has written it.
        """
        return RowUpdate(ids, values)
