""" """

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import StoreError
from harness.records.checksums import CHECKSUM, with_checksum, without_checksum
from harness.records.comparison import comparison_key
from harness.records.conditions import GpuFacts, Machine, Method, Provenance, TimedUnit
from harness.records.costs import Link, MeasuredLink
from harness.records.outcome import Equivalence, Failure, StepSeconds
from harness.records.record import Record, from_json, to_document, to_json

# CONTRACT, "results.jsonl".
_CONTRACT = {
    "schema",
    "run",
    "case",
    "repeat",
    "order",
    "workload",
    "strategy",
    "strategy_params",
    "class",
    "provider",
    "device",
    "workers",
    "replicas",
    "batch_size",
    "status",
    "exposed",
    "error",
    "examples_per_s",
    "step_s",
    "warmup_steps",
    "payload_bytes_per_step",
    "tcp_bytes_per_step",
    "interface_bytes_per_step",
    "resent_bytes_per_step",
    "hosts",
    "fused_update",
    "gradient_bytes",
    "tcp_matrix",
    "exposed_comm_s",
    "codec_s",
    "transform_s",
    "import_s",
    "provision_s",
    "nodes_before",
    "nodes_after",
    "peak_rss_bytes",
    "loss",
    "equivalence",
    "link",
}

_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_ABOVE_0 = st.floats(min_value=0.0, exclude_min=True, allow_infinity=False)
_COUNTS = st.integers(min_value=0, max_value=2**60)
_SCALARS = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | _FLOATS | st.text()


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


_RECORDS = st.builds(
    Record,
    run=st.text(),
    case=st.text(),
    repeat=_COUNTS,
    order=_COUNTS,
    workload=st.text(),
    strategy=st.text(),
    strategy_class=st.sampled_from(["exact", "bounded", "statistical", "control"]),
    provider=st.text(),
    device=st.text(),
    workers=_COUNTS,
    replicas=_COUNTS,
    status=st.sampled_from(["ok", "failed", "skipped", "implausible"]),
    control=st.booleans(),
    strategy_params=st.dictionaries(st.text(), _SCALARS, max_size=3),
    batch_size=_maybe(_COUNTS),
    error=_maybe(st.builds(Failure, type=st.text(), message=st.text(), stage=st.text())),
    examples_per_s=_maybe(_ABOVE_0),
    step_s=_maybe(st.builds(StepSeconds, n=_COUNTS, mean=_maybe(_ABOVE_0), p99=_maybe(_ABOVE_0))),
    tcp_matrix=_maybe(st.tuples(st.tuples(_maybe(_FLOATS), _FLOATS), st.tuples(_FLOATS, _FLOATS))),
    peak_rss_bytes=_maybe(st.tuples(_COUNTS, _maybe(_COUNTS))),
    variable_bytes=_maybe(st.tuples(_COUNTS, _COUNTS)),
    loss=_maybe(st.tuples(_FLOATS, _maybe(_FLOATS))),
    equivalence=_maybe(st.builds(Equivalence, checked=st.booleans(), equivalent=_maybe(st.booleans()))),
    link=_maybe(
        st.builds(
            Link,
            requested_mbit=_maybe(_FLOATS),
            workers=_maybe(
                st.lists(st.builds(MeasuredLink, sent_mbit=_maybe(_FLOATS)), max_size=2).map(tuple)
            ),
        )
    ),
    provenance=_maybe(st.builds(Provenance, versions=st.dictionaries(st.text(), st.text(), max_size=2))),
)


def _record(**changes: Any) -> Record:
    record = Record(
        run="r",
        case="c-1",
        repeat=0,
        order=0,
        workload="w",
        strategy="ps",
        strategy_class="exact",
        provider="local",
        device="cpu",
        workers=2,
        replicas=1,
        status="ok",
    )
    return dataclasses.replace(record, **changes)


def _written(change: dict[str, Any]) -> str:
    """The line of a record of another version."""
    return json.dumps(with_checksum(without_checksum(json.loads(to_json(_record()))) | change))


