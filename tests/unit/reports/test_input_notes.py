"""What a report and the terminal say of steps that wait for their input."""

import json
from dataclasses import replace

from open_folders import made_record

from harness.records.comparing.comparison_key import comparison_key
from harness.records.facts.circumstances import Method
from harness.records.facts.costs import InputWait
from harness.records.facts.outcome import StepSeconds
from harness.records.record import Record
from harness.records.record_json import from_json, to_document, to_json
from harness.run import progress
from reports.case_row import case_row
from reports.marks import mark_words
from reports.notes.measuring import input_notes
from reports.rows import Row
from reports.shapes import ComparedShape

SHAPE = ComparedShape(
    workload="w",
    provider="local",
    device="cpu",
    workers=2,
    replicas=1,
    batch_size=8,
    link_mbit=0.0,
    precision="float32",
    xla=False,
)
METHOD = Method(seed=0, steps=50, warmup_rule="auto", interleave=True, batch_rule="global")
STEPS = StepSeconds(n=50, mean=1.0, p50=1.0, p90=1.0, p99=1.0)


def timed(share: float | None) -> Record:
    """A repeat whose steps wait for that share of their time; None for staged batches."""
    record = made_record(method=METHOD, step_s=STEPS, batch_size=8)
    if share is None:
        return record
    wait = InputWait(mean=share, share=share, mean_of_workers=(share, 0.0), bound=share >= 0.1)
    return replace(record, method=replace(METHOD, input="pipeline"), input_s=wait)


def row(name: str, share: float | None) -> Row:
    return case_row(name, [timed(share)], [timed(share)], SHAPE, None)


def test_a_case_that_waits_is_marked_and_its_share_is_told() -> None:
    rows = [row("ps", 0.25), row("single", 0.02)]
    assert [mark_words(each) for each in rows] == ["not checked, input-bound", "not checked"]
    how, bound = input_notes(rows, {"ps": [timed(0.25)], "single": [timed(0.02)]})
    assert "tf.data pipeline" in how
    assert bound.startswith("Input-bound: of their steps' time these wait for input: ps 25 %.")


def test_without_long_waits_a_pipeline_is_told_and_staged_batches_are_not() -> None:
    assert len(input_notes([row("ps", 0.02)], {"ps": [timed(0.02)]})) == 1
    assert input_notes([row("ps", None)], {"ps": [timed(None)]}) == []
    assert row("ps", None).input_s is None


def test_memory_of_staged_batches_is_told_where_replicas_have_gpus() -> None:
    on_gpu, on_host = (
        replace(timed(None), method=replace(METHOD, input_placement=place)) for place in ("device", "host")
    )
    rows = [row("ps", None)]
    notes = input_notes(rows, {"ps": [on_gpu], "single": [on_gpu], "tf-parameter-server": [on_host]})
    assert notes == [
        "Staged batches lay on the GPUs that take them: ps, single.",
        "Staged batches lay on the host, and each step copied its own to the GPU: tf-parameter-server.",
    ]
    assert comparison_key(on_gpu) != comparison_key(on_host) != comparison_key(timed(None))


def test_a_record_keeps_its_wait_and_one_from_before_is_staged() -> None:
    assert from_json(to_json(timed(0.25))) == timed(0.25)
    document = to_document(replace(timed(None), schema=1))
    assert isinstance(document["method"], dict)
    del document["method"]["input"], document["input_s"]
    old = from_json(json.dumps(document))
    assert old.method is not None
    assert (old.method.input, old.input_s) == ("staged", None)


def test_the_terminal_names_it_when_a_repeat_ends() -> None:
    assert "input-bound (25% of its steps)" in progress._outcome(timed(0.25))
    assert "input-bound" not in progress._outcome(timed(0.02))
