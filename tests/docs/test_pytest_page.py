"""Facts on the page on pytest are true; its example is run, timed, among the benchmarks."""

import dataclasses
import inspect
import re

from pages import ROOT, blocks

from harness.pytest_plugin.benchmarked_case import BenchmarkedCase
from harness.pytest_plugin.fixtures import StrategyBenchmark

PAGE = (ROOT / "docs" / "pytest.md").read_text()
TIMED = "tests/benchmarks/timed"


def test_its_example_is_one_of_the_benchmarks_that_are_timed() -> None:
    (example,) = blocks(PAGE, "python")
    assert example in (ROOT / TIMED / "test_strategy_case.py").read_text()
    assert f"pytest {TIMED} --benchmark-json" in (ROOT / "Makefile").read_text()


def test_its_arguments_are_those_of_the_fixture() -> None:
    table = PAGE.partition("| argument | is |")[2].partition("\n\n")[0]
    names = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split(" | ")[0])]
    parameters = inspect.signature(StrategyBenchmark.__call__).parameters.values()
    assert names == [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def test_what_it_says_of_a_result_is_there() -> None:
    attributes = PAGE.partition("The result has")[2].partition(" of the case.")[0]
    fields = {field.name for field in dataclasses.fields(BenchmarkedCase)}
    properties = {name for name, value in vars(BenchmarkedCase).items() if isinstance(value, property)}
    assert set(re.findall(r"`(\w+)`", attributes)) == (fields - {"case"}) | properties
