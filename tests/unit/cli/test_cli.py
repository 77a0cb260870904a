"""The whole command line, with the registries and the pipeline replaced by small ones."""

import json
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from _pytest.capture import CaptureResult

import harness
import reports
import strategies
from harness.cli import main
from harness.cli.app import _COMMANDS
from harness.cli.planned import planned_table
from harness.errors import CaseError, MissingError
from harness.matrix import expand
from harness.options import PlanRequest, RunOptions, RunOutcome, Target, TransformRequest, VerifyRequest
from harness.provision import doctor
from harness.refs import StrategyRef, WorkloadRef
from harness.resolve import resolve
from harness.spec import ExperimentSpec
from strategies.errors import StrategyError
from strategies.registry import KNOBS, STRATEGIES

_STRATEGIES = ("single", "none", "ps", "all-reduce", "tf-multi-worker-mirrored")


class _Pipeline(ModuleType):
    """Stands in for `harness.pipeline`: notes what it is asked and answers in the contract's shapes."""

    def __init__(self) -> None:
        super().__init__("harness.pipeline")
        self.asked: list[Any] = []
        self.raises: BaseException | None = None
        self.equivalent: bool | None = True
        self.outcome = RunOutcome(run_dir=Path("runs/x"), report=Path("runs/x/report.html"), n_ok=3)

    def _note(self, *asked: Any) -> None:
        self.asked.append(asked[0] if len(asked) == 1 else asked)
        print("chatter of a user's workload")  # noqa: T201
        if self.raises is not None:
            raise self.raises

    def run(self, spec: ExperimentSpec, options: RunOptions) -> RunOutcome:
        self._note(spec, options)
        return self.outcome

    def verify(self, request: VerifyRequest) -> Mapping[str, object]:
        self._note(request)
        return {
            "workload": "wide-mlp",
            "strategy": "ps",
            "strategy_params": {},
            "class": "exact",
            "workers": 2,
            "replicas": 1,
            "steps": 4,
            "dtype": "float64",
            "equivalent": self.equivalent,
            "max_update_error": 3e-16,
            "noise_floor": float("nan"),
            "tolerance": 5.7e-14,
            "variables": [
                {"name": f"v{index}", "kind": "slot", "update_error": index * 1e-16} for index in range(9)
            ],
            "loss": [2.0],
            "reference_loss": [2.0],
        }

    def plan(self, request: PlanRequest) -> Mapping[str, object]:
        self._note(request)
        node = {
            "variable": "dense/kernel",
            "shape": [64, 1200],
            "dtype": "float32",
            "bytes": 307200,
            "sparse": False,
            "partition": {
                "axis": 0,
                "sizes": [32, 32],
                "destinations": [0, 1],
                "groups": None,
                "owners": None,
            },
            "synchronizer": "ps",
            "destination": "worker:0",
            "group": None,
        }
        return {
            "workload": "wide-mlp",
            "strategy": "ps",
            "nodes": [node],
            "payload_bytes_per_step": 614400,
            "server_bytes": [307200, 0],
            "worker_bytes": {"worker:1": 614400},
            "statistics": [{"layer": "norm_0", "bytes": 256}, {"layer": "norm_1", "bytes": 512}],
            "notes": ["one variable stays whole"],
        }

    def transform(self, request: TransformRequest) -> Mapping[str, object]:
        self._note(request)
        document = {
            "nodes_before": 10,
            "nodes_after": 24,
            "passes": [{"name": "replicate", "seconds": 0.01, "nodes": 20}],
            "seconds": 0.01,
        }
        return {**document, "text": "node a\nnode b\n"} if request.text else document


@pytest.fixture(autouse=True)
def pipeline(monkeypatch: pytest.MonkeyPatch) -> _Pipeline:
    def resolve(name: str, params: Mapping[str, object]) -> object:
        if name not in _STRATEGIES:
            raise StrategyError(f"strategy {name!r} is not known; known: {', '.join(_STRATEGIES)}")
        return SimpleNamespace(name=name), params

    registry = ModuleType("strategies.registry")
    registry.resolve = resolve  # type: ignore[attr-defined]
    # What is imported meanwhile, and stays, must find the real ones.
    registry.STRATEGIES, registry.KNOBS = STRATEGIES, KNOBS  # type: ignore[attr-defined]
    registry.describe = lambda: [  # type: ignore[attr-defined]
        {
            "name": name,
            "summary": "s",
            "class": "exact",
            "params": [{"name": "sync", "type": "bool", "default": True}],
        }
        for name in _STRATEGIES
    ]
    fake = _Pipeline()
    table = SimpleNamespace(
        title="wide-mlp", columns=("strategy", "ms"), rows=(("ps", "4"),), verdict=("v",), notes=("n",)
    )
    monkeypatch.setattr(reports, "summarize", lambda run_dirs: [table])
    for package, name, module in ((strategies, "registry", registry), (harness, "pipeline", fake)):
        monkeypatch.setitem(sys.modules, f"{package.__name__}.{name}", module)
        monkeypatch.setattr(package, name, module, raising=False)
    return fake


