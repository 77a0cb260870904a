"""What a rule has done with workers' gradients, and how good the trained model is."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregated:
    """Gradients of n workers combined by a rule for f faulty ones.

    `n_faulty`: workers that were given faults. `rule_s` is what one aggregation takes by itself, `mean_s` a
    plain mean of the same vectors; None where they were not timed. `n_steps` are all since the worker began,
    warm-up included, `chosen` and `not_finite` the steps of these in whose result each worker had a part, and
    in which what it sent was not finite.
    """

    rule: str
    n: int
    f: int
    n_faulty: int = 0
    rule_s: float | None = None
    mean_s: float | None = None
    n_steps: int | None = None
    chosen: tuple[int, ...] | None = None
    not_finite: tuple[int, ...] | None = None
    selects: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Metrics of the model after so many steps, as its workload tells them; None is no number."""

    step: int
    metrics: Mapping[str, float | None] = field(default_factory=dict)
