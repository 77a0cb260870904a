"""`tpu-pod` where no TPU is: it resolves, and a dry run says what would not run."""

import pytest

from harness import pipeline
from harness.cli.commands.run import planned_table
from harness.cluster import NO_CLUSTER
from harness.errors import UsageError
from harness.experiment.load import load_experiment
from harness.experiment.references import StrategyRef
from harness.experiment.schedule import blocks_of, schedule
from harness.preflight import check_experiment
from harness.requests import RunOptions


def test_all_of_it_has_a_form_for_tpus() -> None:
    spec = load_experiment("tpu-pod")
    check_experiment(spec)
    outcome = pipeline.run(spec, RunOptions(dry_run=True))
    assert {case.shape.device for case in outcome.cases} == {"tpu"}
    assert {case.chosen.strategy.runner_on("tpu") for case in outcome.cases} == {"baseline", "replicas"}
    assert outcome.notes == ()


def test_a_dry_run_names_what_will_be_skipped_on_several_hosts_and_why() -> None:
    spec = load_experiment("tpu-pod")
    strategies = (*spec.strategies[-1:], StrategyRef(name="all-reduce"))
    cluster = spec.cluster.model_copy(update={"workers": (1, 2)})
    several = spec.model_copy(update={"strategies": strategies, "cluster": cluster})
    outcome = pipeline.run(several, RunOptions(dry_run=True))
    elsewhere, own = outcome.notes
    assert elsewhere.startswith("will be skipped: all-reduce: has a form for cpu and gpu alone")
    assert own.startswith(
        "will be skipped: tpu-replicate:device_loop=true: is run on the tpu devices of one host"
    )
    assert outcome.to_document()["notes"] == list(outcome.notes)


def test_a_dry_run_counts_and_marks_what_will_be_skipped() -> None:
    spec = load_experiment("tpu-pod", overrides={"strategies": ["tf-tpu", "all-reduce"]})
    outcome = pipeline.run(spec, RunOptions(dry_run=True))
    table = planned_table(outcome)
    assert [row[-1] for row in table.rows if row[1] == "all-reduce"] == ["skipped"] * 3
    assert table.total == "6 cases, of which 3 will be skipped, 3 repeats of each: 9 to run"
    assert len(outcome.to_document()["planned"]) == 3


def test_with_xla_a_dry_run_refuses_what_xla_compiles_anyway() -> None:
    spec = load_experiment("tpu-pod", settings=["measure.xla=true"])
    with pytest.raises(UsageError, match=r"strategies: no case can be run: .* compare it without xla"):
        pipeline.run(spec, RunOptions(dry_run=True))


def test_one_case_at_a_time_has_the_devices() -> None:
    spec = load_experiment("tpu-pod")
    cases = pipeline.expand(spec)
    assert [len(block) for block in blocks_of(cases)] == [1] * len(cases)
    assert max(len(block) for block in blocks_of(pipeline.expand(load_experiment("tpu-emulated")))) > 1
    slots = schedule(cases, repeats=2, seed=0, interleave=True, is_control=lambda _: False)
    assert [slot.repeat for slot in slots] == [0] * len(cases) + [1] * len(cases)
    assert len({slot.block for slot in slots}) == len(slots)


def test_another_provider_leaves_out_what_the_file_says_of_its_cluster() -> None:
    spec = load_experiment("tpu-pod", overrides={"cluster.provider": "local"})
    assert (spec.cluster.connection, spec.cluster.provider) == (NO_CLUSTER, ("local",))
    assert spec.cluster.device == ("tpu",)
    # What is asked for beside it is refused, not left out.
    with pytest.raises(UsageError, match="is of the cluster provider, got it with local"):
        load_experiment("tpu-pod", overrides={"cluster.provider": "local", "cluster.address": "head:1"})
    emptied = load_experiment("tpu-pod", overrides={"cluster.provider": "local", "cluster.address": None})
    assert emptied.cluster.connection == NO_CLUSTER


def test_it_compares_what_has_a_form_for_tpus_on_all_chips_of_one_host() -> None:
    spec = load_experiment("tpu-pod")
    emulated = load_experiment("tpu-emulated")
    assert spec.workloads == emulated.workloads
    assert all(case.chosen.strategy.lacks("tpu") is None for case in pipeline.expand(spec))
    assert (spec.cluster.workers, spec.cluster.replicas_per_worker) == ((1,), (4,))


def test_nothing_is_said_of_experiments_elsewhere() -> None:
    spec = load_experiment("quickstart")
    assert pipeline.run(spec, RunOptions(dry_run=True)).notes == ()