def _call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, CaptureResult[str]]:
    status = main(arguments)
    return status, capsys.readouterr()


def _document(captured: CaptureResult[str]) -> Any:
    return json.loads(captured.out, parse_constant=pytest.fail)


@pytest.mark.parametrize("name", [name for name, _, _ in _COMMANDS])
def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str], name: str) -> None:
    status, captured = _call(capsys, name, "--help")
    assert status == 0
    assert f"Example: stratbench {name}" in captured.out
    assert "--json" in captured.out
    assert "--debug" in captured.out


def test_help_names_what_is_there_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    status, captured = _call(capsys)
    commands = captured.out.partition("Commands:")[2].partition("Example:")[0]
    assert status == 0
    assert [line.split()[0] for line in commands.strip().splitlines()] == [name for name, _, _ in _COMMANDS]


@pytest.mark.parametrize("kind", ["strategies", "workloads", "providers", "compressors", "experiments"])
def test_lists_are_arrays_of_what_the_contract_says(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    status, captured = _call(capsys, "list", kind, "--json")
    rows = _document(captured)
    assert status == 0
    assert rows
    for row in rows:
        assert {"name", "summary", "params"} <= set(row) <= {"name", "summary", "params", "class"}
        assert all({"name", "type", "default"} <= set(item) for item in row["params"])
    status, captured = _call(capsys, "list", kind)
    assert status == 0
    assert all(row["name"] in captured.out for row in rows)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["frob"], "stratbench: No such command 'frob'"),
        (["list", "foo"], "stratbench: Invalid value for"),
        (["list"], "stratbench: Missing argument"),
        (["run", "quickstart", "--wokers", "3"], "stratbench: No such option: --wokers"),
        (["run", "quickstart", "--workers", "x"], "stratbench: Invalid value for '--workers'"),
        (
            ["run", "quickstart", "--workers", "0"],
            "stratbench: cluster.workers: must be greater than or equal to 1",
        ),
        (
            ["run", "quickstrat"],
            "stratbench: experiment: must be a file or a shipped experiment, got 'quickstrat'",
        ),
        (
            ["run", "quickstart", "--strategies", "ps,,"],
            "stratbench: strategies: a comma list must have a name",
        ),
        (
            ["run", "quickstart", "--strategies", "ps,pss"],
            "stratbench: strategies[1]: strategy 'pss' is not known",
        ),
        (
            ["run", "quickstart", "--workloads", "mlp"],
            "stratbench: workloads[0]: workload 'mlp' is not known",
        ),
        (["run", "quickstart", "--workloads", "no.py:f"], "stratbench: workloads[0]: workload file no.py"),
        (
            ["run", "quickstart", "--provider", "dockr"],
            "stratbench: cluster.provider: must be 'local' or 'docker' or 'cluster', got 'dockr'",
        ),
        (
            ["run", "quickstart", "--warmup", "soon"],
            "stratbench: measure.warmup_steps: must be 'auto' or a valid",
        ),
        (["run", "quickstart", "--set", "x"], "stratbench: set: must be dotted.path=value"),
        (["run", "quickstart", "--resume"], "stratbench: resume: must be used with --out"),
        *(
            (
                [*command, "--no-isolation", "--require-isolation"],
                "stratbench: no-isolation: must not be given",
            )
            for command in (["run", "quickstart"], ["verify", "wide-mlp", "-s", "ps"])
        ),
        (
            ["run", "quickstart", "--time-budget", "soon"],
            "stratbench: time-budget: must be a time such as 90s",
        ),
        (["run", "quickstart", "--time-budget", "0s"], "stratbench: time-budget: must be a time such as 90s"),
        (
            ["verify", "wide-mlp"],
            "stratbench: strategy: must be given, or --plan FILE in its place, got neither",
        ),
        (
            ["transform", "wide-mlp", "-s", "ps", "--plan", "x.json"],
            "stratbench: strategy: must be given, or --plan FILE in its place, got both",
        ),
        (["plan", "wide-mlp", "--plan", "x.txt"], "stratbench: plan: must be a path that ends in .json"),
        (
            ["plan", "wide-mlp", "--plan", "no.json"],
            "stratbench: plan no.json: must be a file that can be read",
        ),
        (["run", "quickstart", "--plan", "no.json"], "stratbench: plan no.json: must be a file that can be"),
        (["verify", "wide-mlp", "-s", "no.py:B"], "stratbench: strategy: strategy file no.py does not exist"),
        (
            ["verify", "wide-mlp", "-s", "no.py"],
            "stratbench: strategy: a file must be given as path.py:Builder",
        ),
        (
            ["verify", "wide-mlp", "--strategy", "ps,none"],
            "stratbench: strategy: must be one strategy, got 'ps,none'",
        ),
        (["verify", "wide-mlp", "--strategy", "pss"], "stratbench: strategy: strategy 'pss' is not known"),
        (["verify", "mlp", "--strategy", "ps"], "stratbench: workload: workload 'mlp' is not known"),
        (
            ["verify", "wide-mlp", "--strategy", "ps", "--dtype", "half"],
            "stratbench: Invalid value for '--dtype'",
        ),
        (
            ["transform", "wide-mlp", "--strategy", "ps", "--rank", "2"],
            "stratbench: rank: must be below the number",
        ),
        (
            ["transform", "wide-mlp", "-s", "ps", "--text", "--graphdef", "x"],
            "stratbench: graphdef: must not be given",
        ),
        (
            ["transform", "wide-mlp", "-s", "ps", "--graphdef", "no/x.pb"],
            "stratbench: graphdef: must lie in a folder",
        ),
        (["report", "nowhere"], "stratbench: run_dir: must be a run folder"),
        (["report", "a", "b"], "stratbench: out: must be given for an HTML report of several runs"),
        (["report", "a", "--format", "md", "--open"], "stratbench: open: must be used with --format html"),
    ],
)
def test_a_mistake_costs_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    status, captured = _call(capsys, *arguments)
    assert status == 2
    assert captured.out == ""
    assert captured.err.startswith(expected)
    assert captured.err.count("\n") == 1

    status, captured = _call(capsys, *arguments, "--json")
    error = _document(captured)["error"]
    assert status == 2
    assert set(error) == {"type", "message", "field"}
    assert error["message"] in captured.err.replace("\n", " ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["list"],
            "strategies, workloads, providers, compressors, experiments; see `stratbench list --help`",
        ),
        (["list", "mice"], "see `stratbench list --help`"),
        (["run", "quickstart", "--fast"], "see `stratbench run --help`"),
        (["clean", "--keep"], "see `stratbench clean --help`"),
        (["mice"], "see `stratbench --help`"),
    ],
)
def test_a_mistake_on_the_command_line_names_the_help_that_tells_more(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    status, captured = _call(capsys, *arguments)
    assert (status, captured.err.count("\n")) == (2, 1)
    assert captured.err.endswith(f"{told}\n")


def test_run_hands_over_the_spec_and_the_options(
    capsys: pytest.CaptureFixture[str], pipeline: _Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SECRET", "x")
    arguments = (
        "--workers 3 --replicas 2 --workloads wide_mlp --strategies ps:staleness=2,sync=true,all_reduce"
    )
    more = "--steps 5 --warmup 1 --repeats 2 --set measure.seed=7 --out here"
    flags = "--resume --fail-fast --time-budget 1h1m --checkpoint --restore /there"
    status, captured = _call(
        capsys, "run", "quickstart", *arguments.split(), *more.split(), *flags.split(), "--json"
    )
    spec, options = pipeline.asked[0]
    assert status == 0
    assert (spec.cluster.workers, spec.cluster.replicas_per_worker) == ((3,), (2,))
    assert spec.workloads == (WorkloadRef(reference="wide-mlp"),)
    assert [str(ref) for ref in spec.strategies] == ["ps:staleness=2,sync=true", "all-reduce"]
    assert (spec.measure.steps, spec.measure.warmup_steps, spec.measure.repeats, spec.measure.seed) == (
        5,
        1,
        2,
        7,
    )
    assert (options.out, options.resume, options.fail_fast, options.dry_run) == (
        Path("here"),
        True,
        True,
        False,
    )
    assert (options.time_budget_s, options.quiet) == (3660.0, True)
    assert (spec.checkpoint.save, spec.checkpoint.restore) == (True, Path("/there"))
    assert options.environ["OMP_NUM_THREADS"] == "3"
    assert "SECRET" not in options.environ
    assert "baseline single is not among the strategies given" in captured.err


@pytest.mark.parametrize("command", [["run", "quickstart"], ["verify", "wide-mlp", "-s", "ps"]])
def test_the_process_of_another_program_stays_on_its_network(
    capsys: pytest.CaptureFixture[str], pipeline: _Pipeline, command: list[str]
) -> None:
    before = Path("/proc/self/ns/net").readlink()
    assert _call(capsys, *command)[0] == 0
    status, captured = _call(capsys, *command, "--require-isolation")
    assert (status, captured.out, captured.err.count("\n")) == (3, "", 1)
    assert captured.err.startswith(
        "stratbench: require-isolation: a network namespace must be had, got none: "
    )
    assert Path("/proc/self/ns/net").readlink() == before
    assert len(pipeline.asked) == 1


def test_a_sweep_over_local_and_containers_stays_where_containers_are_reached(
    capsys: pytest.CaptureFixture[str], pipeline: _Pipeline
) -> None:
    command = ["run", "quickstart", "--set", "cluster.provider=[local,docker]"]
    assert _call(capsys, *command)[0] == 0
    assert [options.exposure for _, options in pipeline.asked] == ["provider docker needs the host's network"]
    status, captured = _call(capsys, *command, "--require-isolation")
    assert (status, captured.out, captured.err.count("\n")) == (3, "", 1)
    assert "must be had, got none: provider docker needs the host's network" in captured.err
    assert len(pipeline.asked) == 1


def test_a_run_is_told_why_it_can_be_reached(capsys: pytest.CaptureFixture[str], pipeline: _Pipeline) -> None:
    assert _call(capsys, "run", "quickstart", "--no-isolation")[0] == 0
    assert _call(capsys, "run", "quickstart", "--dry-run")[0] == 0
    assert [options.exposure for _, options in pipeline.asked] == ["--no-isolation was given", None]


def test_metrics_have_a_port_on_loopback(capsys: pytest.CaptureFixture[str], pipeline: _Pipeline) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, captured = _call(capsys, "run", "quickstart", "--metrics-port", port)
        assert (status, captured.err.count("\n")) == (2, 1)
        assert captured.err.startswith("stratbench: metrics_port: must be a free port of 127.0.0.1, got ")
    assert _call(capsys, "run", "quickstart", "--metrics-port", port)[0] == 0
    ((_, options),) = pipeline.asked
    with options.metrics as listener:
        assert listener.getsockname() == ("127.0.0.1", int(port))


def test_json_is_one_document_whatever_a_workload_prints(capsys: pytest.CaptureFixture[str]) -> None:
    status, captured = _call(capsys, "run", "quickstart", "--json")
    assert status == 0
    assert _document(captured) == {
        "run_dir": "runs/x",
        "report": "runs/x/report.html",
        "cases": {"ok": 3, "failed": 0, "skipped": 0, "implausible": 0},
        "exit_status": 0,
    }
    assert "chatter" in captured.err


def test_a_failed_case_is_status_1(capsys: pytest.CaptureFixture[str], pipeline: _Pipeline) -> None:
    pipeline.outcome = RunOutcome(run_dir=Path("r"), n_ok=1, n_failed=2, exit_status=1)
    status, captured = _call(capsys, "run", "quickstart")
    assert status == 1
    assert "wide-mlp\nstrategy  ms\nps        4\nv\nn\n\nrepeats: 1 ok, 2 failed\n" in captured.out


def test_a_dry_run_says_what_it_would_run(capsys: pytest.CaptureFixture[str], pipeline: _Pipeline) -> None:
    cases = expand(
        resolve(
            {
                "name": "x",
                "workloads": ["wide-mlp"],
                "strategies": ["single", "ps:staleness=2"],
                "cluster": {"workers": [2, 4]},
            }
        )
    )
    pipeline.outcome = RunOutcome(run_dir=None, cases=cases, n_repeats=3)
    status, captured = _call(capsys, "run", "quickstart", "--dry-run")
    assert status == 0
    assert captured.out.splitlines()[1:] == [
        "workload  strategy        workers x replicas  repeats",
        "wide-mlp  single          1 x 1               3",
        "wide-mlp  ps:staleness=2  2 x 1               3",
        "wide-mlp  ps:staleness=2  4 x 1               3",
        "",
        "3 cases, 3 repeats of each: 9 to run",
    ]
    assert pipeline.asked[0][1].dry_run
    status, captured = _call(capsys, "run", "quickstart", "--dry-run", "--json")
    assert json.loads(captured.out)["planned"] == [case.id for case in cases]


@pytest.mark.parametrize(
    ("cluster", "column", "cells"),
    [
        ({"cores_per_worker": [1, 2]}, "cores per worker", {"1", "2"}),
        ({"memory_per_worker": ["512MiB", "4GiB"]}, "memory per worker", {"0.5 GiB", "4 GiB"}),
        ({"link": {"rate_mbit": [100, None]}}, "links", {"100 Mbit/s", "no limit"}),
        (
            {"link": {"rate_mbit": [100, None], "burst_kb": 32, "workers": {1: {"rate_mbit": 10}}}},
            "links",
            {"100 Mbit/s, 10 Mbit/s, burst 32 kB", "no limit, 10 Mbit/s, burst 32 kB"},
        ),
    ],
)
def test_a_dry_run_tells_apart_what_is_swept(cluster: dict[str, Any], column: str, cells: set[str]) -> None:
    document = {"name": "x", "workloads": ["wide-mlp"], "strategies": ["ps"]}
    cases = expand(resolve({**document, "cluster": {"provider": "docker", **cluster}}))
    planned = planned_table(cases, n_repeats=1)
    assert planned.columns[-2] == column
    assert {row[-2] for row in planned.rows} == cells
    assert planned.count == "2 cases, 1 repeat of each: 2 to run"


@pytest.mark.parametrize(
    "command",
    ["run quickstart", "verify wide-mlp -s ps", "plan wide-mlp -s ps", "transform wide-mlp -s ps"],
)
def test_only_who_waits_at_a_terminal_is_told_what_goes_on(
    capsys: pytest.CaptureFixture[str], pipeline: _Pipeline, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    _call(capsys, *command.split())
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    _call(capsys, *command.split())
    _call(capsys, *command.split(), "--json")
    asked = [item[1] if isinstance(item, tuple) else item for item in pipeline.asked]
    assert [request.live for request in asked] == [False, True, False]


def test_verify_asks_as_told(capsys: pytest.CaptureFixture[str], pipeline: _Pipeline) -> None:
    status, captured = _call(capsys, "verify", "wide-mlp", "--strategy", "ps")
    target = Target(workload=WorkloadRef(reference="wide-mlp"), strategy=StrategyRef(name="ps"))
    assert pipeline.asked == [VerifyRequest(target=target, steps=4, dtype=None)]
    assert (target.workers, target.replicas) == (2, 1)
    assert status == 0
    shown = captured.out.partition("\n")[2]
    assert shown.startswith("EQUIVALENT: ps (exact) on wide-mlp, 2 workers x 1 replicas, 4 steps in float64")
    assert "tolerance 5.7e-14, noise floor nan" in shown
    assert [line.split()[0] for line in shown.splitlines()[3:]] == ["v8", "v7", "v6", "v5", "v4"]


@pytest.mark.parametrize(
    ("equivalent", "word", "expected"), [(False, "NOT EQUIVALENT", 1), (None, "NOT COMPARED", 0)]
)
def test_verify_that_fails_prints_its_document_all_the_same(
    capsys: pytest.CaptureFixture[str], pipeline: _Pipeline, equivalent: bool | None, word: str, expected: int
) -> None:
    pipeline.equivalent = equivalent
    status, captured = _call(capsys, "verify", "wide-mlp", "--strategy", "ps", "--json")
    assert (status, _document(captured)["equivalent"]) == (expected, equivalent)
    assert _document(captured)["noise_floor"] is None
    status, captured = _call(capsys, "verify", "wide-mlp", "--strategy", "ps")
    assert status == expected
    assert f"{word}: ps" in captured.out


def test_plan_shows_places_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    status, captured = _call(capsys, "plan", "wide-mlp", "--strategy", "ps")
    assert status == 0
    assert "dense/kernel  64x1200  307 kB  axis 0: 32, 32; destinations 0, 1  ps" in captured.out
    assert "614 kB per step" in captured.out
    assert "among it statistics of 2 layers: 768 B in each replica" in captured.out
    assert "server bytes: 0: 307 kB, 1: 0 B" in captured.out
    assert "worker bytes: worker:1 614 kB" in captured.out
    assert "note: one variable stays whole" in captured.out


def test_transform_shows_passes_or_text(capsys: pytest.CaptureFixture[str], pipeline: _Pipeline) -> None:
    status, captured = _call(capsys, "transform", "wide-mlp", "-s", "ps", "--rank", "1")
    assert status == 0
    assert pipeline.asked[0].rank == 1
    assert "replicate" in captured.out
    assert "10 nodes became 24 in 0.01 s" in captured.out
    status, captured = _call(capsys, "transform", "wide-mlp", "-s", "ps", "--text")
    assert captured.out.endswith("node a\nnode b\n")


def test_report_goes_where_it_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        reports, "render", lambda run_dirs, kind: f"{kind} of {len(run_dirs)}\n", raising=False
    )
    status, captured = _call(capsys, "report", "a", "b", "--format", "csv")
    assert (status, captured.out) == (0, "csv of 2\n")
    out = tmp_path / "all.html"
    status, captured = _call(capsys, "report", "a", "b", "--out", str(out))
    assert (status, captured.out, out.read_text()) == (0, f"report: {out}\n", "html of 2\n")
    status, captured = _call(capsys, "report", "a", "--out", "/proc/x/y.html")
    assert status == 2
    assert captured.err.startswith("stratbench: out: must be writable")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (MissingError("no namespaces here; run as root"), 3, "stratbench: no namespaces here; run as root\n"),
        (
            CaseError("nan-loss", "loss was NaN at step 3", stage="run"),
            1,
            "stratbench: loss was NaN at step 3\n",
        ),
        (StrategyError("no\ngood"), 2, "stratbench: no good\n"),
        (
            ModuleNotFoundError("No module named 'ray'", name="ray"),
            3,
            "stratbench: the Python module 'ray' is not",
        ),
        (
            ValueError("oops\x1b[2J"),
            1,
            "stratbench: unexpected ValueError: oops\\x1b[2J; report the traceback",
        ),
        (
            PermissionError(13, "Permission denied", "/x"),
            2,
            "stratbench: /x must be usable, got: Permission denied",
        ),
        (KeyboardInterrupt(), 130, "stratbench: interrupted\n"),
        (SystemExit(15), 130, "stratbench: interrupted\n"),
    ],
)
def test_what_goes_wrong_below_costs_one_line_and_its_status(
    capsys: pytest.CaptureFixture[str], pipeline: _Pipeline, error: BaseException, status: int, line: str
) -> None:
    pipeline.raises = error
    got, captured = _call(capsys, "run", "quickstart")
    assert got == status
    assert captured.err.startswith(line)
    assert captured.err.count("\n") == 1
    got, captured = _call(capsys, "run", "quickstart", "--json")
    assert got == status
    assert "error" in _document(captured)


def test_debug_shows_the_traceback_and_its_notes(
    capsys: pytest.CaptureFixture[str], pipeline: _Pipeline
) -> None:
    pipeline.raises = CaseError("worker-died", "worker 1 died", stage="run")
    pipeline.raises.add_note("last lines of its log")
    _, captured = _call(capsys, "run", "quickstart", "--debug")
    assert "Traceback" in captured.err
    assert "last lines of its log" in captured.err
    assert captured.err.endswith("stratbench: worker 1 died\n")


def test_doctor_is_status_3_when_something_required_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = doctor.Check(name="ray", ok=False, detail="not installed", way_out="run `make setup`")
    limited = doctor.Check(name="cores", ok=False, detail="1 usable", way_out="allow 2", required=False)
    monkeypatch.setattr(doctor, "checks", lambda: [limited])
    status, captured = _call(capsys, "doctor", "--json")
    assert (status, _document(captured)["ok"]) == (0, True)
    monkeypatch.setattr(doctor, "checks", lambda: [limited, missing])
    status, captured = _call(capsys, "doctor")
    assert status == 3
    assert "run `make setup`" in captured.out
