"""Variables that in a loop only one computation's executes see, so that they can lie in parts there."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from strategies.ir.functions import reachable_functions
from strategies.ir.graph import Node
from strategies.passes.tpu.compiled.computations import Computation
from strategies.passes.tpu.compiled.handles import Origin, origin_of_node
from strategies.passes.tpu.compiled.scopes import Scopes

Use: TypeAlias = tuple[str, int]
"""An execute that takes a handle, and the position at which it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopHandle:
    """A handle as it comes into a loop.

    Attributes:
        source: what brings it: an Enter, or an argument of the loop's body.
        uses: where executes take it; None where anything else does.
    """

    source: str
    origin: Origin
    uses: frozenset[Use] | None


@dataclass(frozen=True, kw_only=True)
class LoopHandles:
    """All by which variables can be reached in a loop; without slots, for what is derived is kept.

    Attributes:
        entering: by source.
        made: variables of which the loop itself makes handles.
    """

    entering: Mapping[str, LoopHandle]
    made: tuple[Origin, ...]

    def reshardable(self, found: Computation, sources: Mapping[int, Sequence[str | None]]) -> tuple[int, ...]:
        """Positions of the arguments that can lie in parts while the loop runs.

        Args:
            sources: position → source of the handle that each execute takes, None where it has none.
        """
        return tuple(
            position
            for position in found.candidates()
            if self._is_reshardable(found, position, sources[position])
        )

    def _is_reshardable(self, found: Computation, position: int, sources: Sequence[str | None]) -> bool:
        taken = [self.entering.get(source) for source in sources if source is not None]
        known = [handle for handle in taken if handle is not None]
        uses = frozenset((execute.name, position) for execute in found.executes)
        return len(known) == len(found.executes) and _one_or_each(known) and self._only(uses, known)

    def _only(self, uses: frozenset[Use], handles: Sequence[LoopHandle]) -> bool:
        """Whether the variables of these handles are used there alone, by whichever handle."""
        variables = {handle.origin for handle in handles}
        if any(one.names is None or self._is_made(one) for one in variables):
            return False
        return all(
            other.uses is not None and other.uses <= uses
            for one in variables
            for other in (*self._by_names.get(one.names, ()), *self._by_names.get(None, ()))
            if one.may_be(other.origin)
        )

    def _is_made(self, variable: Origin) -> bool:
        return any(variable.may_be(other) for other in self.made)

    @cached_property
    def _by_names(self) -> Mapping[tuple[str | bytes, ...] | None, Sequence[LoopHandle]]:
        """Names of a variable → handles that can be of one with these names."""
        handles: dict[tuple[str | bytes, ...] | None, list[LoopHandle]] = {}
        for handle in self.entering.values():
            handles.setdefault(handle.origin.names, []).append(handle)
        return handles


def _one_or_each(handles: Sequence[LoopHandle]) -> bool:
    """Whether replicas share one variable, or have one each."""
    n_replicas = len(handles)
    n_sources = len({handle.source for handle in handles})
    n_variables = len({handle.origin for handle in handles})
    return n_sources in (1, n_replicas) and n_variables in (1, n_replicas)


def handles_made(scopes: Scopes, nodes: Iterable[Node], programs: Iterable[Node]) -> tuple[Origin, ...]:
    """Variables of which nodes make handles, or functions that they call.

    Args:
        programs: compile nodes; their functions run on cores and are not called.
    """
    functions = {name: scope.function for name, scope in scopes.by_name.items() if scope.function is not None}
    compiled = {node.name for node in programs}
    own = tuple(nodes)
    called = reachable_functions((node for node in own if node.name not in compiled), functions)
    inside = (node for name in sorted(called) for node in functions[name].nodes)
    return tuple(origin_of_node(node) for node in (*own, *inside) if node.op == "VarHandleOp")
