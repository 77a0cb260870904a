"""Messages to a person while a command works."""

import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from open_folders import made_record

from harness import pipeline
from harness.cluster import ClusterShape
from harness.experiment.cases import Case, expand
from harness.experiment.load import resolve
from harness.experiment.references import StrategyRef, WorkloadRef
from harness.experiment.schedule import Slot
from harness.measure.live import WindowProgress
from harness.measure.timeouts import USUAL
from harness.records.outcome import Equivalence, Failure, Rounds, StepSeconds
from harness.records.record import Record
from harness.requests import PlanRequest, Target, TransformRequest, VerifyRequest
from harness.run import progress, repeats
from harness.run.progress import Progress, RatioSoFar, StatusLine, ratio_so_far
from harness.run.repeats import SlotRunner
from harness.verification.checks import CaseChecks
from reports.quantities import plain, seconds
from strategies.plan.schema import Plan

WARNING = "nothing is partitioned"
SLOT = Slot(
    order=0,
    block=0,
    repeat=0,
    case=expand(resolve({"name": "test", "workloads": ["wide-mlp"], "strategies": ["ps"]}))[0],
)


def test_what_a_plan_warns_of_is_said_once_before_anything_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = {"warned": SimpleNamespace(warnings=(WARNING,)), "plain": SimpleNamespace(warnings=())}
    case = SimpleNamespace(workload_name="w", title="w warned", shape=ClusterShape(workers=1), id="id")
    slots = [
        SimpleNamespace(case=SimpleNamespace(**{**vars(case), "id": name, "strategy": name}), repeat=repeat)
        for repeat in range(2)
        for name in plans
    ]
    monkeypatch.setattr(repeats, "planned_to_run", lambda _, case: (None, plans[case.id]))
    monkeypatch.setattr(CaseChecks, "reference", lambda *_: None)
    monkeypatch.setattr(CaseChecks, "bounded", lambda *_, **__: None)
    preparing_runner().prepare(cast("Any", slots), deadline_s=math.inf)
    assert capsys.readouterr().err == f"warning: w warned: {WARNING}\n"


def preparing_runner() -> SlotRunner:
    nothing = SimpleNamespace(limit_links=lambda _: None, batches=lambda *_: None)
    return SlotRunner(
        spec=cast("Any", None),
        cases=(),
        folder=cast("Any", None),
        cluster=cast("Any", nothing),
        recorder=cast("Any", None),
        captures=cast("Any", nothing),
        progress=Progress(4, live=True, quiet=False),
        exporter=None,
        timeouts=USUAL,
    )


def test_our_own_mistake_with_one_case_does_not_end_the_preparation_of_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = SimpleNamespace(workload_name="w", title="w", shape=ClusterShape(workers=1), id="id")
    requests: list[str] = []

    def planned(_: object, case: SimpleNamespace) -> None:
        requests.append(case.id)
        raise ValueError("of our own")

    monkeypatch.setattr(repeats, "planned_to_run", planned)
    slots = [SimpleNamespace(case=SimpleNamespace(**{**vars(case), "id": name}), repeat=0) for name in "ab"]
    preparing_runner().prepare(cast("Any", slots), deadline_s=math.inf)
    assert requests == ["a", "b"]
    assert capsys.readouterr().err == ""


def record(p50_s: float | None) -> Record:
    return made_record(
        workload="wide-mlp",
        batch_size=64,
        # A window with a stall in it.
        examples_per_s=17.0,
        step_s=StepSeconds(n=5, p50=p50_s),
        equivalence=Equivalence(checked=True, equivalent=True, checked_in_repeat=0),
    )


@pytest.mark.parametrize("p50_s", [0.0125, 0.068, 0.09996, 0.725])
def test_a_line_tells_the_rate_that_the_table_will_show(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, p50_s: float
) -> None:
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 7.0))
    ended = record(p50_s)
    Progress(1, live=True, quiet=False).ended(SLOT, ended)
    lines = capsys.readouterr().err
    rate = plain(ended.median_examples_per_s)
    assert lines.endswith(f": {rate} examples/s, median step {seconds(p50_s)}, equivalent\n")
    assert lines.startswith("[1/1] 0:00 wide-mlp ps 2x1 repeat 0")


