"""Two hundred tries of each strategy with servers, whose reads and assignments are held up at random."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(3600)]
pytest.importorskip("tensorflow")

import races
from cases import Case, one_at_a_time

from harness.verification.worker.in_process import programs_of

N_TRIES = 200


@pytest.fixture(scope="module")
def case_of(tmp_path_factory: pytest.TempPathFactory) -> object:
    return one_at_a_time(lambda name: races.MODELS[name](), Path(tmp_path_factory.mktemp("races")))


@pytest.mark.parametrize("row", races.SERVERS)
@pytest.mark.parametrize("model", races.MODELS)
def test_every_try_computes_what_one_device_computes(case_of, model: str, row: str) -> None:
    case: Case = case_of(model)
    strategy, params = races.SERVERS[row]
    plan = case.plan(strategy, (1, 1), **params)
    assert races.n_wrong(case, plan, programs_of(case.step, plan), N_TRIES) == 0
