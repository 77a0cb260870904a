"""Exit status and message of a mistake, or of a failure below, on the command line."""

import pytest
from called import Pipeline, call, document

from harness.errors import CaseError, MissingError
from strategies.errors import StrategyError


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["frob"], "stratbench: No such command 'frob'"),
        (["list", "foo"], "stratbench: Invalid value for"),
        (["list"], "stratbench: Missing argument"),
        (["run", "quickstart", "--wokers", "3"], "stratbench: No such option: --wokers"),
        (["run", "quickstart", "--workers", "x"], "stratbench: Invalid value for '--workers'"),
        (
            ["run", "quickstart", "--replicas", "1,x"],
            "stratbench: Invalid value for '--replicas': must be a whole number, got '1,x'; see",
        ),
        (["report", "a", "--notes", "--out", "x"], "stratbench: notes: must be used without --out"),
        (
            ["run", "quickstart", "--steps", "few"],
            "stratbench: Invalid value for '--steps': must be a whole number, got 'few'; see",
        ),
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
            "stratbench: measure.warmup_steps: must be 'auto' or a whole number",
        ),
        (["run", "quickstart", "--set", "x"], "stratbench: set: must be dotted.path=value"),
        (["run", "quickstart", "--resume"], "stratbench: resume: must be used with --out"),
        (
            ["run", "quickstart", "--set", "measure.steps=5", "--set", "measure.steps=6"],
            "stratbench: set measure.steps: must be set once, got it again; drop one",
        ),
        *(
            (
                [*command, "--no-isolation", "--require-isolation"],
                "stratbench: no-isolation: must not be given",
            )
            for command in (
                ["run", "quickstart"],
                ["verify", "wide-mlp", "-s", "ps"],
                ["recommend", "wide-mlp"],
            )
        ),
        *(
            (
                [command, "wide-mlp", "-s", "ps", "--share-gpus"],
                "stratbench: share-gpus: is for --device gpu, got it with cpu; drop it",
            )
            for command in ("verify", "plan")
        ),
        (["tune", "wide-mlp"], "stratbench: tune is now recommend; see `stratbench recommend --help`"),
        (["recommend", "mlp"], "stratbench: workloads[0]: workload 'mlp' is not known"),
        (
            ["recommend", "quickstart"],
            "stratbench: workload: must be one of digits-cnn:batch_size=512, wide-mlp",
        ),
        (
            ["recommend", "quickstart", "--workload", "mlp"],
            "stratbench: workloads[0]: workload 'mlp' is not known",
        ),
        (
            ["recommend", "wide-mlp", "--workload", "dlrm"],
            "stratbench: workload: is for an experiment or a run",
        ),
        (["recommend", "wide-mlp", "-s", "pss"], "stratbench: strategies: strategy 'pss' is not known"),
        (["recommend", "wide-mlp", "--workers", "1"], "stratbench: workers: must be 2 or more, got 1"),
        (["recommend", "wide-mlp", "--goal", "fun"], "stratbench: Invalid value for '--goal'"),
        (["recommend", "wide-mlp", "--seconds", "0"], "stratbench: Invalid value for '--seconds'"),
        (["recommend", "wide-mlp", "--out", "x.txt"], "stratbench: out: must be a path that ends in"),
        (["recommend", "wide-mlp", "--link", "fast"], "stratbench: link: needs rates with a unit"),
        (
            ["recommend", "wide-mlp", "--workers", "64", "--measure"],
            "stratbench: measure: needs the workers and links of the experiment, got cluster.workers 2",
        ),
        (
            ["recommend", "wide-mlp", "--link", "1gbit", "--measure"],
            "stratbench: measure: needs the workers and links of the experiment, got cluster.link.rate_mbit",
        ),
        (
            ["recommend", "wide-mlp", "--set", "measure.sede=1"],
            "stratbench: measure.sede: unknown key",
        ),
        (
            ["recommend", "wide-mlp", "--set", "cluster.cores_per_worker=[1,2]"],
            "stratbench: cluster.cores_per_worker: must be one number for predictions, got 1, 2",
        ),
        (["recommend", "."], "stratbench: run_dir: must be a run folder"),
        (
            ["run", "quickstart", "--time-budget", "soon"],
            "stratbench: time-budget: must be a time such as 90s",
        ),
        (["run", "quickstart", "--time-budget", "0s"], "stratbench: time-budget: must be a time such as 90s"),
        *(
            ([*command, "--timeout-factor", "0"], "stratbench: timeout-factor: must be a number from 0.1 to")
            for command in (["run", "quickstart"], ["plan", "wide-mlp", "-s", "ps"])
        ),
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
        (["verify", "wide-mlp", "-s", "no.py:B"], "stratbench: strategy file no.py does not exist"),
        (
            ["verify", "wide-mlp", "-s", "no.py"],
            "stratbench: strategy: a file must be given as path.py:Builder",
        ),
        (
            ["verify", "wide-mlp", "--strategy", "ps,none"],
            "stratbench: strategy: must be one strategy, got 'ps,none'",
        ),
        (["verify", "wide-mlp", "--strategy", "pss"], "stratbench: strategy 'pss' is not known"),
        (["verify", "mlp", "--strategy", "ps"], "stratbench: workload 'mlp' is not known"),
        (
            ["verify", "wide-mlp", "--strategy", "ps", "--dtype", "half"],
            "stratbench: Invalid value for '--dtype'",
        ),
        *(
            (["plan", "wide-mlp", "-s", "ps", "--slice", name], f"stratbench: slice: {message}")
            for name, message in (
                ("v4", "must be ACCELERATOR:TOPOLOGY, a generation and its chips along each axis, got 'v4'"),
                ("v44:2x2x2", "generation 'v44' is not known; did you mean 'v4'?"),
                ("v4:3x3x3", "must have a shape that v4 comes in, got 3x3x3; use 2x2x1, "),
                ("v4:2x2x2", "must have a device for each replica, got 8 of v4:2x2x2 for 2; give --workers"),
            )
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
            ["transform", "wide-mlp", "-s", "ps", "--graphdef", "/etc/passwd/x.pb"],
            "stratbench: graphdef: /etc/passwd/x.pb cannot be written: ",
        ),
        (
            ["transform", "wide-mlp", "-s", "ps", "--stages", "/etc"],
            "stratbench: stages: must be a new or an empty folder, got '/etc'",
        ),
        (["report", "nowhere"], "stratbench: run_dir: must be a run folder"),
        (["report", "a", "b"], "stratbench: out: must name a file for the HTML report of several runs"),
        (["report", "a", "--format", "md", "--open"], "stratbench: open: must be used with --format html"),
        (
            ["run", "quickstart", "--strategies", "single", "--strategies=ps"],
            "stratbench: strategies: must be given once, got it 2 times",
        ),
        (
            ["verify", "wide-mlp", "-s", "ps", "--strategy", "ps"],
            "stratbench: strategy: must be given once, got it 2 times",
        ),
    ],
)
def test_a_mistake_costs_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    status, captured = call(capsys, *arguments)
    assert status == 2
    assert captured.out == ""
    assert captured.err.startswith(expected)
    assert captured.err.count("\n") == 1

    status, captured = call(capsys, *arguments, "--json")
    error = document(captured)["error"]
    assert status == 2
    assert set(error) == {"type", "message", "field"}
    assert error["message"] in captured.err.replace("\n", " ")
    assert captured.err.count("\n") == 1


