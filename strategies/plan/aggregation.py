"""Robust aggregation rules: the table, the number of workers that each needs, and one rule of a plan.

No TensorFlow; `strategies.numerics.aggregators` has the arithmetic.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from strategies.errors import StrategyError
from strategies.params import Param, Params, filled

NONE, MIXING, BUCKETING = "none", "nearest-neighbour-mixing", "bucketing"
MEAN, CLIPPING = "mean", "centered-clipping"
_MOST_SUBSETS = 10_000
TOO_FEW_FINITE = "finite contributions"
"""Text in the error of a step with too few finite contributions for its rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An entry of the table.

    Attributes:
        per_fault, beyond: with f faulty workers the rule needs per_fault·f + beyond workers; per_fault = 0
            allows only f = 0.
        selects: True if the rule uses whole gradients of some workers and omits the others.
    """

    name: str
    summary: str
    per_fault: int
    beyond: int
    selects: bool = False
    params: tuple[Param, ...] = ()

    def needs(self, f: int) -> int:
        """Number of workers needed if f of them are faulty."""
        return self.per_fault * f + self.beyond

    def most(self, n: int) -> int:
        """Maximum number of faulty workers among n, -1 if n is too small for any number."""
        if n < self.beyond:
            return -1
        return (n - self.beyond) // self.per_fault if self.per_fault else 0

    def bound(self) -> str:
        return f"n ≥ {self.per_fault}f + {self.beyond}" if self.per_fault else "f = 0"


VARIANTS = ("bulyan", "aggregathor")
_M = Param(
    name="m",
    type=int,
    default=None,
    minimum=1,
    unit="gradients",
    summary="Gradients that multi-krum averages; none: n − f − 2.",
)
_VARIANT = Param(
    name="variant",
    type=str,
    default=None,
    choices=VARIANTS,
    summary="Rounds of bulyan: as in its paper, or two fewer as in AggregaThor.",
)
_NU = Param(
    name="nu",
    type=float,
    default=1e-6,
    above=0,
    summary="Smoothing of geometric-median: smaller distances get no more weight.",
)
_TAU = Param(name="tau", type=float, default=1.0, above=0, summary="Clipping norm of centered-clipping.")


def _iterations(default: int) -> Param:
    return Param(
        name="iterations",
        type=int,
        default=default,
        minimum=1,
        maximum=10_000,
        summary="Iterations of geometric-median (usually 8) or centered-clipping (1).",
    )


RULES = (
    Rule(name=MEAN, summary="the mean, weighted by examples", per_fault=0, beyond=1),
    Rule(name="median", summary="coordinate-wise median", per_fault=2, beyond=1),
    Rule(
        name="trimmed-mean",
        summary="coordinate-wise mean without the f largest and f smallest values",
        per_fault=2,
        beyond=1,
    ),
    Rule(
        name="meamed",
        summary="coordinate-wise mean of the n − f values closest to the median",
        per_fault=2,
        beyond=1,
    ),
    Rule(
        name="krum",
        summary="the gradient whose n − f − 2 nearest others are closest",
        per_fault=2,
        beyond=3,
        selects=True,
    ),
    Rule(
        name="multi-krum",
        summary="the mean of the m gradients that Krum likes best",
        per_fault=2,
        beyond=3,
        selects=True,
        params=(_M,),
    ),
    Rule(
        name="bulyan",
        summary="Krum's best one after the other, then their mean around the coordinate-wise median",
        per_fault=4,
        beyond=3,
        selects=True,
        params=(_VARIANT,),
    ),
    Rule(
        name="mda",
        summary="the mean of the n − f gradients with the least diameter",
        per_fault=2,
        beyond=1,
        selects=True,
    ),
    Rule(
        name="geometric-median",
        summary="the vector with the least sum of distances, by smoothed Weiszfeld steps",
        per_fault=2,
        beyond=1,
        params=(_iterations(8), _NU),
    ),
    Rule(
        name=CLIPPING,
        summary="the step before's vector, moved by the mean of clipped differences from it",
        per_fault=2,
        beyond=1,
        params=(_iterations(1), _TAU),
    ),
)
BY_NAME: Mapping[str, Rule] = {rule.name: rule for rule in RULES}
KNOBS: Mapping[str, Param] = {p.name: replace(p, default=None) for rule in RULES for p in rule.params}
"""Parameters of all rules, with default None: actual defaults depend on the rule."""


def has_rule(params: Params) -> bool:
    """True if a strategy's parameters select a rule; a user's builder may use the name for something else."""
    return isinstance(params.get("rule"), str) and "pre" in params


def has_reference(params: Params) -> bool:
    """True if gradients are averaged as on a single device, by a rule or without one."""
    return not has_rule(params) or (params["rule"] == MEAN and params["pre"] in (None, NONE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """A rule for the gradients of n workers.

    Attributes:
        f: number of workers that may be faulty.
        m: number of rows that Multi-Krum averages; 1 for Krum, 0 for other rules.
        variant: definition of Bulyan's number of rounds, one of `VARIANTS`.
        iterations: number of iterations per step, for iterative rules.
        nu: smoothing of the geometric median. tau: clipping limit of centered clipping.
        pre: preprocessing before the rule, such as bucketing; `none` for no preprocessing.
        bucket_size: number of workers per bucket.
        servers: number of servers; each combines all gradients. lying: number of faulty servers, the
            last ones.
    """

    rule: str
    n: int
    f: int
    m: int = 0
    variant: str = VARIANTS[0]
    iterations: int = 1
    nu: float = 1e-6
    tau: float = 1.0
    pre: str = NONE
    bucket_size: int = 1
    servers: int = 1
    lying: int = 0

    @classmethod
    def of(cls, params: Params, n: int) -> "Aggregation | None":
        """Rule that a strategy's parameters select for n workers; None if they select none.

        Raises:
            StrategyError: there are too few workers for the rule, or the rule has no such knob.
        """
        if not has_rule(params):
            return None
        name = str(params["rule"])
        if name not in BY_NAME:
            raise StrategyError(f"rule must be one of {', '.join(BY_NAME)}, got {name!r}; choose one")
        rule = BY_NAME[name]
        values = {knob: params[knob] for knob in KNOBS if params.get(knob) is not None}
        knobs: dict[str, Any] = filled("rule", rule, values, RULES)
        if params.get("bucket_size") is not None and params.get("pre") != BUCKETING:
            pre = params.get("pre") or NONE
            raise StrategyError(f"bucket_size needs pre={BUCKETING}, got pre={pre}; leave bucket_size out")
        _check_servers(params, n)
        pre = str(params.get("pre") or NONE)
        size = int(params.get("bucket_size") or 2) if pre == BUCKETING else 1
        n_rows = math.ceil(n / size)
        f = _faulty(rule, params, n, size)
        if name == "mda" and math.comb(n_rows, f) > _MOST_SUBSETS:
            raise StrategyError(
                f"rule=mda looks at all subsets of n − f workers, {_MOST_SUBSETS} at most, got "
                f"{math.comb(n_rows, f)} with n={n_rows} and f={f}; lower f, or choose multi-krum"
            )
        return cls(
            rule=name,
            n=n,
            f=f,
            m=_best(rule, knobs.get("m"), n_rows - f - 2),
            **{knob: knobs[knob] for knob in ("variant", "iterations", "nu", "tau") if knobs.get(knob)},
            pre=pre,
            bucket_size=size,
            servers=int(params.get("servers") or 1),
            lying=int(params.get("lying") or 0),
        )

    def n_rows(self, n_finite: int) -> int:
        """Number of rows that the rule gets from this many finite contributions."""
        return math.ceil(n_finite / self.bucket_size)

    def still_faulty(self, n_finite: int) -> int:
        """Maximum number of faulty workers among the finite contributions; all others count as faulty."""
        return max(self.f - (self.n - n_finite), 0)

    def works_with(self, n_finite: int) -> bool:
        """True if the rule is defined for this many finite contributions."""
        n_rows, f = self.n_rows(n_finite), self.still_faulty(n_finite)
        enough = n_rows >= max(BY_NAME[self.rule].needs(f), 1)
        return enough and (self.rule != "multi-krum" or n_rows - f - 2 >= self.m)

    @property
    def least_finite(self) -> int:
        """Minimum number of finite contributions; a step with fewer fails."""
        return next(n for n in range(1, self.n + 1) if all(map(self.works_with, range(n, self.n + 1))))

    @property
    def selects(self) -> bool:
        """True if the rule uses some workers' gradients and omits the others."""
        return BY_NAME[self.rule].selects


