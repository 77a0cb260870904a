"""Buckets of gradients that are encoded alike."""

from collections.abc import Iterator, Mapping, Sequence

from strategies.ir.train_graph import Boundary
from strategies.passes.collectives.buckets import Collective, collectives, static_dims
from strategies.plan.compressors import payload_bytes
from strategies.plan.schema import Compression


def encoded_buckets(
    gradients: Sequence[Boundary],
    compressions: Mapping[str, Compression],
    buckets: Sequence[Sequence[str]],
) -> Iterator[tuple[str, Collective, Compression]]:
    """What travels together, under a name of its own: small payloads, however large their gradients are.

    Args:
        compressions: variable → compressor of its gradient.
        buckets: names of the variables of each bucket.
    """
    for compression in dict.fromkeys(compressions[b.variable] for b in gradients):
        alike = [b for b in gradients if compressions[b.variable] == compression]

        def n_bytes(b: Boundary, compression: Compression = compression) -> int:
            return payload_bytes(static_dims(b), b.dtype, compression)

        for bucket, collective in collectives(alike, buckets, n_bytes).items():
            yield f"{bucket}/{_label(compression)}", collective, compression


def _label(compression: Compression) -> str:
    """The compressor and its options: one bucket may have two that differ in these alone."""
    return "-".join(str(value) for _, value in compression if value is not None)
