"""A small set of combinations that holds every pair of chosen factors' values."""

import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence

Choice = tuple[Hashable, ...]


def covering(factors: Mapping[str, Sequence[Hashable]], pairs: Collection[tuple[str, str]]) -> list[Choice]:
    """Combinations, one value of each factor in their order, that hold all values of these pairs of factors.

    Greedy and deterministic: each time the combination that holds the most pairs not yet held, of equally
    good ones the first in the order of the product.
    """
    names = list(factors)
    places = [(names.index(a), names.index(b)) for a, b in pairs]
    product = list(itertools.product(*factors.values()))
    missing = {pair for choice in product for pair in _pairs(choice, places)}
    chosen: list[Choice] = []
    while missing:
        best = max(product, key=lambda choice: len(missing & _pairs(choice, places)))
        chosen.append(best)
        missing -= _pairs(best, places)
    return chosen


def _pairs(choice: Choice, places: Sequence[tuple[int, int]]) -> set[tuple[object, ...]]:
    return {(a, choice[a], b, choice[b]) for a, b in places}
