"""`tpu-pod` where no TPU is: it resolves, and a dry run says what would not run."""

from dataclasses import replace

from harness import pipeline
from harness.experiment.references import StrategyRef
from harness.experiment.resolve import load_experiment
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
    several = replace(spec, strategies=strategies, cluster=replace(spec.cluster, workers=(2,)))
    outcome = pipeline.run(several, RunOptions(dry_run=True))
    elsewhere, own = outcome.notes
    assert elsewhere.startswith("will be skipped: all-reduce: has a form for cpu and gpu alone")
    assert own.startswith(
        "will be skipped: tpu-replicate:device_loop=true: is run on the tpu devices of one host"
    )
    assert outcome.to_document()["notes"] == list(outcome.notes)


def test_it_compares_what_has_a_form_for_tpus_on_all_chips_of_one_host() -> None:
    spec = load_experiment("tpu-pod")
    emulated = load_experiment("tpu-emulated")
    assert spec.workloads == emulated.workloads
    assert all(case.chosen.strategy.lacks("tpu") is None for case in pipeline.expand(spec))
    assert (spec.cluster.workers, spec.cluster.replicas_per_worker) == ((1,), (4,))


def test_nothing_is_said_of_experiments_elsewhere() -> None:
    spec = load_experiment("quickstart")
    assert pipeline.run(spec, RunOptions(dry_run=True)).notes == ()
