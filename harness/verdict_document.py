"""How `verify` tells a verdict in JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.equivalence import Verdict
from harness.errors import CaseError


def verdict_document(
    verdict: Verdict,
    losses: Sequence[float],
    reference_losses: Sequence[float],
    results: Sequence[Mapping[str, object]] = (),
) -> dict[str, Any]:
    """The part of `verify`'s JSON that comes of running.

    Args:
        results: what the last step returned beside its loss; see `harness.step_results`.
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
    return {
        "equivalent": verdict.equivalent,
        "max_update_error": verdict.max_update_error,
        "noise_floor": verdict.noise_floor,
        "tolerance": verdict.tolerance,
        "variables": [
            {"name": v.name, "kind": v.kind, "update_error": v.update_error} for v in verdict.variables
        ],
        "loss": list(losses),
        "reference_loss": list(reference_losses),
        "results": list(results),
    }