@pytest.mark.parametrize(
    ("within", "text"), [(True, "within bound"), (False, "beyond bound"), (None, "undecidable")]
)
def test_of_a_compressed_strategy_the_bound_is_told(
    capsys: pytest.CaptureFixture[str], within: bool | None, text: str
) -> None:
    check = Equivalence(checked=True, within_bound=within, checked_in_repeat=0)
    ended = replace(record(0.01), strategy_class="bounded", equivalence=check)
    Progress(1, live=True, quiet=False).ended(SLOT, ended)
    assert capsys.readouterr().err.endswith(f", {text}\n")


def test_why_a_check_did_not_pass_is_told_but_of_controls(capsys: pytest.CaptureFixture[str]) -> None:
    check = Equivalence(checked=True, equivalent=False, reason="bias is off by 1", checked_in_repeat=0)
    wrong = replace(record(0.01), equivalence=check)
    for ended, message in ((wrong, "bias is off by 1"), (replace(wrong, control=True), "control")):
        Progress(1, live=True, quiet=False).ended(SLOT, ended)
        assert capsys.readouterr().err.endswith(f", not equivalent ({message})\n")


def test_of_a_usable_repeat_the_ratio_so_far_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    ratio = RatioSoFar(baseline="single", value=0.5, interval=(0.4, 0.625))
    output = Progress(2, live=True, quiet=False)
    output.ended(SLOT, record(0.01), ratio)
    output.ended(SLOT, replace(record(0.01), status="implausible", plausibility="too fast"), ratio)
    usable, doubted = capsys.readouterr().err.splitlines()
    assert usable.endswith(", equivalent, 0.5× single (0.4 to 0.625) so far")
    assert doubted.endswith(", implausible: too fast")


def test_a_repeat_without_a_median_step_has_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    Progress(1, live=True, quiet=False).ended(SLOT, record(None))
    assert capsys.readouterr().err.endswith(": ok\n")


def test_a_log_has_a_line_per_stage_and_per_reason_without_a_result(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 7.0))
    refused = replace(
        record(None), status="skipped", error=Failure(type="unsupported", message="one worker", stage="plan")
    )
    log = Progress(4, live=False, quiet=False)
    log.begin(2, 240.0)
    for repeat in range(2):
        log.stage("check", "wide-mlp 2x1")
        log.ended(replace(SLOT, repeat=repeat), record(0.01))
        log.ended(replace(SLOT, repeat=repeat), refused)
    assert capsys.readouterr().err.splitlines() == [
        "2 cases, 4 repeats in all, about 4 min",
        "0:00 check: wide-mlp 2x1",
        "[1/4] 0:00 wide-mlp ps 2x1 repeat 0: skipped: one worker",
    ]


def test_a_person_at_a_terminal_sees_stages_on_the_status_line_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Progress(1, live=True, quiet=False).stage("check", "wide-mlp 2x1")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(4.0, "about 10 s"), (61.0, "about 60 s"), (240.0, "about 4 min"), (9000.0, "2.5 h")],
)
def test_an_estimate_is_as_rough_as_it_says(seconds: float, words: str) -> None:
    assert progress._about(seconds).endswith(words)


def test_quiet_progress_says_notes_alone(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = Progress(1, live=False, quiet=True)
    quiet.ended(SLOT, record(0.01))
    quiet.note("nobody limits the link")
    assert capsys.readouterr().err == "nobody limits the link\n"


def test_what_others_wrote_is_one_line_that_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    Progress(1, live=False, quiet=False).note("\x1b[31mred\n[bold] :smile: \x9b2J")
    assert capsys.readouterr().err == "\\x1b[31mred [bold] :smile: \\x9b2J\n"


def test_a_run_goes_on_though_nobody_can_read_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", buffering=1) as full:  # noqa: PTH123 - a device
        monkeypatch.setattr("sys.stderr", full)
        Progress(1, live=False, quiet=False).note("one line")
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def moment_of(case: str, n_rounds: int) -> WindowProgress:
    return WindowProgress(
        experiment="x",
        case=case,
        workload="wide-mlp",
        strategy="ps",
        provider="local",
        device="cpu",
        precision="float32",
        xla=False,
        input="staged",
        n_rounds=n_rounds,
        n_all_rounds=10,
        examples_per_s=1234.5,
        n_steps=1,
        payload_bytes=0.0,
        resident_bytes=None,
    )


def test_the_live_line_says_round_rate_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now_s))
    output = Progress(3, live=False, quiet=True)
    moment = moment_of("c", 2)
    assert output.live(moment) == "round 2 of 10: wide-mlp ps 1,234 examples/s"
    now_s += 65.0
    output.ended(cast("Any", None), record(0.01))
    assert output.live(moment).endswith("1,234 examples/s, about 2:10 left")
    output.expect(2)
    assert output.left().n_repeats == 4


