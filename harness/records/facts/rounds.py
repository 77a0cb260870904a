"""Windows of a repeat, which cases took in turn."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """Windows of a repeat, which the cases of a block took in turn.

    `block` is equal for the records whose windows of one number belong to one round. `n_steps` are counted in
    each window, after `n_lead` that are not; `n_made` are all steps after the warm-up. `step_s` holds the
    median step of each window, `baseline_step_s` those of the baseline's case, `baseline`, in the same
    rounds, as far as it took part; its own record may tell of other ones. `first_worker` is the one of the
    site's workers that the case's first ran on, `baseline_first_worker` the same of the baseline's.
    """

    block: str
    n_steps: int
    n_lead: int
    n_made: int
    step_s: tuple[float, ...]
    first_worker: int = 0
    baseline: str | None = None
    baseline_step_s: tuple[float, ...] | None = None
    baseline_first_worker: int | None = None
