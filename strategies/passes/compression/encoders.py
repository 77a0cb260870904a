"""Encoders of gradients, their state between steps, and the nodes that encode."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from strategies.errors import StrategyError
from strategies.ir.graph import Node
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.ir.variable import Part, Variable
from strategies.numerics.compressors import Codec, StateSpec, codec_of
from strategies.passes.collectives.buckets import static_dims
from strategies.passes.replicate.rewire import captured_name, contribute
from strategies.passes.replicate.state_variables import StateVariable
from strategies.plan.compressors import FLOATING
from strategies.plan.schema import Compression
from strategies.tf_bridge.snippet import Snippet, TensorSpec, trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """State of the compressor at a captured boundary, and its owners.

    Attributes:
        name: prefix of the state variables' names.
        owners: ranks of the replicas with this state. shared: True if it is initially the same on all owners
            and must stay so.
        part: range of the whole variable that the gradient covers, as the part of a state of the whole; None
            for a whole gradient.
    """

    name: str
    owners: tuple[int, ...]
    shared: bool
    part: Part | None

    def states(self, b: Boundary, codec: Codec, rank: int, device: str) -> list[StateVariable]:
        """States of one replica."""
        working = "double" if b.dtype == "double" else "float"
        path = f"compressor/{captured_name(b)}"
        return [
            StateVariable.of(
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
        if self.part is None or not spec.is_residual:
            return None
        return replace(self.part, variable=f"{self.part.variable}/{spec.name}")


@dataclass(slots=True, kw_only=True)
class Encoders:
    """Encoders of the gradients of a step, and the nodes and states that a pass adds for them.

    Attributes:
        gradients: boundaries with a compressor, of all members.
        n_terms: number of encodings that are added up before decoding.
        memories: captured boundary → state of its compressor.
    """

    gradients: Sequence[Boundary]
    compressions: Mapping[str, Compression]
    n_terms: int
    memories: Mapping[str, Memory]
    nodes: list[Node] = field(default_factory=list)
    _states: list[StateVariable] = field(default_factory=list)
    _targets: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        step: TrainGraph,
        compressions: Mapping[str, Compression],
        ranks: tuple[int, ...],
        *,
        shared: bool,
        n_terms: int | None = None,
    ) -> "Encoders":
        """Make encoders of the gradients at the boundaries of these replicas, or at shared boundaries.

        Args:
            compressions: variable → compressor of its gradient.
            shared: True if states are initially the same on all owners and must stay so.
            n_terms: number of encodings that are added up before decoding; None for the number of ranks.
        Raises:
            StrategyError: a gradient cannot be compressed, or the step has several successive updates.
        """
        chosen = [b for b in _compressed(step, compressions) if b.rank is None or b.rank in ranks]
        return cls(
            gradients=chosen,
            compressions=compressions,
            n_terms=len(ranks) if n_terms is None else n_terms,
            memories=_memories(step, chosen, ranks, shared=shared),
        )

    def codec(self, b: Boundary) -> Codec:
        return codec_of(self.compressions[b.variable], n_terms=self.n_terms)

    def states(self, b: Boundary, device: str) -> list[StateVariable]:
        """State that a boundary's compressor keeps on its replica."""
        rank = b.contributions[0].rank
        return self.memories[captured_name(b)].states(b, self.codec(b), rank, device)

    def splice(self, snippet: Snippet, prefix: str, inputs: Sequence[str], device: str) -> tuple[str, ...]:
        """Add a snippet's nodes to the step, and return its results."""
        nodes, results = snippet.splice(prefix, inputs, device=device)
        self.nodes += nodes
        return results

    def encode(
        self,
        fn: Callable[..., object],
        gradients: Sequence[Boundary],
        prefix: str,
        device: str,
        **options: object,
    ) -> tuple[str, ...]:
        """Add nodes that encode gradients of one replica and store the next states.

        Args:
            fn: function of the gradients and of the states of each; returns results, then the next states.
            options: keyword arguments of `fn`.
        Returns:
            Results of `fn`, without the states.
        """
        states = [state for b in gradients for state in self.states(b, device)]
        snippet = trace(fn, (*map(gradient_spec, gradients), *state_specs(states)), **options)
        inputs = [*(b.contributions[0].values for b in gradients), *(state.value for state in states)]
        nodes, results = snippet.splice(prefix, inputs, device=device)
        n_results = len(results) - len(states)
        self.keep(nodes, states, results[n_results:])
        return results[:n_results]

    def keep(self, nodes: Iterable[Node], states: Sequence[StateVariable], values: Sequence[str]) -> None:
        """Add nodes, and states with their values for the next step."""
        keeping = [state.keep(value) for state, value in zip(states, values, strict=True)]
        self.nodes += [node for state in states for node in state.nodes]
        self.nodes += [*nodes, *keeping]
        self._states += states
        self._targets += [node.name for node in keeping]

    def into(self, step: TrainGraph, combined: Mapping[str, Contribution]) -> TrainGraph:
        """Return the step with everything added, and with these contributions at its boundaries."""
        variables: tuple[Variable, ...] = tuple(state.variable for state in self._states)
        return contribute(
            step,
            combined,
            self.nodes,
            variables=(*step.variables, *variables),
            state_targets=(*step.state_targets, *self._targets),
        )


def gradient_spec(b: Boundary) -> TensorSpec:
    """Type and shape of a gradient."""
    return TensorSpec(dtype=b.dtype, shape=b.shape)


def state_specs(states: Sequence[StateVariable]) -> list[TensorSpec]:
    """Types and shapes of states."""
    return [TensorSpec(dtype=state.variable.dtype, shape=state.variable.shape) for state in states]


def _compressed(step: TrainGraph, compressions: Mapping[str, Compression]) -> list[Boundary]:
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


def _memories(
    step: TrainGraph, chosen: Sequence[Boundary], owners: tuple[int, ...], *, shared: bool
) -> dict[str, Memory]:
    """Captured boundary → its memory, named after the variable and numbered from the second one on."""
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
