"""Results of a whole step: which of them, its loss too, each shard has by itself, and how it is reduced."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strategies.ir.assembly.resources import Access
from strategies.ir.assembly.traced import TracedResult, TracedStep
from strategies.ir.graph import Graph, producer
from strategies.ir.resource_uses import resource_uses
from strategies.ir.train_graph import Result, ResultRule
from strategies.ir.traversal import ancestors, descendants

_FLOATING = frozenset({"half", "bfloat16", "float", "double"})
_INTEGER = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """Results that a shard has before anything is assigned, and names of those that come after.

    Attributes:
        loss: tensor reference of the shard's own loss.
    """

    loss: str
    own: tuple[TracedResult, ...]
    late: tuple[str, ...]


def sort_results(graph: Graph, traced: TracedStep, access: Mapping[str, Access]) -> Sorted:
    """Tell a step's results apart.

    One that needs a gradient from behind the boundary, or waits for an assignment that gradients do not wait
    for, is no shard's own: it is made once, of what all shards together have come to. So is the running mean
    that Keras's `train_step` returns as its loss; the loss is then what the gradients are of.
    """
    loads = {a.load.name for a in access.values()}
    boundary = {n for mark in traced.marks for n in (mark.values, mark.indices) if n is not None}
    changed = {w for uses in resource_uses(graph).values() for w in uses.writes if w not in loads}
    after = descendants(graph, boundary | (changed - ancestors(graph, boundary)))
    candidates = [traced.loss, *([] if traced.target is None else [traced.target])]
    return Sorted(
        loss=next((loss for loss in candidates if producer(loss) not in after), traced.loss),
        own=tuple(r for r in traced.results if r.node not in after),
        late=tuple(r.name for r in traced.results if r.node in after),
    )


def results_of(traced: Sequence[TracedResult], batch_dim: int) -> tuple[Result, ...]:
    """The results of a captured step.

    Args:
        batch_dim: length of the batch axis in the trace, -1 where it is free.
    """
    return tuple(Result(name=r.name, tensor=r.node, rule=_rule(r, batch_dim)) for r in traced)


def _rule(result: TracedResult, batch_dim: int) -> ResultRule:
    """A scalar is a mean over examples or a count; what has the batch axis is each example's own."""
    dims = result.shape.dims
    if dims == ():
        if result.dtype in _FLOATING:
            return "mean"
        return "sum" if result.dtype in _INTEGER else "per-replica"
    return "concatenate" if dims is not None and dims[0] == batch_dim else "per-replica"
