"""Help and lists answer at once because nothing heavy is imported for them."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.cli.process import signals_interrupt

_HEAVY = ("tensorflow", "keras", "ray", "numpy", "pyarrow", "scipy", "sklearn", "docker", "jinja2", "rich")

LISTS = ("workloads", "strategies", "compressors", "providers", "experiments")

_PROBE = """
import json, sys
from harness.cli import main
status = main(json.loads(sys.argv[1]))
sys.stderr.write(json.dumps({"status": status, "modules": sorted(sys.modules)}))
"""


def _imports(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answer = json.loads(done.stderr)
    assert answer["status"] == 0
    return set(answer["modules"])


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["run", "--help"], *(["list", what] for what in LISTS)],
    ids=" ".join,
)
def test_nothing_heavy_is_imported(arguments: list[str]) -> None:
    assert not _imports(*arguments) & set(_HEAVY)


def test_help_does_not_even_import_pydantic_and_yaml() -> None:
    assert not _imports("--help") & {"pydantic", "yaml"}


def test_reports_are_ours_whatever_stands_beside_a_users_file(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "__init__.py").write_text("raise RuntimeError('of a user')\n")
    (tmp_path / "mine.py").touch()
    code = (
        "import sys; from harness.cli import main\n"
        "status = main(['plan', 'wide-mlp', '--strategy', 'mine.py:Builder'])\n"
        "import reports; reports.FORMATS; sys.exit(status if sys.argv[1] in sys.path else 7)"
    )
    command = [sys.executable, "-P", "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "strategy file mine.py has no Builder 'Builder'" in done.stderr


def test_what_drives_a_run_imports_no_tensorflow() -> None:
    command = "import sys, harness.foresight; sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False, timeout=60).returncode == 0


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m harness.cli list providers | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["list", "providers"]])
def test_a_reader_that_has_left_already_is_no_error(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "harness.cli", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


_WAITS = """
import sys, types, time
import harness
fake = types.ModuleType("harness.pipeline")
def verify(request):
    try:
        print("ready", flush=True)
        while True:  # a single wait could begin after the signal has come, and never end
            time.sleep(0.05)
    finally:
        print("cleaned up", flush=True)
fake.verify = verify
sys.modules["harness.pipeline"] = harness.pipeline = fake
import harness.preflight
harness.preflight.check_target = lambda target: None
from harness.cli import main
sys.exit(main(["verify", "wide-mlp", "--strategy", "ps"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds_and_exits_with_130(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (130, "cleaned up\n", "stratbench: interrupted\n")


@pytest.mark.parametrize(
    ("argument", "status", "output", "errors"),
    [("providers", 0, "local", ""), ("nothing", 2, "", "stratbench: ")],
)
def test_nothing_that_crashes_while_python_ends_changes_a_commands_end(
    argument: str, status: int, output: str, errors: str
) -> None:
    """Print after the last output, as native threads of Ray's may do."""
    code = (
        "import atexit, ctypes, sys; from harness.cli import main; atexit.register(ctypes.string_at, 0)\n"
        f"sys.argv = ['stratbench', 'list', {argument!r}]; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert output in done.stdout
    assert done.stderr.startswith(errors)


@pytest.mark.parametrize("argument", ["", "--json"])
def test_an_interruption_is_heard_while_native_code_blocks(argument: str) -> None:
    code = textwrap.dedent(
        f"""
        import ctypes, sys
        from harness.cli import app, main

        def block(caller):
            caller.settled()
            mutex, lock = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
            lock(mutex)
            print("blocked", file=sys.stderr, flush=True)
            lock(mutex)

        app._answer = block
        sys.argv = ["stratbench", "list", "{argument}"]
        main()
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "blocked\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60.0)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (130, "stratbench: interrupted\n")
    assert json.loads(out)["error"]["type"] == "interrupted" if argument else out == ""


def test_a_command_that_another_handler_ends_is_not_waited_for() -> None:
    """Ray has a handler of its own for a while, which raises SystemExit."""
    ended = []

    def work(hear_in_native_code: Callable[[], None]) -> None:
        hear_in_native_code()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))
        signal.raise_signal(signal.SIGTERM)

    with (
        pytest.raises(SystemExit),
        signals_interrupt(for_good=False, end=lambda: ended.append("unheard")) as hear_in_native_code,
    ):
        work(hear_in_native_code)
    assert ended == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_no_thread_is_started_before_the_process_may_have_one() -> None:
    """A process with several stays on the network of the host."""
    before = threading.active_count()
    with signals_interrupt(for_good=False, end=lambda: None) as hear_in_native_code:
        assert threading.active_count() == before
        hear_in_native_code()
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_an_interruption_that_a_finalizer_swallows_is_raised_again() -> None:
    swallowed = []

    class Finalized:
        def __del__(self) -> None:
            swallowed.append("once")
            signal.raise_signal(signal.SIGINT)

    def work() -> None:
        Finalized()
        time.sleep(30.0)

    with pytest.raises(KeyboardInterrupt), signals_interrupt(for_good=False):
        work()
    assert swallowed == ["once"]


def test_a_second_interruption_does_not_meet_the_cleaning() -> None:
    cleaned = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            cleaned.append("all")

    with pytest.raises(KeyboardInterrupt), signals_interrupt(for_good=False):
        work()
    assert cleaned == ["all"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    "redirected",
    [
        "list nothing 2>/dev/full",
        "list providers >/dev/full",
        "list providers --json >/dev/full",
        "--help >/dev/full",
        "run --help >/dev/full",
    ],
)
def test_a_command_fails_in_a_line_where_a_stream_takes_no_more(redirected: str) -> None:
    command = f"{sys.executable} -m harness.cli {redirected}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2 if "2>" in redirected else 3, "")
    full = (
        "stratbench: stdout: must take the whole answer, got No space left on device; redirect it elsewhere\n"
    )
    assert done.stderr == ("" if "2>" in redirected else full)


@pytest.mark.parametrize("command", ["list providers", "list providers --json", "run --help"])
def test_a_closed_standard_output_costs_one_line(command: str) -> None:
    command = f"{sys.executable} -m harness.cli {command} >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    line = "stratbench: stdout: must take the whole answer, got Bad file descriptor; redirect it elsewhere\n"
    assert done.stderr == line


def test_what_is_said_on_a_closed_standard_error_reaches_no_other_stream() -> None:
    command = f"{sys.executable} -m harness.cli list nothing 2>&- <&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupt_while_the_command_line_is_imported_costs_one_line(*, as_json: bool) -> None:
    code = """
import signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from harness.cli import main
main()
"""
    command = [sys.executable, "-c", code, "list", "providers", *(["--json"] if as_json else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (130, "stratbench: interrupted\n")
    if as_json:
        assert json.loads(done.stdout)["error"]["type"] == "interrupted"


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_stream_that_knows_few_letters_gets_others_escaped(tmp_path: Path, as_json: Sequence[str]) -> None:
    run = tmp_path / "ünknown\udcff"
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", "report", run, *as_json],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("stratbench: run_dir: must be a run folder made by")
    if as_json:
        assert str(run) in ascii_text(json.loads(done.stdout)["error"]["message"])


def ascii_text(message: str) -> str:
    """A message that quotes a path as Python does, with the path as it is."""
    return message.replace("\\udcff", "\udcff")
