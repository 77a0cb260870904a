"""What a plan does with a variable, in words: where it lies, how its gradient is synchronized, and why.

What is said is what the fields of `strategies.plan.schema.PlanNode` mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from reports.repeat_files.stored_plan import StoredCompression, StoredNode, StoredPartition, StoredPlan

_GATHERED = {"robust-gather": "by a rule on every worker", "robust-servers": "by a rule on servers"}
_SUMS = {
    "all-reduce": "all-reduce",
    "hierarchical-all-reduce": "all-reduce within workers, then between them",
    "average": "average of copies",
    "cross-replica-sum": "sum between cores",
}
_TRANSPORTS = {"tcp": "the workers' own ring", "ring": "TensorFlow's ring", "nccl": "NCCL"}


def where_it_lies(node: StoredNode, plan: StoredPlan) -> str:
    """Tasks, servers or replicas that have a variable, and the parts that it is in."""
    if sum(plan.replicas_per_task) == 1:
        return "the only replica"
    if node.partition is not None:
        return _where_parts_lie(node, node.partition)
    if node.destination is not None:
        return f"server {node.destination}{_proxy(node)}"
    if node.owner is not None:
        is_alone = node.gathered or node.synchronizer == "none"
        return f"replica {node.owner} alone" if is_alone else f"all replicas, updated by replica {node.owner}"
    return "all replicas, in equal parts during host loops" if node.in_parts else "all replicas"


def _where_parts_lie(node: StoredNode, partition: StoredPartition) -> str:
    parts = f"{len(partition.sizes)} parts along axis {partition.axis}"
    if partition.destinations is not None:
        return f"{parts}, on {_listed('server', partition.destinations)}{_proxy(node)}"
    if partition.owners is not None:
        kept = "kept" if node.gathered or node.synchronizer == "none" else "updated"
        return f"{parts}, {kept} by {_listed('replica', partition.owners)}"
    return f"{parts}, on all replicas"


def how_synchronized(node: StoredNode, plan: StoredPlan) -> str:
    """What becomes of a variable's gradient, or of its new value, between replicas."""
    if node.synchronizer == "none":
        return "not at all"
    if node.synchronizer == "ps":
        what = "rows pushed" if node.sparse else "pushed"
        order = "" if plan.strategy_params.get("sync", True) else ", each as it comes"
        text = f"{what} to {'their servers' if node.partition else 'the server'}{order}"
    elif node.synchronizer in _GATHERED:
        text = f"combined {_GATHERED[node.synchronizer]}"
    elif _owners(node):
        text = "summed for every replica" if node.whole_gradient else "summed for its owner"
    elif _gathers_rows(node):
        text = "rows gathered by all"
    else:
        text = _SUMS.get(node.synchronizer, node.synchronizer)
    transport = f" over {_TRANSPORTS[node.transport]}" if node.transport in _TRANSPORTS else ""
    return text + transport + _compressed(node.compressor)


def why(node: StoredNode, plan: StoredPlan) -> str:
    """Why that is so, in one sentence."""
    if sum(plan.replicas_per_task) == 1:
        return "There is one replica, so that nothing has to be synchronized."
    reasons = [_reason(node, plan)]
    if node.proxy:
        reasons.append("a worker's replicas read it from one copy on their host")
    if node.gathered:
        reasons.append("in each step the others get its value before they read it")
    if node.whole_gradient:
        reasons.append("other updates read its gradient, which all must have")
    if node.compressor is not None:
        reasons.append("its gradient travels in a smaller form")
    if node.in_parts:
        reasons.append("while a loop of the host runs, each replica keeps an equal part")
    sentence = "; ".join(reasons)
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _reason(node: StoredNode, plan: StoredPlan) -> str:
    if node.synchronizer == "none":
        return _reason_of_silence(node)
    if node.synchronizer == "ps":
        held = "its parts lie on servers" if node.partition else "it lies on a server"
        rows = ", of which only the rows that a step touches travel" if node.sparse else ""
        return f"{held}, which takes gradients and gives its value{rows}"
    if node.synchronizer in _GATHERED:
        rule = plan.strategy_params.get("rule")
        named = "" if rule is None else f" {rule!s:.200}"
        return f"the rule{named} has to see every worker's gradient by itself"
    if node.synchronizer == "average":
        period = plan.strategy_params.get("period")
        times = "from time to time" if period is None else f"every {period!s:.200} steps"
        return f"each replica updates a copy of its own, and copies are averaged {times}"
    return _reason_of_sum(node)


def _reason_of_silence(node: StoredNode) -> str:
    if _served(node):
        return "no gradient of its own crosses workers, and it lies with what servers update"
    if _owners(node):
        return "it belongs to what its owner alone updates, and the others have none of it"
    return "nothing of it crosses replicas: each has its own"


def _reason_of_sum(node: StoredNode) -> str:
    if node.synchronizer == "cross-replica-sum":
        return "all cores run one computation, which sums between them"
    if _owners(node):
        one = "one replica updates each part" if node.partition else "one replica updates it"
        return f"{one} for all" if node.gathered else f"{one} for all, and sends its new value"
    if node.synchronizer == "hierarchical-all-reduce":
        return "one replica of each worker speaks for all of its worker"
    if _gathers_rows(node):
        return "its gradient comes as rows, which all gather, instead of a sum of all of it"
    return "every replica updates its own copy with the sum, which travels in buckets"


def _served(node: StoredNode) -> bool:
    in_parts = node.partition is not None and node.partition.destinations is not None
    return node.destination is not None or in_parts


def _owners(node: StoredNode) -> bool:
    in_parts = node.partition is not None and node.partition.owners is not None
    return node.owner is not None or in_parts


def _gathers_rows(node: StoredNode) -> bool:
    """Whether rows travel as such: gathered by collectives, or taken by the workers' own ring."""
    in_no_bucket = node.group is None and node.partition is None
    is_sum = node.synchronizer in ("all-reduce", "hierarchical-all-reduce")
    return node.sparse and is_sum and not _owners(node) and (in_no_bucket or node.transport == "tcp")


def _proxy(node: StoredNode) -> str:
    return ", and a copy on each worker's host" if node.proxy else ""


def _compressed(compressor: StoredCompression | None) -> str:
    if compressor is None:
        return ""
    options = [
        f"{name} {value:g}" for name in ("ratio", "rank", "levels") if (value := getattr(compressor, name))
    ]
    return f", compressed: {', '.join([compressor.name, *options])}"


def _listed(what: str, numbers: Sequence[int]) -> str:
    distinct = sorted(set(numbers))
    if len(distinct) == 1:
        return f"{what} {distinct[0]}"
    if len(distinct) > 2 and distinct == list(range(distinct[0], distinct[-1] + 1)):
        return f"{what}s {distinct[0]} to {distinct[-1]}"
    shown = ", ".join(map(str, distinct[:8]))
    return f"{what}s {shown}{' and others' if len(distinct) > 8 else ''}"
