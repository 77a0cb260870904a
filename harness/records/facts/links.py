"""Links of workers: what was asked for, and what TCP carried over them."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLink:
    """Limit of one worker's link, and what TCP carried over it before the case, in Mbit/s.

    `sent_mbit` went to the next worker, `received_mbit` came from the one before; each is as slow as the
    slower of the two links on its way.
    """

    requested_mbit: float | None = None
    burst_bytes: int | None = None
    sent_mbit: float | None = None
    received_mbit: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """Rate asked of the links between workers and the slowest that was measured, in Mbit/s.

    `workers`: each of them in worker order; None where no link is limited.
    """

    requested_mbit: float | None = None
    measured_mbit: float | None = None
    workers: tuple[MeasuredLink, ...] | None = None

    @property
    def asked(self) -> tuple[object, ...]:
        """What must be equal for two records to be of the same links."""
        limits = [(each.requested_mbit, each.burst_bytes) for each in self.workers or ()]
        return (self.requested_mbit, *limits)

    def wire_s(self, matrix: Sequence[Sequence[float | None]]) -> float | None:
        """Seconds that the bytes of a step take on the busiest link, whose two directions carry at once.

        Args:
            matrix: bytes from task i to task j.
        Returns:
            None where no link was measured.
        """
        spent_s: list[float] = []
        for worker, link in enumerate(self.workers or ()):
            if worker < len(matrix):
                sent_bytes = sum(value or 0.0 for value in matrix[worker])
                received_bytes = sum(line[worker] or 0.0 for line in matrix)
                for n_bytes, mbit in ((sent_bytes, link.sent_mbit), (received_bytes, link.received_mbit)):
                    spent_s += [] if mbit is None else [n_bytes * 8 / (mbit * 1e6)]
        return max(spent_s, default=None)