@pytest.mark.parametrize(("n_repeats", "left_s", "words"), [(2, 170, "2:50"), (6, 590, "9:50")])
def test_the_first_round_tells_what_is_left(
    n_repeats: int,
    left_s: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two cases take ten windows each, of ten seconds, after 130 seconds of preparation."""
    times = iter((0.0, 130.0, 150.0, 160.0, 170.0))
    now_s = next(times)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now_s))
    output = Progress(n_repeats + 1, live=False, quiet=True)
    skipped = replace(record(0.01), status="skipped")
    output.ended(cast("Any", SimpleNamespace(case=SimpleNamespace(id="a"))), skipped)
    output._quiet, now_s = False, next(times)
    output.prepared()
    for case, n_rounds in (("a", 1), ("b", 1), ("b", 2)):
        now_s = next(times)
        line = output.live(moment_of(case, n_rounds))
        assert ("left" in line) is (n_rounds == 2)
    assert line.endswith(f"about {words} left")
    about = f"about {round(left_s / 60)} min"
    assert capsys.readouterr().err == f"2:50 measure: round 1 of 10 is done, {about} left\n"
    assert output.left().seconds == left_s


def test_an_estimate_begins_anew_with_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    output = Progress(2, live=False, quiet=True)
    for at_s, case, n_rounds, left_s in (
        (10.0, "a", 1, None),
        (20.0, "a", 1, None),
        (50.0, "b", 1, None),
        (80.0, "a", 2, 30.0 * 17),
    ):
        clock.now_s = at_s
        output.live(moment_of(case, n_rounds))
        assert output.left().seconds == left_s


SPEC = resolve(
    {
        "name": "x",
        "workloads": ["digits-mlp"],
        "strategies": ["single", "ps"],
        "compare": {"baseline": "single"},
    }
)
SINGLE, PS = expand(SPEC)


def timed(case: Case, step_s: float, *, repeat: int, **more: Any) -> Record:
    rounds = Rounds(block=f"b{repeat}", n_steps=5, n_lead=2, n_made=70, step_s=(step_s,) * 10)
    return replace(made_record(), case=case.id, repeat=repeat, batch_size=64, rounds=rounds, **more)


def records_of(steps_s: list[float]) -> list[Record]:
    """Figures of both cases, where the baseline's step is 2 s."""
    pairs = [(timed(SINGLE, 2.0, repeat=n), timed(PS, step_s, repeat=n)) for n, step_s in enumerate(steps_s)]
    return [record for pair in pairs for record in pair]


def ratio_text(records: list[Record], case: Case = PS) -> str:
    return str(ratio_so_far(case, [SINGLE, PS], SPEC, records))


def test_two_repeats_have_a_ratio_and_three_an_interval_too() -> None:
    assert ratio_text(records_of([4.0, 4.0])) == "0.5× single"
    assert ratio_text(records_of([4.0, 4.0, 4.0])) == "0.5× single (0.5 to 0.5)"


def test_the_interval_is_that_of_the_logarithms() -> None:
    so_far = ratio_so_far(PS, [SINGLE, PS], SPEC, records_of([4.0, 4.4, 3.6]))
    assert so_far is not None
    assert so_far.interval is not None
    low, high = so_far.interval
    assert so_far.value == pytest.approx((0.5 * 2 / 4.4 * 2 / 3.6) ** (1 / 3))
    assert low * high == pytest.approx(so_far.value**2)


def test_what_failed_counts_for_nothing() -> None:
    records = records_of([4.0, 4.0])
    assert ratio_text([*records, timed(PS, 1.0, repeat=2, status="failed")]) == "0.5× single"


@pytest.mark.parametrize(
    ("case", "records"), [(SINGLE, records_of([4.0])), (PS, []), (PS, [records_of([4.0])[1]])]
)
def test_without_two_that_were_timed_in_turn_nothing_is_said(case: Case, records: list[Record]) -> None:
    assert ratio_text(records, case) == "None"


def test_a_repeat_counts_before_the_baseline_has_its_record_of_it() -> None:
    beside = {"baseline": SINGLE.id, "baseline_step_s": (2.0,) * 10, "baseline_first_worker": 1}
    first, *_ = records = records_of([4.0])
    assert first.rounds is not None
    later = timed(PS, 4.0, repeat=1)
    assert later.rounds is not None
    told_early = replace(later, rounds=replace(later.rounds, **beside))
    so_far = ratio_so_far(PS, [SINGLE, PS], SPEC, [*records, told_early])
    assert so_far is not None
    assert so_far.value == pytest.approx(0.5)


TARGET = Target(workload=WorkloadRef(reference="wide-mlp"), strategy=StrategyRef(name="ps"))
PLAN = Plan(
    workload="wide-mlp",
    strategy="ps",
    strategy_params={},
    strategy_class="exact",
    replicas_per_task=(1, 1),
    batch_size=16,
    device="cpu",
    nodes=(),
    payload_bytes_per_step=0,
    server_bytes=(0, 0),
    worker_bytes=0,
)


def watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")


def test_it_takes_names_as_they_are_and_keeps_off_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch)
    with StatusLine(live=True).doing("capturing [bold]x[/bold]"):
        pass
    captured = capsys.readouterr()
    assert "capturing [bold]x[/bold]" in captured.err
    assert captured.out == ""


