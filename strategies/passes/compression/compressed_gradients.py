"""Compressed gradients: which there are, and what passes add to a step for them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from strategies.errors import StrategyError
from strategies.ir.graph import Node
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.ir.variable import Variable
from strategies.passes.replicate.kept_state import KeptState
from strategies.passes.replicate.rewire import contribute
from strategies.plan.compressors import FLOATING
from strategies.plan.schema import Compression
from strategies.tf_bridge.snippet import TensorSpec


@dataclass(slots=True, kw_only=True)
class Additions:
    """What a pass adds to a step."""

    nodes: list[Node] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)

    def add(self, nodes: Iterable[Node], kept: Sequence[KeptState], after: Sequence[str]) -> None:
        """Arithmetic between states and their next values."""
        keeping = [state.keep(value) for state, value in zip(kept, after, strict=True)]
        self.nodes += [node for state in kept for node in state.nodes]
        self.nodes += [*nodes, *keeping]
        self.variables += [state.variable for state in kept]
        self.targets += [node.name for node in keeping]

    def extend(self, other: "Additions") -> None:
        """All of another one."""
        self.nodes += other.nodes
        self.variables += other.variables
        self.targets += other.targets

    def into(self, step: TrainGraph, combined: Mapping[str, Contribution], **changes: object) -> TrainGraph:
        """The step with all this, and boundaries into which these contributions flow.

        Args:
            changes: further fields of the step to replace.
        """
        return contribute(
            step,
            combined,
            self.nodes,
            variables=(*step.variables, *self.variables),
            state_targets=(*step.state_targets, *self.targets),
            **changes,
        )


def compressed_boundaries(step: TrainGraph, compressions: Mapping[str, Compression]) -> list[Boundary]:
    """The gradients that have a compressor.

    Raises:
        StrategyError: one of them cannot be compressed, or the step has several updates in a row.
    """
    if compressions and step.n_levels > 1:
        raise StrategyError(
            "compressor: its bound is that of one gradient and update in a step, got "
            f"{step.n_levels} in a row; leave it out"
        )
    chosen = [b for b in step.gradients() if b.variable in compressions]
    for b in chosen:
        if b.indices is not None or b.dtype not in FLOATING:
            kind = b.dtype if b.indices is None else "rows of a sparse gradient"
            raise StrategyError(
                f"variable {b.variable!r}: a compressor takes dense floating gradients, got {kind}; "
                "set compressor to null in the variable's node of the plan"
            )
    return chosen


def gradient_spec(b: Boundary) -> TensorSpec:
    """Type and shape of a gradient."""
    return TensorSpec(dtype=b.dtype, shape=b.shape)


def state_specs(kept: Sequence[KeptState]) -> list[TensorSpec]:
    """Types and shapes of what a compressor remembers."""
    return [TensorSpec(dtype=k.variable.dtype, shape=k.variable.shape) for k in kept]
