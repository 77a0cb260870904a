"""Faults of workers: the table of kinds, and one fault of an experiment; no TensorFlow."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal

from strategies.errors import StrategyError, suggestion
from strategies.params import Param, filled

Place = Literal["gradient", "others", "batch", "process"]
"""Place of a fault: a worker's gradients, also in view of the others', its labels, or its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """An entry of the table.

    Attributes:
        params: parameters with defaults; a default of None depends on the run.
        required: names of the parameters that must be set.
    """

    name: str
    summary: str
    place: Place
    params: tuple[Param, ...]
    required: tuple[str, ...] = ()


_RATE = Param(name="rate", type=float, default=1.0, summary="Share of the steps with the fault.")


def _scale(default: float | None) -> Param:
    return Param(name="scale", type=float, default=default, summary="Size of the fault; see its line.")


_KINDS = (
    Kind(
        name="sign-flip",
        summary="sends its gradient times −scale (Li et al. 2019, arXiv:1811.03761)",
        place="gradient",
        params=(_scale(1.0), _RATE),
    ),
    Kind(
        name="reverse",
        summary="sends its gradient reversed and larger, times −scale (Damaskinos et al. 2019, AggregaThor)",
        place="gradient",
        params=(_scale(100.0), _RATE),
    ),
    Kind(
        name="random",
        summary="sends normal draws of deviation scale in place of its gradient",
        place="gradient",
        params=(_scale(1.0), _RATE),
    ),
    Kind(
        name="gaussian",
        summary="adds normal draws of deviation scale to its gradient",
        place="gradient",
        params=(_scale(1.0), _RATE),
    ),
    Kind(name="nan", summary="sends what is not a number", place="gradient", params=(_RATE,)),
    Kind(name="zero", summary="sends zeros", place="gradient", params=(_RATE,)),
    Kind(
        name="drop",
        summary="loses what it sends, in a share of its steps: it arrives as no number",
        place="gradient",
        params=(replace(_RATE, default=0.5),),
    ),
    Kind(
        name="stale",
        summary="sends its gradient of some steps before",
        place="gradient",
        params=(
            Param(name="delay_steps", type=int, default=1, unit="steps", summary="Age of the gradient."),
            _RATE,
        ),
    ),
    Kind(
        name="little-is-enough",
        summary="sends the honest mean less scale deviations (Baruch et al. 2019, arXiv:1902.06156)",
        place="others",
        params=(_scale(None), _RATE),
    ),
    Kind(
        name="inner-product",
        summary="sends the honest mean times −scale (Xie et al. 2020, arXiv:1903.03936)",
        place="others",
        params=(_scale(0.1), _RATE),
    ),
    Kind(
        name="mimic",
        summary="sends what an honest worker sends (Karimireddy et al. 2022, arXiv:2006.09365)",
        place="others",
        params=(
            Param(name="target", type=int, default=None, summary="The worker to copy; none: the first."),
            _RATE,
        ),
    ),
    Kind(
        name="label-flip",
        summary="learns from label classes − 1 − y in place of y",
        place="batch",
        params=(
            Param(name="classes", type=int, default=None, summary="Number of classes; required."),
            Param(
                name="component", type=str, default=None, summary="Component of the batch with the labels."
            ),
            _RATE,
        ),
        required=("classes",),
    ),
    Kind(
        name="slow",
        summary="waits before each of its steps",
        place="process",
        params=(Param(name="delay_ms", type=float, default=100.0, unit="ms", summary="Wait before a step."),),
    ),
    Kind(name="dead", summary="its process is killed at a step", place="process", params=()),
)
_STEPS = (
    Param(name="from_step", type=int, default=0, unit="steps", summary="First step with the fault."),
    Param(
        name="to_step", type=int, default=None, unit="steps", summary="Step after the last one; none: no end."
    ),
)
_TIMES = ("worker", "kind", *(param.name for param in _STEPS))
BY_NAME: Mapping[str, Kind] = {kind.name: kind for kind in _KINDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of one worker.

    Attributes:
        from_step: first step in which the fault is active, counted from 0, including warm-up.
        to_step: first step in which it is no longer active, None for never.
        rate: fraction of steps in which it is active, drawn by seed.
        classes: number of labels. component: path of the labels in the batch; None for the last.
        target: worker that is imitated, None for the first honest one.
    """

    worker: int
    kind: str
    from_step: int = 0
    to_step: int | None = None
    scale: float | None = None
    rate: float = 1.0
    delay_steps: int = 1
    delay_ms: float = 0.0
    classes: int | None = None
    component: str | None = None
    target: int | None = None
    seed: int = 0

    @property
    def place(self) -> Place:
        return BY_NAME[self.kind].place

    def document(self) -> dict[str, str | int | float]:
        """The keys and values of the experiment file; the seed is the experiment's."""
        knobs = {param.name: getattr(self, param.name) for param in BY_NAME[self.kind].params}
        return {
            "worker": self.worker,
            "kind": self.kind,
            **({"from_step": self.from_step} if self.from_step else {}),
            **({} if self.to_step is None else {"to_step": self.to_step}),
            **{knob: value for knob, value in knobs.items() if value is not None},
        }

    def __str__(self) -> str:
        values = {param: getattr(self, param.name) for param in BY_NAME[self.kind].params}
        knobs = [
            _text(param.name, value) for param, value in values.items() if value not in (None, param.default)
        ]
        when = [f"from_step={self.from_step}"] * bool(self.from_step)
        when += [f"to_step={self.to_step}"] * (self.to_step is not None)
        return " ".join((self.kind, *knobs, *when))


def _text(name: str, value: float | int | str) -> str:
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"


def fault_of(document: Mapping[str, Any], *, seed: int) -> Fault:
    """Read a fault of an experiment file.

    Args:
        document: validated keys of a `Fault`.
    Raises:
        StrategyError: the kind is unknown, or a knob is missing or belongs to another kind.
    """
    name = str(document.get("kind")).replace("_", "-")
    if name not in BY_NAME:
        raise StrategyError(f"kind must be a fault that there is, got {name!r}; {suggestion(name, BY_NAME)}")
    kind = BY_NAME[name]
    values = {key: value for key, value in document.items() if value is not None}
    knobs = filled("kind", kind, {k: v for k, v in values.items() if k not in _TIMES}, _KINDS)
    missing = next((knob for knob in kind.required if knobs[knob] is None), None)
    if missing is not None:
        raise StrategyError(f"kind {name} needs {missing}, got none; give it")
    to_step = values.get("to_step")
    if to_step is not None and to_step <= values.get("from_step", 0):
        raise StrategyError(
            f"to_step must be above from_step={values.get('from_step', 0)}, got {to_step}; raise it"
        )
    changes: dict[str, Any] = {**values, **knobs}
    return Fault(**{**changes, "kind": name, "seed": seed})


def check_faults(faults: Sequence[Fault], n_workers: int) -> None:
    """Check that faults name workers of the run, and that attacks leave an honest worker to observe.

    Raises:
        StrategyError: a fault is wrong; the message names the first one.
    """
    faulty = sending_wrong(faults)
    for fault in faults:
        for field, worker in (("worker", fault.worker), ("target", fault.target)):
            if worker is not None and not 0 <= worker < n_workers:
                raise StrategyError(
                    f"{field} must be one of {n_workers} workers, counted from 0, got {worker}; raise "
                    "workers, or name another"
                )
        if fault.place == "others" and len(faulty) == n_workers:
            raise StrategyError(
                f"kind {fault.kind} needs an honest worker to look at, got faults of all {n_workers}; "
                "leave one"
            )
        if fault.target in faulty:
            raise StrategyError(
                f"kind {fault.kind} of worker {fault.worker}: target must be an honest worker, got "
                f"{fault.target}, which has a fault; name another, or none for the first honest one"
            )


def sending_wrong(faults: Sequence[Fault]) -> frozenset[int]:
    """Workers that send wrong gradients; those of a slow or dead worker are correct."""
    return frozenset(fault.worker for fault in faults if fault.place != "process")


def refusal(faults: Sequence[Fault], synchronizers: Collection[str], *, has_rule: bool) -> str | None:
    """Reason why a plan cannot have these faults, None if it can.

    Args:
        synchronizers: synchronizers of the plan's variables. has_rule: True if a rule combines all gradients.
    """
    seeing = next((fault for fault in faults if fault.place == "others"), None)
    if seeing is not None and not has_rule:
        return (
            f"fault {seeing.kind} looks at what others send, which robust-ps and robust-all-reduce alone "
            "gather, got a sum of it; choose another kind for this strategy"
        )
    sending = next((fault for fault in faults if fault.place == "gradient"), None)
    if sending is not None and "average" in synchronizers:
        return (
            f"fault {sending.kind} is in gradients that workers send, got a strategy that sends variables; "
            "leave it out"
        )
    if faults and "cross-replica-sum" in synchronizers:
        return (
            f"fault {faults[0].kind} is of one worker, got replicas that share one program; compare "
            "all-reduce"
        )
    return None


def deviations(n: int, f: int) -> float:
    """Maximum distance from the honest mean, in standard deviations, at which a fault goes unnoticed.

    Source:
        Baruch et al. 2019, arXiv:1902.06156, §3.2: z_max, of workers n and faulty ones f.
    """
    supporters = n // 2 + 1 - f
    share = (n - f - supporters) / max(n - f, 1)
    # If all workers or none must support it, the formula has no finite value.
    return NormalDist().inv_cdf(min(max(share, 0.05), 0.95))


def describe() -> Sequence[Mapping[str, Any]]:
    """Rows of `stratbench list faults`."""
    return [
        {
            "name": kind.name,
            "summary": f"a worker {kind.summary}" if not kind.summary.startswith("its") else kind.summary,
            "params": [
                *(param.describe() for param in kind.params),
                *(param.describe() for param in _STEPS),
            ],
        }
        for kind in _KINDS
    ]
