"""Rules for nodes that a person wrote, in a builder or an edited plan, to be run on a step.

One sweep over the nodes; the first thing wrong is one line with the variable, the rule, what was received and
the way out.
"""

from collections.abc import Sequence

from strategies.builders import tpu
from strategies.errors import StrategyError, suggestion
from strategies.plan import compressors
from strategies.plan.ownership import is_owned, ownership_mistake
from strategies.plan.schema import BY_RULE, Compression, PlanNode, StepSummary
from strategies.planning.node_in_plan import NodeInPlan
from strategies.planning.placement_rules import check_placement
from strategies.topology import Topology

_TOGETHER = (
    {"all-reduce", "average"},
    {"ps", "all-reduce"},
    {"ps", "hierarchical-all-reduce"},
    {"robust-gather", "hierarchical-all-reduce"},
    {"robust-servers", "hierarchical-all-reduce"},
)


def check_nodes(nodes: Sequence[PlanNode], step: StepSummary, topology: Topology, *, where: str) -> None:
    """Check that nodes are a plan of a step on a topology.

    Args:
        where: begins the error line.
    Raises:
        StrategyError: for the first that is wrong.
    """
    by_name: dict[str, PlanNode] = {}
    known = [v.name for v in step.variables]
    for node in nodes:
        if node.variable not in known:
            raise StrategyError(
                f"{where}: variable {node.variable!r}: must be one of the step's, got none of that name; "
                f"{suggestion(node.variable, known)}"
            )
        if node.variable in by_name:
            raise StrategyError(f"{where}: variable {node.variable!r}: needs one node, got two; drop one")
        by_name[node.variable] = node
    missing = [v.name for v in step.variables if v.name not in by_name]
    if missing:
        raise StrategyError(
            f"{where}: variable {missing[0]!r}: needs a node, got none; add one, every variable has its own"
        )
    synchronizers = {by_name[v.name].synchronizer for v in step.variables if v.synced}
    for v in step.variables:
        _check(
            NodeInPlan(
                where=where,
                v=v,
                node=by_name[v.name],
                owner=None if v.slot_of is None else by_name.get(v.slot_of),
                synchronizers=frozenset(synchronizers),
                topology=topology,
                names=frozenset(known),
            )
        )


def _check(checked: NodeInPlan) -> None:
    """Check all rules, what others build on first."""
    _facts(checked)
    _synchronizer(checked)
    check_placement(checked)
    _proxy(checked)
    _transport(checked)
    _on_cores(checked)
    wrong = ownership_mistake(checked.v, checked.node, checked.owner, checked.topology.n_replicas)
    if wrong is not None:
        checked.fail(*wrong)
    if is_owned(checked.node) and "ps" in checked.synchronizers:
        checked.fail("an owner needs a plan without servers", "one with", "set owner to null")
    if checked.node.compressor is not None:
        _compressor(checked, checked.node.compressor)


def _facts(checked: NodeInPlan) -> None:
    for fact in ("shape", "dtype", "bytes", "sparse"):
        captured, got = getattr(checked.v, fact), getattr(checked.node, fact)
        if captured != got:
            checked.fail(
                f"{fact} must be the captured one, {captured}",
                got,
                "take it from a plan of this workload",
            )


def _synchronizer(checked: NodeInPlan) -> None:
    got = checked.node.synchronizer
    if not checked.v.synced:
        if got != "none":
            checked.fail(
                "nothing of it crosses replicas, so synchronizer must be none", got, "set it to none"
            )
    elif len(checked.synchronizers) > 1 and checked.synchronizers not in _TOGETHER:
        checked.fail(
            "synchronizers must be one, or all-reduce and average, or an all-reduce beside ps or a rule",
            ", ".join(sorted(checked.synchronizers)),
            "choose among those",
        )
    elif got == "average" and checked.v.rule == "sum":
        checked.fail("what replicas add up has no average", "synchronizer average", "make it all-reduce")


def _proxy(checked: NodeInPlan) -> None:
    if checked.node.proxy and (checked.node.synchronizer != "ps" or checked.v.sparse):
        what = "a sparse gradient" if checked.v.sparse else f"synchronizer {checked.node.synchronizer}"
        checked.fail("a proxy copies a dense variable from its server", what, "set proxy to false")


def _transport(checked: NodeInPlan) -> None:
    transport = checked.node.transport
    if transport is None:
        return
    if not checked.reduced or checked.node.synchronizer in ("average", *BY_RULE):
        checked.fail("transport is for gradients of collectives", transport, "set it to null")
    if checked.v.sparse and not is_owned(checked.node) and transport != "tcp":
        checked.fail("transport of rows is tcp, or null for TensorFlow's", transport, "use one of these")
    if transport == "tcp" and checked.n_tasks < 2:
        checked.fail("transport tcp needs two workers", "one", "use auto")
    if transport == "nccl" and checked.topology.nccl_mistake is not None:
        need, received = checked.topology.nccl_mistake
        checked.fail(f"transport nccl needs {need}", received, "use auto")
    if transport == "nccl" and is_owned(checked.node):
        checked.fail("transport nccl takes sums that all begin in one order", "an owner", "use auto")
    if transport == "tcp" and "ps" in checked.synchronizers:
        # On one core that is the only one, and another worker's step may need it to read here.
        checked.fail("transport tcp waits on a thread that servers need", "ps beside it", "use auto")
    compressor = checked.node.compressor
    if transport == "tcp" and compressor is not None and not compressors.on_own_transport(compressor.name):
        checked.fail(
            "transport tcp does not add up half precision",
            f"compressor {compressor.name}",
            "use auto",
        )


def _on_cores(checked: NodeInPlan) -> None:
    """Rules of cores, which run one program: what it takes is the same for all variables and replicas."""
    v, node = checked.v, checked.node
    on_cores = "cross-replica-sum" in checked.synchronizers
    if node.in_parts:
        if not on_cores:
            checked.fail("only what cores keep lies in parts", "in_parts true", "set it to false")
        if not tpu.has_parts(v, checked.topology.n_replicas):
            checked.fail(
                "in parts lies what replicas have alike, of a type that is gathered, a value for each",
                f"{v.dtype}{list(v.shape)}",
                "set in_parts to false",
            )
    if not on_cores:
        return
    if node.partition is not None:
        checked.fail("on cores parts are equal and come by in_parts", "a partition", "set it to null")


def _compressor(checked: NodeInPlan, compression: Compression) -> None:
    v, way_out = checked.v, "set compressor to null"
    stays = checked.node.synchronizer in ("none", "average", "cross-replica-sum", *BY_RULE)
    if v.kind != "trainable" or stays:
        what = f"synchronizer {checked.node.synchronizer}" if stays else v.rule or v.kind
        checked.fail("a compressor is for a gradient that crosses replicas", what, way_out)
    if v.sparse or v.dtype not in compressors.FLOATING or -1 in v.shape:
        what = "rows of a sparse gradient" if v.sparse else f"{v.dtype} of shape {v.shape}"
        checked.fail("a compressor takes dense floating gradients", what, way_out)
    try:
        compressors.check(compression)
    except StrategyError as error:
        raise StrategyError(f"{checked.where}: variable {v.name!r}: {error}") from None
    if compressors.BY_NAME[compression.name].matrices and len(v.shape) < 2:
        checked.fail(f"{compression.name} takes two axes or more", f"shape {v.shape}", way_out)
