"""Compressed gradients: which there are, and what passes add to a step for them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from strategies.errors import StrategyError
from strategies.ir.graph import Node
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.ir.variable import Part, Variable
from strategies.numerics.compressors import Codec, StateSpec
from strategies.passes.collectives.buckets import static_dims
from strategies.passes.replicate.kept_state import KeptState
from strategies.passes.replicate.rewire import captured_name, contribute
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the compressor of a captured boundary remembers, and who has it.

    Attributes:
        name: of its states, before their own.
        owners: ranks that have them. shared: they begin alike on all owners and must stay so.
        part: the range of the whole variable that the gradient is; its variable is what the whole's would be
            called.
    """

    name: str
    owners: tuple[int, ...]
    shared: bool
    part: Part | None

    def states(self, b: Boundary, codec: Codec, rank: int, device: str) -> list[KeptState]:
        """One replica's."""
        working = "double" if b.dtype == "double" else "float"
        path = f"compressor/{captured_name(b)}"
        return [
            KeptState.of(
                spec,
                f"{self.name}/{spec.name}",
                of=b.variable,
                path=f"{path}/{spec.name}",
                rank=rank,
                device=device,
                owners=self.owners,
                shared=self.shared,
                part=self._part_of(spec),
            )
            for spec in codec.states(static_dims(b), working)
        ]

    def _part_of(self, spec: StateSpec) -> Part | None:
        """What is owed for a part of a variable is a part of what is owed for all of it."""
        if self.part is None or not spec.owed:
            return None
        return replace(self.part, variable=f"{self.part.variable}/{spec.name}")


def memories_of(
    step: TrainGraph, chosen: Sequence[Boundary], *, owners: tuple[int, ...], shared: bool
) -> dict[str, Memory]:
    """Captured boundary → its memory, called after the variable and numbered from the second on.

    Args:
        chosen: boundaries whose gradients have a compressor.
    """
    parts = {v.name: v.part for v in step.variables if v.part is not None}
    memories: dict[str, Memory] = {}
    n_of: dict[str, int] = {}
    for b in chosen:
        if captured_name(b) in memories:
            continue
        n = n_of[b.variable] = n_of.get(b.variable, -1) + 1
        number = f"__{n}" if n else ""
        part = parts.get(b.variable)
        memories[captured_name(b)] = Memory(
            name=f"compressor/{b.variable}{number}",
            owners=owners,
            shared=shared,
            part=part and replace(part, variable=f"compressor/{part.variable}{number}"),
        )
    return memories
