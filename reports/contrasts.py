"""Ratios between the strategies of a table, and their significance.

p is adjusted over all pairs of the table. A permutation of few repeats has a smallest p, such as 2 in 256 of
eight pairs. If that is above the significance ÷ the number of tests, no difference could be significant, and
p is that of t instead. The numbers of repeats and tests alone decide which test is used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from harness.records.comparison import CONFIDENCE, SEQUENTIAL_CONFIDENCE, paired_ratios
from harness.records.record import Record
from reports.case_row import rates_of
from reports.statistics import Ratio, adjusted, paired_ratio, ratio

SIGNIFICANCE = 0.05


@dataclass(slots=True)
class Contrasts:
    """Ratios of rates between the strategies of one table.

    Args:
        usable: strategy → its records with a rate.
        prices: strategy → price per hour; ratios are then those of examples per price.
    """

    usable: Mapping[str, Sequence[Record]]
    prices: Mapping[str, float] = field(default_factory=dict)
    _known: dict[tuple[str, str], Ratio | None] = field(default_factory=dict)
    _n_tests: int | None = None
    _adjusted: dict[tuple[str, str], float] | None = None

    def of(self, first: str, second: str) -> Ratio | None:
        """The rate of one strategy over that of another, with p as in the table; None without a rate."""
        lead = self._alone(first, second)
        if lead is None or lead.least_p == 0.0 or lead.least_p <= SIGNIFICANCE / self.n_tests:
            return lead
        return lead.by_t()

    def _alone(self, first: str, second: str) -> Ratio | None:
        """Ratio of a pair with its p before any adjustment."""
        key = (first, second)
        if key not in self._known:
            turned = self._known.get((second, first))
            self._known[key] = (
                rate_ratio(
                    self.usable.get(first, ()),
                    self.usable.get(second, ()),
                    times=self.prices.get(second, 1.0) / self.prices.get(first, 1.0),
                )
                if turned is None
                else turned.inverse()
            )
        return self._known[key]

    def per_price(self, prices: Mapping[str, float]) -> Contrasts:
        """Ratios of examples per price between the strategies with a price, by the same tests.

        Args:
            prices: strategy → price per hour, above 0.
        """
        if len(set(prices.values())) == 1 and set(prices) == set(self.usable):
            # With equal prices, ratios are those of the rates.
            return self
        return Contrasts({name: self.usable.get(name, ()) for name in prices}, prices)

    def p_of(self, first: str, second: str) -> float | None:
        """Adjusted p of two strategies being equal; None without a test."""
        known = self._adjusted_p()
        return known.get((first, second), known.get((second, first)))

    @property
    def n_tests(self) -> int:
        """Number of pairs with a test, over which p is adjusted; at least 1."""
        if self._n_tests is None:
            alone = [self._alone(*pair) for pair in itertools.combinations(self.usable, 2)]
            self._n_tests = max(1, sum(lead is not None and lead.p_value is not None for lead in alone))
        return self._n_tests

    def _adjusted_p(self) -> dict[tuple[str, str], float]:
        """Pair → its adjusted p, for all pairs with a test."""
        if self._adjusted is None:
            leads = {pair: self.of(*pair) for pair in itertools.combinations(self.usable, 2)}
            tested = {pair: lead.p_value for pair, lead in leads.items() if lead and lead.p_value is not None}
            self._adjusted = dict(zip(tested, adjusted(list(tested.values())), strict=True))
        return self._adjusted

    def ahead(self, first: str, second: str) -> bool:
        """True if one strategy is significantly faster than another."""
        lead, p = self.of(first, second), self.p_of(first, second)
        if lead is None or lead.interval is None:
            return False
        return lead.interval.low > 1.0 and (p is None or p <= SIGNIFICANCE)

    def standing(self, name: str, baseline: str | None) -> float:
        """Figure by which strategies are sorted: the ratio to the baseline, or the rate without one."""
        if baseline is None:
            rates = rates_of(self.usable[name])
            return math.exp(fmean(map(math.log, rates))) if rates else 0.0
        against = self.of(name, baseline)
        return 0.0 if against is None else against.value


def rate_ratio(records: Sequence[Record], others: Sequence[Record], *, times: float = 1.0) -> Ratio | None:
    """Ratio of the rates of two cases, formed within common rounds if there are any; None without a rate.

    Args:
        times: factor of the ratio, such as a ratio of prices.
    """
    confidence = SEQUENTIAL_CONFIDENCE if _is_sequential([*records, *others]) else CONFIDENCE
    pairs = paired_ratios(records, others)
    if pairs.logs:
        if times != 1.0:
            pairs = replace(pairs, logs=tuple(log + math.log(times) for log in pairs.logs))
        return paired_ratio(pairs, confidence=confidence)
    rates, other_rates = [times * rate for rate in rates_of(records)], rates_of(others)
    return ratio(rates, other_rates, confidence=confidence) if rates and other_rates else None


def _is_sequential(records: Sequence[Record]) -> bool:
    return any(record.method is not None and record.method.until_ci is not None for record in records)