def test_a_list_and_a_switch_may_be_given_again(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    lists = ["--set", "measure.steps=9", "--set", "measure.rounds=3"]
    status, _ = call(capsys, "run", "quickstart", *lists, "--json", "--json")
    ((spec, _),) = pipeline.asked
    assert status == 0
    assert (spec.measure.steps, spec.measure.rounds) == (9, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["list"],
            "compressors, aggregators, faults, experiments; see `stratbench list --help`",
        ),
        (
            ["list", "mice"],
            "'compressors', 'aggregators', 'faults', 'experiments'; see `stratbench list --help`",
        ),
        (
            ["run", "quickstart", "--workers", "1,2"],
            "; for several, write --set 'cluster.workers=[1, 2]'; see `stratbench run --help`",
        ),
        (["run", "quickstart", "--workers", "two"], ", got 'two'; see `stratbench run --help`"),
        (["run", "quickstart", "--workers=two"], ", got 'two'; see `stratbench run --help`"),
        (["run", "quickstart", "--fast"], "see `stratbench run --help`"),
        (["clean", "--keep"], "see `stratbench clean --help`"),
        (["mice"], "see `stratbench --help`"),
    ],
)
def test_a_mistake_on_the_command_line_names_the_help_that_tells_more(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    status, captured = call(capsys, *arguments)
    assert (status, captured.err.count("\n")) == (2, 1)
    assert captured.err.endswith(f"{message}\n")


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
            "stratbench: cannot use /x: Permission denied; check the path and its permissions",
        ),
        (KeyboardInterrupt(), 130, "stratbench: interrupted\n"),
        (GeneratorExit("of a user's"), 1, "stratbench: unexpected GeneratorExit: of a user's; report"),
        (SystemExit(15), 130, "stratbench: interrupted\n"),
    ],
)
def test_what_goes_wrong_below_costs_one_line_and_its_status(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline, error: BaseException, status: int, line: str
) -> None:
    pipeline.raises = error
    got, captured = call(capsys, "run", "quickstart")
    assert got == status
    assert captured.err.startswith(line)
    assert captured.err.count("\n") == 1
    got, captured = call(capsys, "run", "quickstart", "--json")
    assert got == status
    assert "error" in document(captured)


def test_a_long_echo_is_shortened_between_the_rule_and_the_way_out(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    pipeline.raises = StrategyError(f"bounds must be numbers, got {['x'] * 500!r}; give two")
    for as_json in ((), ("--json",)):
        _, captured = call(capsys, "run", "quickstart", *as_json)
        line = document(captured)["error"]["message"] if as_json else captured.err
        assert "bounds must be numbers, got ['x', 'x', " in line
        assert line.rstrip().endswith("'x']; give two")
        assert "characters more" in line
        assert len(line) < 700


def test_debug_shows_the_traceback_and_its_notes(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    pipeline.raises = CaseError("worker-died", "worker 1 died", stage="run")
    pipeline.raises.add_note("last lines of its log")
    _, captured = call(capsys, "run", "quickstart", "--debug")
    assert "Traceback" in captured.err
    assert "last lines of its log" in captured.err
    assert captured.err.endswith("stratbench: worker 1 died\n")
