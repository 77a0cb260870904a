"""Models that nobody here wrote compute under every family what they compute on one device.

By default a model of words meets a covering set of strategies and topologies, and a model of images two of
each; with `--all-cases` all meet all.
"""

import itertools
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(1200)]
pytest.importorskip("tensorflow")

from cases import one_at_a_time
from covering import covering
from real_models import REAL

STRATEGIES = ("all-reduce", "ps", "partitioned-ps", "sharded-update")
TOPOLOGIES = ((2, 1), (1, 2), (2, 2))
IMAGES = [("MobileNetV2", (2, 1), "all-reduce"), ("MobileNetV2", (2, 2), "partitioned-ps")]
WORDS = "bert-like"


def pytest_generate_tests(metafunc):
    if "combination" not in metafunc.fixturenames:
        return
    if metafunc.config.getoption("--all-cases"):
        chosen = list(itertools.product(REAL, TOPOLOGIES, STRATEGIES))
    else:
        factors = {"model": (WORDS,), "topology": TOPOLOGIES, "strategy": STRATEGIES}
        chosen = [*IMAGES, *covering(factors, [("model", "strategy"), ("model", "topology")])]
    chosen = sorted(chosen, key=lambda c: (list(REAL).index(c[0]), c[1]))
    metafunc.parametrize("combination", chosen, ids=lambda c: f"{c[0]}-{'+'.join(map(str, c[1]))}-{c[2]}")


@pytest.fixture(scope="module")
def real(shared: Path):
    return one_at_a_time(lambda name: REAL[name](), shared / "real")


def test_a_real_model_is_trained_as_on_one_device(real, combination):
    name, replicas, strategy = combination
    case = real(name)
    verdict = case.check(case.plan(strategy, replicas))
    assert verdict.equivalent is True, verdict.reason
    # Statistics of two examples of one pixel amplify rounding, but not until anything fits.
    assert verdict.loss.limits.decide
