"""Host of GPUs in a traced step, in reports, at the terminal and in records."""

import json
from dataclasses import replace

import pytest
from open_folders import made_record

from harness.records.costs import TracedTimes
from harness.records.outcome import StepSeconds
from harness.records.record import Record, from_json, to_document, to_json
from reports.case_row import case_row, time_split_of
from reports.marks import mark_words
from reports.recommendation.notes import row_notes
from reports.shapes import ComparedShape

SHAPE = ComparedShape(
    workload="w",
    provider="local",
    device="gpu",
    workers=1,
    replicas=1,
    batch_size=8,
    link_mbit=0.0,
    precision="float32",
    xla=False,
)
ON_GPU = TracedTimes(
    step_s=(10.0,),
    compute_s=(0.7,),
    transfer_s=(1.5,),
    wait_s=(0.3,),
    receiving_s=(2.0,),
    copy_s=(0.5,),
    host_s=(6.0,),
    host_bound=True,
)


def timed(traced: TracedTimes) -> Record:
    return made_record(traced_step=traced, step_s=StepSeconds(n=9, mean=1.0, p50=1.0), batch_size=8)


def test_a_case_that_waits_for_its_host_is_marked() -> None:
    records = [timed(ON_GPU)]
    assert mark_words(case_row("single", records, records, SHAPE, None)) == "– not checked, host-bound"
    records = [timed(replace(ON_GPU, host_bound=False))]
    assert mark_words(case_row("single", records, records, SHAPE, None)) == "– not checked"


def test_it_is_warned_of() -> None:
    for traced, kinds in ((ON_GPU, ["host-bound"]), (replace(ON_GPU, host_bound=False), [])):
        records = [timed(traced)]
        rows = [case_row("single", records, records, SHAPE, None)]
        assert [note.kind for note in row_notes(rows)] == kinds


def test_the_host_and_copies_are_parts_of_a_split() -> None:
    split = time_split_of([timed(ON_GPU)])
    assert split is not None
    assert split.host_s is not None
    assert split.copy_s is not None
    assert (split.host_s.value, split.copy_s.value) == (6.0, 0.5)
    assert split.rest_s.value == pytest.approx(10.0 - 0.7 - 1.5 - 6.0 - 0.3)
    assert split.hidden_share is not None
    assert split.hidden_share.value == pytest.approx(0.5), "copies are not from others"
    assert time_split_of([timed(replace(ON_GPU, host_s=()))]) is None


def test_a_record_keeps_them_and_one_from_before_has_none() -> None:
    record = timed(ON_GPU)
    assert from_json(to_json(record)) == record
    document = to_document(replace(record, schema=1))
    traced = document["traced_step"]
    assert isinstance(traced, dict)
    for name in ("copy_s", "host_s", "host_bound"):
        del traced[name]
    assert from_json(json.dumps(document)).traced_step == replace(
        ON_GPU, copy_s=None, host_s=None, host_bound=False
    )
