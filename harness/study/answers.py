"""Answers of `verify` and `plan`: a plan, and what was found or computed of it."""

from dataclasses import dataclass

from harness.equivalence.verification import Verification
from harness.requests import Dtype
from harness.run.checkpoints import Restored
from strategies.plan.schema import Plan
from strategies.slices.slice_cost import SliceCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A plan beside the reference.

    Attributes:
        restored: the checkpoint that both began with, None for the workload's own values.
        last_batch: examples in the last step's batch, None for as many as in the others.
    """

    plan: Plan
    steps: int
    dtype: Dtype
    restored: Restored | None
    last_batch: int | None
    verification: Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan.

    Attributes:
        slice_cost: of its collectives, None where no TPU slice was asked about.
    """

    plan: Plan
    slice_cost: SliceCost | None = None