def test_it_says_nothing_to_nobody(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch)
    with StatusLine(live=False).doing("capturing"):
        pass
    assert capsys.readouterr().err == ""


def test_it_leaves_a_file_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with StatusLine(live=True).doing("capturing"):
        pass
    assert capsys.readouterr().err.strip() == ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer of a job, to which the verdict on the capture and a note are added."""

    is_held_to_the_reference: bool = True
    capture: object = None
    notes: tuple[str, ...] = ()


def answering(*, draws: bool = False, is_held: bool = True) -> SimpleNamespace:
    facts = SimpleNamespace(verdict=None, draws=draws)
    capture = SimpleNamespace(folder="", restored=None, facts=facts)
    return SimpleNamespace(
        plan=PLAN, capture=capture, batches="", call=lambda *_: Answer(is_held_to_the_reference=is_held)
    )


@pytest.mark.parametrize(("draws", "is_held"), [(False, True), (True, True), (True, False)])
def test_verify_says_how_random_numbers_are_compared(
    monkeypatch: pytest.MonkeyPatch, draws: bool, is_held: bool
) -> None:
    opened = answering(draws=draws, is_held=is_held)
    monkeypatch.setattr(pipeline, "capture_and_plan", lambda *_, **__: nullcontext(opened))
    verified = pipeline.verify(VerifyRequest(target=TARGET))
    assert [note.startswith("the step draws random numbers") for note in verified.verification.notes] == (
        [True] if draws and is_held else []
    )


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda live: pipeline.plan(PlanRequest(target=TARGET, live=live)), None),
        (
            lambda live: pipeline.verify(VerifyRequest(target=TARGET, live=live)),
            "running 4 steps of ps and of the single-device reference in float64",
        ),
        (
            lambda live: pipeline.transform(TransformRequest(target=TARGET, rank=1, live=live)),
            "rewriting the graph of worker 1 for ps",
        ),
    ],
)
def test_who_waits_for_a_command_is_told(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[bool], object],
    text: str | None,
    live: bool,
) -> None:
    @contextmanager
    def capture_and_plan(target: Target, *, status: StatusLine, **_: object) -> Iterator[SimpleNamespace]:
        with status.doing(f"capturing {target.workload}"):
            pass
        yield answering()

    watch(monkeypatch)
    monkeypatch.setattr(pipeline, "capture_and_plan", capture_and_plan)
    ask(live)
    lines = capsys.readouterr().err
    assert ("capturing wide-mlp" in lines) is live
    assert text is None or (text in lines) is live
