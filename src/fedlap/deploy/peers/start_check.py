"""Checks of a peer's plan and certificate before the first round; they need no connection."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from fedlap.data.federation import Federation
from fedlap.data.standardize import Standardizer
from fedlap.deploy.certificates import CertificateFacts
from fedlap.deploy.check import Finding
from fedlap.deploy.data_plan import DataPlan
from fedlap.deploy.peers.edges import find_edges
from fedlap.deploy.peers.late_models import explain_late_models
from fedlap.deploy.plan import Plan
from fedlap.deploy.transport import ExitCode
from fedlap.deploy.zenoh_settings import split_address

OWN_MODELS: Final = 5  # in a checkpoint: the state, two messages, and the model file twice
SAME_POINT: Final = "so training ends at the same point as without them"
# The conditions on rows that are not checked here; scaled rows are known when the run starts.
IF_CURVED: Final = f"{SAME_POINT}, if every loss is strongly convex and lr < 2/β; fedlap peer checks its own"
IF_OTHERS: Final = f"{SAME_POINT}, if the losses of the other peers are as this one: convex, and lr < 2/β"


def describe_plan(plan: Plan, name: str) -> Finding:
    """Return the digest of the plan, and the neighbours of this peer."""
    neighbours = ", ".join(find_edges(plan, name, None)) or "none"
    return Finding("plan", "", f"{plan.digest[:16]}, {plan.rounds} rounds; neighbours: {neighbours}")


def check_own_host(plan: Plan, name: str, facts: CertificateFacts) -> Finding | None:
    """Check that the certificate names the host at which the plan lets others dial this peer."""
    assert plan.peers is not None
    address = plan.peers.addresses.get(name)
    if address is None:
        return None
    host, _ = split_address(address)
    if host in facts.hosts:
        return Finding("address", "", f"{address}, which the certificate names")
    problem = (
        f"the plan has {address}, and the certificate names {', '.join(facts.hosts) or 'no host'}; request "
        f"one with `fedlap keys request --name {name} --host {host}`"
    )
    return Finding("address", problem, code=int(ExitCode.WRONG_NAME))


def check_late_models(plan: Plan, load_site: Callable[[DataPlan, int], Federation] | None = None) -> Finding:
    """Tell whether rounds with late models converge to the same point (the page on theory, Late models).

    The default strength, which follows from the numbers of rows, always tolerates them.
    load_site: reads this peer's rows. With pooled scaling their curvature is known when the run starts.
    """
    assert plan.peers is not None
    if plan.peers.most_age == 0:
        return Finding("late models", "", "staleness = 0: every round waits for the models of all neighbours")
    method: Any = plan.build_algorithm(plan.build_graph(plan.clients))
    rows = None
    if load_site is not None and plan.data.scale != "pooled":
        site = load_site(plan.data, plan.seed)
        rows = replace(site, scale=Standardizer.of(plan.data.scale, site.train))
    if remark := explain_late_models(plan, method, rows):
        return Finding("late models", "", remark, is_remark=True)
    if method.strength is None:
        product = "the default strength tolerates them"
    else:
        product = f"lr·R·strength·degree = {method.coupling.delay_product:.4g}, at most 1"
    return Finding("late models", "", f"{product}, {IF_CURVED if rows is None else IF_OTHERS}")


def count_stored_models(plan: Plan, name: str) -> int:
    """Return the models that a peer has on its disk while it replaces its checkpoint."""
    return 2 * (OWN_MODELS + len(find_edges(plan, name, None)))
