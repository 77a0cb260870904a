"""`tpu-pod` where no TPU is: it resolves, and a dry run says what will not run."""

from harness import pipeline
from harness.experiment.resolve import load_experiment
from harness.preflight import check_experiment
from harness.requests import RunOptions


def test_a_dry_run_names_what_will_be_skipped_and_why() -> None:
    spec = load_experiment("tpu-pod")
    check_experiment(spec)
    outcome = pipeline.run(spec, RunOptions(dry_run=True))
    assert {case.shape.device for case in outcome.cases} == {"tpu"}
    skipped, resharded = outcome.notes
    assert skipped.startswith("will be skipped: tpu-replicate: ")
    assert resharded.startswith("will be skipped: tpu-replicate:reshard=true: ")
    assert all("validated offline only" in note and "tf-tpu" in note for note in outcome.notes)
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