@given(_RECORDS)
def test_a_record_survives_its_line(record: Record) -> None:
    line = to_json(record)
    assert "\n" not in line
    assert from_json(line) == record


def test_a_line_may_be_reordered_and_spaced_but_not_changed() -> None:
    document = json.loads(to_json(_record(examples_per_s=1234.5, notes=("a",))))
    shuffled = dict(reversed(document.items()))
    assert from_json(json.dumps(shuffled, indent=1)) == _record(examples_per_s=1234.5, notes=("a",))
    for change in ({"examples_per_s": 1234.6}, {"notes": []}, {"new": 1}, {CHECKSUM: "0" * 64}):
        with pytest.raises(StoreError, match=r"checksum: must be .*it was damaged or edited after it was"):
            from_json(json.dumps(document | change))


def test_a_line_of_a_tool_that_writes_whole_numbers_without_a_point_is_sound() -> None:
    """Compare as jq does: 1.0 is 1 there."""
    document = {"rate": 1234.0, "nested": [{"zero": 0.0, "half": 0.5}], "n": 3}
    written = json.loads(json.dumps(with_checksum(document)).replace("1234.0", "1234").replace("0.0", "0"))
    assert written["rate"] == 1234
    assert without_checksum(written) == document
    with pytest.raises(StoreError, match="damaged or edited"):
        without_checksum({**written, "rate": 1235})


def test_a_line_without_a_checksum_is_older_than_they_are_or_damaged() -> None:
    document = without_checksum(json.loads(to_json(_record())))
    assert from_json(json.dumps(document | {"schema": 1})) == _record(schema=1)
    with pytest.raises(StoreError, match="checksum: must be given, got nothing; it was damaged or edited"):
        from_json(json.dumps(document))


@pytest.mark.parametrize(("period", "unit", "p50"), [(8, "step", 0.3), (8, "period", 0.1), (1, "step", 0.1)])
def test_the_median_of_older_periodic_steps_is_their_mean(period: int, unit: TimedUnit, p50: float) -> None:
    """Percentiles of older records are over single steps, and most steps have no exchange."""
    steps = StepSeconds(n=16, mean=0.3, p50=0.1, p90=0.5, p99=0.9)
    method = Method(
        seed=0, steps=50, warmup_rule="auto", interleave=True, batch_rule="global", timed_unit=unit
    )
    assert from_json(to_json(_record(step_s=steps, period=period, method=method))).median_step_s == p50


def test_every_field_of_the_contract_is_at_the_top_level() -> None:
    assert set(json.loads(to_json(_record()))) >= _CONTRACT


def test_class_is_spelt_as_the_contract_says() -> None:
    document = to_document(_record(strategy_class="control"))
    assert document["class"] == "control"
    assert "strategy_class" not in document


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_written_as_null(value: float) -> None:
    record = _record(examples_per_s=value, loss=(1.0, value), tcp_matrix=((0.0, value), (1.0, 0.0)))
    document = json.loads(to_json(record), parse_constant=pytest.fail)
    assert (document["examples_per_s"], document["loss"], document["tcp_matrix"][0]) == (
        None,
        [1.0, None],
        [0.0, None],
    )


def test_additions_of_a_later_version_are_passed_over() -> None:
    line = _written({"energy_j": 3.0, "equivalence": {"checked": True, "method": "new"}})
    assert from_json(line).equivalence == Equivalence(checked=True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"workers": "two"}, "workers: must be a valid integer, got 'two'"),
        ({"workers": 2.5}, "workers: must be a valid integer"),
        ({"status": "fine"}, "status: must be 'ok', 'failed', 'skipped' or 'implausible', got 'fine'"),
        ({"class": None}, "class: must be"),
        ({"step_s": {"n": "x"}}, "step_s.n: must be a valid integer"),
        ({"step_s": {"n": 4, "mean": 0.1, "p50": 0.0}}, "step_s.p50: must be above 0, got 0.0"),
        ({"step_s": {"n": 4, "mean": -0.1, "p50": 0.1}}, "step_s.mean: must be above 0, got -0.1"),
        ({"schema": 99}, "schema: this version reads up to 2, got 99"),
        ({"schema": True}, "schema: must be a whole number, got True"),
        ({"schema": None}, "schema: must be a whole number, got None"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], expected: str) -> None:
    with pytest.raises(StoreError) as caught:
        from_json(_written(change))
    assert str(caught.value).startswith(expected)


