"""Plausibility of a measurement: not faster than its arithmetic, payload or links allow."""

from collections.abc import Sequence

from harness.records.costs import Link
from strategies.plan.schema import DENSE_SYNCHRONIZERS, Plan

# Two units that each multiply and add 16 single-precision numbers: the maximum of a core in one cycle.
FLOPS_PER_CYCLE = 64
# A matrix unit that multiplies and adds 512 pairs of 16 bits in a cycle.
NARROW_FLOPS_PER_CYCLE = 1024
_SHORTFALL = 0.97
_SHARE_OF_WIRE = 0.9  # allowed deviation of a link


def implausible_speed(
    *,
    p50_s: float,
    batch_size: int,
    flops_per_example: float | None,
    n_workers: int,
    cores_per_worker: int,
    clock_hz: float,
    narrow: bool = False,
) -> str | None:
    """Reason why a step is too fast for its arithmetic, or None.

    Args:
        p50_s: median step time, in seconds.
        flops_per_example: operations of forward and backward pass; None checks nothing.
        clock_hz: highest clock of the workers' cores.
        narrow: True if it computes in 16 bits.
    """
    if flops_per_example is None:
        return None
    per_cycle = NARROW_FLOPS_PER_CYCLE if narrow else FLOPS_PER_CYCLE
    least_s = flops_per_example * batch_size / (n_workers * cores_per_worker * per_cycle * clock_hz)
    if p50_s >= least_s:
        return None
    return f"a step of {p50_s:.2e} s is faster than its arithmetic at the cores' peak, {least_s:.2e} s"


def implausible_bytes(plan: Plan, tcp_bytes_per_step: float | None) -> str | None:
    """Reason why a step sent too few bytes for its plan; None if it did not, or the plan only has a bound."""
    if tcp_bytes_per_step is None or payload_is_bound(plan):
        return None
    if tcp_bytes_per_step >= _SHORTFALL * plan.payload_bytes_per_step:
        return None
    return (
        f"{tcp_bytes_per_step:.0f} bytes moved in a step, less than the payload of "
        f"{plan.payload_bytes_per_step} that the plan must send"
    )


def implausible_rate(
    link: Link, tcp_matrix: Sequence[Sequence[float | None]] | None, *, mean_s: float | None
) -> str | None:
    """Reason why a step sent more bytes than the busiest link can carry, or None.

    Args:
        tcp_matrix: bytes per step from task i to task j; None checks nothing.
        mean_s: mean step time in seconds, because steps may send different amounts.
    """
    least_s = None if tcp_matrix is None else link.wire_s(_traffic(tcp_matrix))
    if least_s is None or mean_s is None or mean_s >= least_s * _SHARE_OF_WIRE:
        return None
    return (
        f"a step of {mean_s:.2e} s is faster than its bytes at the measured rate of the busiest link, "
        f"{least_s:.2e} s"
    )


def _traffic(matrix: Sequence[Sequence[float | None]]) -> list[tuple[float, float]]:
    """Bytes that each task sends and receives."""
    sent = [sum(n_bytes or 0.0 for n_bytes in row) for row in matrix]
    received = [sum(n_bytes or 0.0 for n_bytes in column) for column in zip(*matrix, strict=True)]
    return list(zip(sent, received, strict=True))


def payload_is_bound(plan: Plan) -> bool:
    """True if the predicted payload is an upper limit.

    Only the step shows the number of rows, and how often a backup worker is left out.
    """
    if plan.execution.backup:
        return True
    return any(node.sparse and node.synchronizer not in DENSE_SYNCHRONIZERS for node in plan.nodes)
