"""The job of `transform` on a shipped workload: the graph of a worker, and its way there."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from graph_text import exact_text, from_text

from harness.cluster import ClusterShape
from harness.errors import UsageError
from harness.experiment.cases import Case
from harness.experiment.references import StrategyRef, WorkloadRef
from harness.verification.worker.capture import capture
from harness.worker.jobs.transform import Wanted, transform
from harness.worker.process.job import JobState
from harness.worker.session.capture_store import load_step
from strategies.passes.pass_order import passes_of
from strategies.plan.schema import Plan
from strategies.registry import make_plan
from strategies.topology import Topology


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan]:
    folder = tmp_path_factory.mktemp("captured")
    case = Case(
        id="",
        workload=WorkloadRef(reference="digits-mlp"),
        strategy=StrategyRef(name="ps"),
        shape=ClusterShape(workers=2),
    )
    facts = capture(JobState(), case, 0, str(folder), 2, 0, None)
    topology = Topology(replicas_per_task=(1, 1), batch_size=facts.batch_size)
    return folder, make_plan("ps", {}, facts.summary, topology)


def test_every_stage_is_written_as_text_and_for_tensorboard(
    captured: tuple[Path, Plan], tmp_path: Path
) -> None:
    folder, plan = captured
    stages = tmp_path / "new" / "stages"
    transformation = transform(JobState(), str(folder), plan, 1, Wanted(stages=stages, text=True))
    names = ["captured", *(rewrite.name for rewrite in passes_of(plan, 1))]
    texts = sorted(stages.glob("*.txt"))
    assert [path.stem for path in texts] == [f"{number:02}-{name}" for number, name in enumerate(names)]
    assert texts[-1].read_text() == transformation.text
    for path in texts:
        (events,) = path.with_suffix("").iterdir()
        graphs = [
            tf.compat.v1.GraphDef.FromString(event.graph_def)
            for event in tf.compat.v1.train.summary_iterator(str(events))
            if event.graph_def
        ]
        (graph,) = graphs
        in_text = [line.partition(" = ")[0] for line in path.read_text().partition("\n\n")[0].splitlines()]
        assert [node.name for node in graph.node] == [name for name in in_text if not name.startswith("#")]


def test_a_captured_step_comes_back_from_its_text(captured: tuple[Path, Plan]) -> None:
    graph = load_step(captured[0]).graph
    assert from_text(exact_text(graph)) == graph


def test_what_cannot_be_written_is_a_mistake_of_the_user(captured: tuple[Path, Plan], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wanted in (Wanted(stages=tmp_path / "file" / "x"), Wanted(graphdef=tmp_path / "file" / "x.pb")):
        with pytest.raises(UsageError, match=r"must be writable, got .* for "):
            transform(JobState(), str(captured[0]), captured[1], 0, wanted)