def _larger(number: float) -> str:
    """A record older than checksums, with a number that JSON can write and reports cannot compute with."""
    text = "1e999" if number == float("inf") else str(number)
    document = {name: value for name, value in to_document(_record()).items() if name != "wall_s"}
    return json.dumps({**document, "schema": 1})[:-1] + f', "wall_s": {text}}}'


def test_a_record_older_than_checksums_is_read() -> None:
    assert from_json(_larger(2.5)).wall_s == 2.5


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "null", '{"schema": NaN}', b"\x00\xff", "[" * 10**5, _larger(1e999), _larger(10**400)],
)
def test_what_is_not_a_record_is_refused(line: str | bytes) -> None:
    with pytest.raises(StoreError):
        from_json(line)


def test_the_comparison_key_ignores_the_code_and_sees_what_was_measured() -> None:
    method = Method(seed=0, steps=50, warmup_rule="auto", interleave=True, batch_rule="global")
    record = _record(method=method, machine=Machine(cpu_model="a", kernel="6.1"))
    key = comparison_key(record)
    same = [
        {"run": "other", "repeat": 2, "examples_per_s": 1.0},
        {"provenance": Provenance(git_sha="abc")},
        {"method": dataclasses.replace(method, seed=7)},
        {"machine": Machine(cpu_model="a", kernel="6.2")},
        {"link": Link()},
    ]
    different = [
        {"strategy_params": {"staleness": 2}},
        {"workers": 3},
        {"batch_size": 32},
        {"link": Link(requested_mbit=100)},
        {"link": Link(workers=(MeasuredLink(requested_mbit=100), MeasuredLink(requested_mbit=10)))},
        {"method": dataclasses.replace(method, steps=10)},
        {"method": dataclasses.replace(method, timed_unit="window")},
        {"machine": Machine(cpu_model="b", kernel="6.1")},
    ]
    h100 = GpuFacts(model="H100", driver="580", cuda="12.9", cudnn="9.10.2", power_limit_w=700.0)
    others = (
        {"model": "H200"},
        {"driver": "570"},
        {"cuda": "13"},
        {"cudnn": "9.1"},
        {"power_limit_w": 350.0},
    )
    of_gpus = [
        dataclasses.replace(record, machine=Machine(cpu_model="a", gpus=kinds))
        for kinds in (None, *(((dataclasses.replace(h100, **change)),) for change in ({}, *others)))
    ]
    assert len({comparison_key(record) for record in of_gpus}) == 7
    assert all(from_json(to_json(record)) == record for record in of_gpus)
    assert {comparison_key(dataclasses.replace(record, **change)) for change in same} == {key}
    assert key not in {comparison_key(dataclasses.replace(record, **change)) for change in different}


def test_the_busiest_direction_of_the_busiest_link_takes_longest() -> None:
    fast, slow = (MeasuredLink(sent_mbit=rate, received_mbit=rate) for rate in (80.0, 8.0))
    link = Link(workers=(fast, slow))
    assert link.wire_s([(1e6, 3e6), (3e6, 1e6)]) == pytest.approx(3.0)
    assert link.wire_s([(3e6, 1e6), (1e6, 3e6)]) == pytest.approx(3.0)
    assert Link(workers=(fast, MeasuredLink())).wire_s([(1e6, 3e6), (3e6, 1e6)]) == pytest.approx(0.3)
    assert Link(requested_mbit=80.0).wire_s([(1e6, 3e6), (3e6, 1e6)]) is None


def test_what_breaks_its_promise_is_wrong() -> None:
    assert Equivalence(checked=True, equivalent=False).wrong
    assert Equivalence(checked=True, within_bound=False).wrong
    assert not Equivalence(checked=True, within_bound=True).wrong
    assert not Equivalence(checked=True).wrong
