"""Computations of a loop that can be resharded, and the arguments that then lie in parts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from strategies.errors import GraphError
from strategies.ir.graph import Node
from strategies.passes.tpu.compiled.compile_metadata import Sharding
from strategies.passes.tpu.compiled.computations import Computation, computation
from strategies.passes.tpu.compiled.scopes import Scope
from strategies.passes.tpu.reshard.reshardable import LoopHandles


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A computation, and the positions of its arguments that lie in parts."""

    found: Computation
    positions: tuple[int, ...]

    def handles(self, execute: Node) -> tuple[str, ...]:
        """What an execute takes there."""
        taken = execute.data_inputs
        return tuple(taken[position] for position in self.positions)

    def waits(self, scope: Scope, execute: Node, before: Node) -> tuple[str, ...]:
        """What resharding for an execute waits for: all that the execute does, which may write variables."""
        resharded = frozenset(self.positions)
        others = (ref for i, ref in enumerate(execute.data_inputs[:-1]) if i not in resharded)
        needed = [node.name for ref in others if (node := scope.of_data(ref)) is not None]
        return tuple(dict.fromkeys((before.name, *needed, *execute.control_inputs)))

    def compile_node(self) -> Node:
        """The compile node, which now knows of it."""
        node = self.found.compile
        return node.changed(attrs={**node.attrs, "metadata": self.found.metadata.allowing(self.positions)})


def all_chosen(
    scope: Scope,
    compiles: Iterable[Node],
    handles: LoopHandles,
    check: Callable[[Computation], None],
    source: Callable[[str], str | None],
    left: dict[str, str],
) -> list[Chosen]:
    """The computations of a loop that can be resharded; the others get a reason.

    Args:
        check: of a computation, whether the loop makes it in every iteration.
        source: of what an execute takes, where it comes into the loop.
    """
    chosen: list[Chosen] = []
    for node in compiles:
        try:
            found = computation(scope, node)
            check(found)
            taken = [execute.data_inputs for execute in found.executes]
            sources = {
                position: [source(refs[position]) for refs in taken] for position in found.candidates()
            }
            chosen.append(_chosen(found, handles.reshardable(found, sources)))
        except GraphError as error:
            left[node.name] = str(error)
    return chosen


def _chosen(found: Computation, positions: tuple[int, ...]) -> Chosen:
    for position in found.candidates():
        if position not in positions and found.metadata.arguments[position].sharding is Sharding.ALLOWED:
            # The compiler may have it in parts, and with nothing resharded for it, it would come whole.
            raise GraphError(
                "in its loop executes alone must use each variable that may be sharded already, got another "
                f"use of argument {position}"
            )
    if not positions:
        raise GraphError(
            "needs a variable that may be sharded and that in its loop its executes alone use, got none"
        )
    return Chosen(found=found, positions=positions)
