"""Parameters: values that pass, one line for those that do not, and declarations that cannot be."""

import pytest

from strategies.errors import StrategyError
from strategies.params import Param, filled
from strategies.plan.compressors import BY_NAME

RATE = Param(name="rate", type=float, default=0.5, above=0.0, maximum=1.0)
COUNT = Param(name="count", type=int, default=None, minimum=1, below=10)
FLAG = Param(name="flag", type=bool, default=True)
WORD = Param(name="word", type=str, default="a", choices=("a", "b"))
DATA = Param(name="data", type=str, form="path", default=None)
HASH = Param(name="hash", type=str, form="sha256", default=None)


@pytest.mark.parametrize(
    ("param", "value", "read"),
    [
        (RATE, 1, 1.0),
        (COUNT, None, None),
        (COUNT, 9, 9),
        (FLAG, False, False),
        (WORD, "b", "b"),
        (DATA, "/data", "/data"),
        (HASH, "AB" * 32, "ab" * 32),
    ],
)
def test_a_value_that_is_allowed(param: Param, value: object, read: object) -> None:
    assert param.read(value) == read
    assert type(param.read(value)) is type(read)


@pytest.mark.parametrize(
    ("param", "value", "line"),
    [
        (RATE, 0.0, "x: rate must be above 0 and at most 1, got 0.0; leave it out for 0.5"),
        (RATE, None, "x: rate must be float, got None; leave it out for 0.5"),
        (RATE, float("nan"), "x: rate must be above 0 and at most 1, got nan; leave it out for 0.5"),
        (RATE, "0.5", "x: rate must be float, got '0.5'; leave it out for 0.5"),
        (COUNT, 10, "x: count must be at least 1 and below 10, got 10; leave it out"),
        (COUNT, True, "x: count must be int, got True; leave it out"),
        (FLAG, 1, "x: flag must be true or false, got 1; leave it out for true"),
        (WORD, "c", "x: word must be one of a, b, got 'c'; leave it out for 'a'"),
        (DATA, "data", "x: data must be an absolute path, got 'data'; write it in full"),
        (HASH, "ab", "x: hash must be 64 hexadecimal digits, got 'ab'; sha256sum prints them"),
    ],
)
def test_a_value_that_is_not_allowed(param: Param, value: object, line: str) -> None:
    with pytest.raises(StrategyError) as caught:
        param.read(value, of="x: ")
    assert str(caught.value) == line


def test_numbers_may_be_text_where_yaml_reads_them_so() -> None:
    assert RATE.read_text("1e-1") == 0.1
    assert COUNT.read_text("3") == 3
    with pytest.raises(StrategyError, match="count must be int, got 'three'"):
        COUNT.read_text("three")


def test_a_default_is_one_of_the_values() -> None:
    with pytest.raises(StrategyError, match="param 'n': default: n must be at least 1, got 0"):
        Param(name="n", type=int, default=0, minimum=1)


def test_an_entry_fills_in_what_is_not_given() -> None:
    entries = tuple(BY_NAME.values())
    assert filled("compressor", BY_NAME["topk"], {}, entries) == {"ratio": 0.01}
    with pytest.raises(
        StrategyError, match="compressor qsgd: takes no rank, got 2; drop it, it is for powersgd"
    ):
        filled("compressor", BY_NAME["qsgd"], {"rank": 2}, entries)
    with pytest.raises(StrategyError, match="compressor qsgd: takes no level, got 2; did you mean 'levels'"):
        filled("compressor", BY_NAME["qsgd"], {"level": 2}, entries)
