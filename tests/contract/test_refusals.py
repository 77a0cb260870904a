"""Steps that passes refuse: cases that a run skips, and mistakes of who gave a command the strategy."""

from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from harness.errors import UNSUPPORTED, CaseError, UsageError
from harness.verification.worker.jobs import StoredSteps, verify
from harness.worker.jobs.refusals import dtype_error, refusals_as, strategy_error, unsupported
from harness.worker.jobs.training import open_program
from harness.worker.jobs.transform import Wanted, transform
from harness.worker.process.job import JobState
from strategies.errors import CaptureError, GraphError, StrategyError, UnsupportedError
from strategies.tf_bridge.float64 import Float64Error
from strategies.tf_bridge.snippet import SnippetError

REFUSAL = r"^(strategy: )?accumulate: micro-batches share .*, got 2 in a row; leave it out$"


@pytest.fixture
def refused(cases):
    """Folder of a capture with two updates in a row, and a plan that takes one alone."""
    case = cases.model("adversarial")
    return case, str(cases.folder / "adversarial"), case.plan("all-reduce", (1, 1), accumulate=2)


def test_a_run_skips_the_case(refused):
    _, folder, plan = refused
    with pytest.raises(CaseError, match=REFUSAL) as raised:
        open_program(JobState(), folder, plan, 0)
    assert (raised.value.kind, raised.value.stage) == (UNSUPPORTED, "transform")


def test_transform_says_that_the_strategy_cannot_be_used(refused):
    _, folder, plan = refused
    with pytest.raises(UsageError, match=REFUSAL):
        transform(JobState(), folder, plan, 0, Wanted())


def test_verify_says_that_the_strategy_cannot_be_used(refused, tmp_path: Path):
    case, folder, plan = refused
    for number, parts in enumerate(zip(*case.batches, strict=True)):
        values = np.stack(parts)
        np.save(tmp_path / f"{number}.{values.dtype.name}.npy", values)
    steps = StoredSteps(capture=Path(folder), batches=tmp_path, n_steps=1, float64=True)
    with pytest.raises(UsageError, match=REFUSAL):
        verify(JobState(), steps, plan, False)


@pytest.mark.parametrize("refusal", [StrategyError, UnsupportedError, Float64Error])
def test_refusals_become_the_errors_of_who_asked(refusal):
    for error_of, kind in ((unsupported, CaseError), (strategy_error, UsageError), (dtype_error, UsageError)):
        with pytest.raises(kind, match="leave it out") as raised, refusals_as(error_of):
            raise refusal("leave it out")
        assert isinstance(raised.value.__cause__, refusal)


@pytest.mark.parametrize("mistake", [GraphError, SnippetError, CaptureError, ValueError])
def test_mistakes_of_a_pass_stay_what_they_are(mistake):
    with pytest.raises(mistake, match="not in the graph"), refusals_as(unsupported):
        raise mistake("not in the graph")
