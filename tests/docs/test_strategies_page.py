"""The page on strategies names every strategy, parameter and compressor, with the values of the registry."""

import re
from pathlib import Path

import pytest

from strategies.errors import UnsupportedError
from strategies.params import Param
from strategies.plan.compressors import BY_NAME
from strategies.plan.schema import StepSummary, VariableSummary
from strategies.registry import KNOBS, STRATEGIES, make_plan, resolve
from strategies.topology import Topology

PAGE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text()
SECTIONS = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def example() -> StepSummary:
    """The step of the page's table of bytes: eight dense kernels and a table of rows."""

    def variables(name: str, shape: tuple[int, int], **gradient: object) -> list[VariableSummary]:
        common = {"dtype": "float", "shape": shape, "bytes": shape[0] * shape[1] * 4}
        axes = (0,) if gradient.get("sparse") else (0, 1)
        trained = {"kind": "trainable", "synced": True, "apart": True, "read_before_update": True}
        cuts = {"partitionable_axes": axes, "apart_axes": axes}
        slot = {"name": f"{name}/momentum", "kind": "slot", "slot_of": name, "reads": 0}
        return [
            VariableSummary.model_validate({"name": name, **common, **trained, **cuts, **gradient}),
            VariableSummary.model_validate({**common, **slot}),
        ]

    table = variables("table", (50_000, 64), sparse=True, rows_per_example=1.0, readiness=8)
    kernels = [variables(f"kernel_{k}", (1024, 1024), readiness=7 - k) for k in range(8)]
    trained, slots = zip(table, *kernels, strict=True)
    return StepSummary(workload="example", n_nodes=0, variables=(*trained, *slots), batch=())


def code(value: object) -> str:
    return "none" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def values_of(knob: Param) -> str:
    if knob.choices:
        return ", ".join(map(code, knob.choices))
    words = {bool: "true or false", int: "whole number", float: "number", str: "word"}
    least = "" if knob.minimum is None else f", at least {knob.minimum:g}"
    least += "" if knob.above is None else f", above {knob.above:g}"
    return f"{words[knob.type]}{least}"


def test_it_has_a_section_for_each_strategy_and_no_other() -> None:
    assert set(SECTIONS) == {s.name for s in STRATEGIES} | {"Parameters", "Compressors"}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_a_section_has_class_and_knobs_with_their_defaults(strategy) -> None:
    section = SECTIONS[strategy.name]
    assert f"Class: **{resolve(strategy.name)[0].strategy_class}**" in section
    for item in ("Bytes:**", "Memory:**", "Use it**", "Avoid it**"):
        assert f"- **{item}" in section
    knobs = ", ".join(f"`{knob.name}` ({code(knob.default)})" for knob in strategy.params)
    assert (f"- **[Parameters](#parameters)** (default): {knobs}.\n" in section) == bool(knobs)


def test_the_table_of_knobs_has_their_values_and_what_recommend_tries() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| \S", SECTIONS["Parameters"], re.MULTILINE)
    assert {(name, values, tries) for name, values, tries in rows} == {
        (name, values_of(knob), ", ".join(map(code, knob.tunable)) or "–") for name, knob in KNOBS.items()
    }


def test_the_table_of_compressors_has_all_with_their_options() -> None:
    rows = re.findall(r"^\| `(\S+)` \|.* \| (\S.*) \|$", SECTIONS["Compressors"], re.MULTILINE)
    assert dict(rows) == {
        name: ", ".join(f"`compressor_{option.name}` ({option.default})" for option in compressor.params)
        or "–"
        for name, compressor in BY_NAME.items()
    }


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_the_bytes_of_the_example_are_those_of_its_plan(strategy) -> None:
    n_workers = 1 if strategy.single else 4
    topology = Topology(replicas_per_task=(1,) * n_workers, batch_size=64)
    try:
        plan = make_plan(strategy.name, {}, example(), topology)
    except UnsupportedError:
        cells = ["–"] * 4
    else:
        most_sent = max(alike.sent_bytes for alike in plan.traffic)
        figures = (plan.payload_bytes_per_step, most_sent, max(plan.server_bytes), plan.worker_bytes)
        cells = [f"{n_bytes / 1e6:.3g} MB" if n_bytes else "0" for n_bytes in figures]
    link = f"[`{strategy.name}`](#{strategy.name})"
    assert f"| {' | '.join([link, resolve(strategy.name)[0].strategy_class, *cells])} |" in PAGE
