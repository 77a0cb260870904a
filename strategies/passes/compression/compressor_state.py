"""State of compressors between steps: its names, its owners, and the parts of what is owed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from strategies.ir.train_graph import Boundary, TrainGraph
from strategies.ir.variable import Part
from strategies.numerics.compressors.codec import Codec, StateSpec
from strategies.passes.collectives.buckets import static_dims
from strategies.passes.replicate.kept_state import KeptState
from strategies.passes.replicate.rewire import captured_name


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
