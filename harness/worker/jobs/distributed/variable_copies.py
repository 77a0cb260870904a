"""A worker's copies of variables of TensorFlow's strategies: assigned, read, measured."""

from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf

from harness.worker.session.capture_store import InitialValues
from harness.worker.session.variable_memory import Holdings, held_eagerly
from harness.worker.variable_parts import Array, Copy, Held
from strategies.baselines.variables import copies
from strategies.ir.variable import Variable


class DistributedCopies:
    """One worker's copies of a captured step's variables.

    Attributes:
        captured: name → captured variable.
        variables: name → distributed variable; constants of the capture have none.
    Args:
        initial: values for `load`.
        ranks: ranks of this worker's replicas; [None] if all workers share one copy.
        task: number of this worker; None if variables are on servers.
    """

    def __init__(
        self,
        distribution: tf.distribute.Strategy,
        captured: Sequence[Variable],
        variables: Mapping[str, tf.Variable],
        initial: InitialValues,
        *,
        ranks: Sequence[int | None],
        task: int | None = None,
    ) -> None:
        self.captured = {v.name: v for v in captured}
        self.variables = dict(variables)
        self._distribution = distribution
        self._initial = initial
        self._ranks = list(ranks)
        self._task = task

    def load(self) -> None:
        for name in self.variables:
            for rank, copy in self.of(name):
                copy.assign(self.initial(name, rank))

    def of(self, name: str) -> list[tuple[int | None, tf.Variable]]:
        """Each replica's copy of a variable with its rank, or the one that all share."""
        own = copies(self._distribution, self.variables[name])
        return list(zip([None] if self.is_shared(name) else self._ranks, own, strict=True))

    def values(self, name: str) -> Mapping[Copy, Array]:
        """Values of a variable's copies, or the capture's value of a constant."""
        if name not in self.variables:
            return {(name, rank): self.initial(name, rank) for rank in self._ranks}
        return {(name, rank): copy.numpy() for rank, copy in self.of(name)}

    def read(self) -> Held:
        """Every copy of all captured variables."""
        values = (self.values(name) for name in self.captured)
        return {copy: [(None, value)] for own in values for copy, value in own.items()}

    def initial(self, name: str, rank: int | None) -> Array:
        v = self.captured[name]
        return self._initial.value(v.name, rank=rank, seed_word=v.seed_word)

    def is_shared(self, name: str) -> bool:
        """True if a variable has fewer copies than there are replicas."""
        return len(copies(self._distribution, self.variables[name])) < len(self._ranks)

    def held_bytes(self) -> Holdings:
        return held_eagerly(self._named(), self._task)

    def _named(self) -> Iterator[tuple[str, tf.Variable]]:
        for name in self.variables:
            for rank, copy in self.of(name):
                yield f"{name}/{rank}", copy
