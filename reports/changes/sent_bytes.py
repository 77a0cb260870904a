"""Bytes of a step that are followed from run to run, and by how much they must grow to count as more."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.records.record import Record
from reports.quantities import byte_count, times


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBytes:
    """A layer at which sent bytes are counted.

    Attributes:
        metric: its name in a history. field: of a record.
        least_effect: change of the logarithm below which it does not matter.
        usual_noise: standard deviation of a night's logarithm, before many nights are known.
    """

    metric: str
    name: str
    field: str
    least_effect: float
    usual_noise: float

    def of(self, records: Sequence[Record]) -> list[float]:
        """Bytes of a step in each repeat that knows them."""
        return [value for record in records if (value := getattr(record, self.field)) is not None]


PAYLOAD = SentBytes(
    metric="payload_bytes",
    name="payload",
    field="payload_bytes_per_step",
    least_effect=0.01,
    usual_noise=0.003,
)
LAYERS = (
    PAYLOAD,
    SentBytes(
        metric="tcp_bytes", name="TCP", field="tcp_bytes_per_step", least_effect=0.05, usual_noise=0.01
    ),
)


def more_bytes(before: Sequence[Record], after: Sequence[Record]) -> Iterator[str]:
    """Layers at which each later repeat sends more than every earlier one, as `payload 2.00×`."""
    for layer in LAYERS:
        old, new = layer.of(before), layer.of(after)
        if old and new and min(new) > max(old) * math.exp(layer.least_effect):
            by = times(min(new) / max(old)) if max(old) else f"{byte_count(min(new))}, none before"
            yield f"{layer.name} {by}"