def _faulty(rule: Rule, params: Params, n: int, bucket_size: int) -> int:
    """Number of faulty workers that a rule must tolerate: the requested number, else the maximum.

    Raises:
        StrategyError: there are too few workers for the rule or for this number of faulty ones.
    """
    n_rows = math.ceil(n / bucket_size)
    rows = f"{n} workers" if bucket_size == 1 else f"{n_rows} buckets of {n} workers"
    if n_rows < rule.beyond:
        raise StrategyError(
            f"rule={rule.name} needs {rule.bound()}, got {rows}; raise workers to "
            f"{rule.beyond * bucket_size} or more"
        )
    most = rule.most(n_rows)
    f = most if params.get("f") is None else int(params["f"] or 0)
    if f <= most:
        return f
    way_out = "choose another rule"
    if rule.per_fault:
        way_out = f"f may be {most} at most, or raise workers to {rule.needs(f) * bucket_size}"
    raise StrategyError(f"rule={rule.name} needs {rule.bound()}, got f={f} with {rows}; {way_out}")


def _best(rule: Rule, requested: int | None, most: int) -> int:
    """Number of rows that Krum or Multi-Krum averages, 0 for other rules.

    Raises:
        StrategyError: more rows are requested than there are neighbours.
    """
    if rule.name != "multi-krum":
        return int(rule.name == "krum")
    m = most if requested is None else requested
    if m > most:
        raise StrategyError(f"m must be at most n − f − 2 = {most}, got {m}; lower m, or leave it out")
    return m


def _check_servers(params: Params, n: int) -> None:
    """Refuse more servers than workers, and a majority of faulty servers.

    Raises:
        StrategyError: there are too many servers or too many faulty ones.
    """
    servers, lying = int(params.get("servers") or 1), int(params.get("lying") or 0)
    if servers > n:
        raise StrategyError(
            f"servers must be at most the number of workers, got servers={servers} and workers={n}; lower "
            "servers, or raise workers"
        )
    if servers < 2 * lying + 1:
        raise StrategyError(
            f"lying={lying} needs servers ≥ 2·lying + 1, got servers={servers}; raise servers to "
            f"{2 * lying + 1}, or lower lying"
        )
