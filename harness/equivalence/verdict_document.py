"""How `verify` tells a verdict in JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.equivalence.verdict import Limits, Verdict
from harness.errors import CaseError


def verdict_document(
    verdict: Verdict,
    losses: Sequence[float],
    reference_losses: Sequence[float],
    results: Sequence[Mapping[str, object]] = (),
) -> dict[str, Any]:
    """The part of `verify`'s JSON that comes of running.

    Args:
        results: what the last step returned beside its loss; see `harness.equivalence.step_results`.
    Raises:
        CaseError: `non-finite-loss`, when the reference itself has one: it can prove nothing.
    """
    for step, loss in enumerate(reference_losses):
        if not np.isfinite(loss):
            raise CaseError(
                "non-finite-loss",
                f"step {step} (the first is 0): the loss must be finite, got {loss}; lower the learning rate "
                "or check the data",
                stage="verify",
            )
    nearest = verdict.nearest
    return {
        "equivalent": verdict.equivalent,
        "reason": verdict.reason,
        **_against(None if nearest is None else (nearest.update_error, nearest.limits), "max_update_error"),
        "variables": [
            {"name": v.name, "kind": v.kind, **_against((v.update_error, v.limits), "update_error")}
            for v in verdict.variables
        ],
        "undecidable": list(verdict.undecidable),
        "loss_check": None
        if verdict.loss is None
        else _against((verdict.loss.error, verdict.loss.limits), "error"),
        "loss": list(losses),
        "reference_loss": list(reference_losses),
        "results": list(results),
    }


def _against(measured: tuple[float, Limits] | None, called: str) -> dict[str, float | None]:
    """An error beside what rounding explains of it."""
    if measured is None:
        return {called: None, "noise_floor": None, "tolerance": None}
    error, limits = measured
    return {called: error, "noise_floor": limits.floor, "tolerance": limits.tolerance}
