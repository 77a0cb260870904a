"""Verification of a strategy: its verdict, and all that belongs beside it."""

from dataclasses import dataclass

import numpy as np

from harness.errors import NON_FINITE_LOSS, CaseError
from harness.verification.capture_verdict import CaptureVerdict
from harness.verification.reference import Yardstick
from harness.verification.separability import Separability
from harness.verification.step_results import ComparedResult, Returned
from harness.verification.verdict import BoundVerdict, Verdict
from strategies.plan.schema import HELD_TO_THE_REFERENCE, StrategyClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A reference's outcome.

    Attributes:
        yardstick: its state and losses, to compare others with.
        results: what the last step returned beside its loss.
        separability: whether its shards mean what the step means on the whole batch; None where nobody asked.
    """

    yardstick: Yardstick
    results: tuple[Returned, ...]
    separability: Separability | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Point at which a strategy leaves the reference.

    Attributes:
        pass_name: the first pass after which it does. variable: the first of these, or a layer.
    """

    pass_name: str
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Results of running a strategy beside the reference.

    Attributes:
        verdict: beside the exact reference, whatever the strategy promises.
        losses, reference_losses: global, of each step.
        results: what the last step returned beside its loss.
        bound: of a strategy that promises to stay within one, else None.
        divergence: None where nothing diverges or nobody asked.
        capture: on the captured step itself, which reference and strategy share; None where nobody asked.
    """

    strategy_class: StrategyClass
    verdict: Verdict
    losses: tuple[float, ...]
    reference_losses: tuple[float, ...]
    separability: Separability | None
    results: tuple[ComparedResult, ...] = ()
    bound: BoundVerdict | None = None
    divergence: Divergence | None = None
    capture: CaptureVerdict | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_held_to_the_reference(self) -> bool:
        return self.strategy_class in HELD_TO_THE_REFERENCE

    @property
    def equivalent(self) -> bool | None:
        """The verdict of a strategy that is held to the reference; None for any other.

        A reference of a step that is not the user's proves nothing.
        """
        if not self.is_held_to_the_reference:
            return None
        return False if self.is_captured_wrong else self.verdict.equivalent

    @property
    def is_captured_wrong(self) -> bool:
        return self.capture is not None and self.capture.equal is False

    @property
    def reason(self) -> str | None:
        if self.capture is not None and self.is_captured_wrong:
            return self.capture.explanation
        if self.bound is not None:
            return self.bound.reason
        return self.verdict.reason if self.is_held_to_the_reference else None

    @property
    def undecidable(self) -> tuple[str, ...]:
        return self.verdict.undecidable if self.bound is None else self.bound.undecidable

    @property
    def passes(self) -> bool:
        if self.is_captured_wrong:
            return False
        if self.bound is not None:
            return self.bound.within is True
        return self.strategy_class == "statistical" or self.equivalent is True


def comparable(reference: Reference) -> Reference:
    """The reference, if it can prove anything.

    Raises:
        CaseError: `non-finite-loss`, when it has one.
    """
    for step, loss in enumerate(reference.yardstick.losses):
        if not np.isfinite(loss):
            raise CaseError(
                NON_FINITE_LOSS,
                f"step {step} (the first is 0): the loss must be finite, got {loss}; lower the learning rate "
                "or check the data",
                stage="verify",
            )
    return reference
