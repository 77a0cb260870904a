"""The `stratbench` command: its table of subcommands, and one line for every mistake."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, cast

import typer

# Before a user's file puts its folder first on the path, where another package may have this name.
import reports  # noqa: F401
from harness.cli import output, process
from harness.cli.commands import (
    clean,
    compare,
    demo,
    doctor,
    listing,
    nightly,
    plan,
    predict,
    probe,
    recommend,
    report,
    run,
    transform,
    verify,
)
from harness.cli.help import SETTINGS, Command, CommandGroup
from harness.cli.options import OF_ALL_COMMANDS, with_options
from harness.cli.output import Answer
from harness.cli.process import Caller, signals_interrupt
from harness.errors import (
    EXIT_CASE,
    EXIT_INTERRUPTED,
    EXIT_MISSING,
    EXIT_OK,
    EXIT_USAGE,
    INSTALL,
    Interrupted,
    UsageError,
    is_disk_full,
    with_field,
)
from harness.provision.source_hash import version
from harness.records.safe_text import shortened

_COMMANDS: tuple[tuple[str, str, Callable[..., Answer], str], ...] = (
    ("Measure", "demo", demo.demo, demo.EXAMPLE),
    ("Measure", "run", run.run, run.EXAMPLE),
    ("Foresee", "predict", predict.predict, predict.EXAMPLE),
    ("Foresee", "recommend", recommend.recommend, recommend.EXAMPLE),
    ("Foresee", "probe", probe.probe, probe.EXAMPLE),
    ("Understand", "verify", verify.verify, verify.EXAMPLE),
    ("Understand", "plan", plan.plan, plan.EXAMPLE),
    ("Understand", "transform", transform.transform, transform.EXAMPLE),
    ("Understand", "list", listing.listing, listing.EXAMPLE),
    ("Report", "report", report.report, report.EXAMPLE),
    ("Report", "compare", compare.compare, compare.EXAMPLE),
    ("Machine", "doctor", doctor.doctor, doctor.EXAMPLE),
    ("Machine", "clean", clean.clean, clean.EXAMPLE),
)
"""Group, name, function and example of each command."""
_SUCCESSORS = {"tune": "recommend"}
"""Former command → the command that took its place."""
_PACKAGES = ("harness", "strategies", "workloads", "reports")
# Typer includes click under a private name, older versions depend on it; this finds the base of its errors.
_CLICK_ERROR = cast(
    "type[typer.BadParameter]",
    next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Failure:
    type: str
    message: str
    field: str | None = None
    exit_status: int

    @property
    def line(self) -> str:
        return f"stratbench: {with_field(self.field, self.message)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: command line without the program's name; None for that of this process.
    Returns:
        The exit status; without arguments this process ends with it.
    """
    words = tuple(sys.argv[1:] if arguments is None else arguments) or ("--help",)
    as_json = "--json" in words
    owns_process = arguments is None
    if owns_process:
        process.prepare_streams()
    stdout = sys.stdout

    def end() -> None:
        # The main thread may have redirected standard output.
        with contextlib.redirect_stdout(stdout):
            _print_failure(_interrupted(), as_json=as_json)
        process.end_process(EXIT_INTERRUPTED)

    with signals_interrupt(for_good=owns_process, end=end if owns_process else None) as settled:
        caller = Caller(owns_process=owns_process, settled=settled, arguments=words, as_json=as_json)
        status = _status(caller)
    if owns_process:
        process.end_process(status)
    return status


def _status(caller: Caller) -> int:
    try:
        return _answer(caller)
    except SystemExit as error:
        if error.code != signal.SIGTERM:
            raise
        # Ray's own handler of a termination exits.
        failure = _interrupted()
    except (KeyboardInterrupt, typer.Abort, Interrupted) as error:
        failure = _interrupted(str(error))
    except BaseException as error:  # noqa: BLE001 - the edge of the program: every error costs one line
        if "--debug" in caller.arguments:
            traceback.print_exc()
        failure = _describe(error, caller.arguments)
        failure = dataclasses.replace(failure, message=shortened(failure.message))
        if is_disk_full(error):
            failure = dataclasses.replace(failure, exit_status=EXIT_MISSING)
    _print_failure(failure, as_json=caller.as_json)
    return failure.exit_status


def _print_failure(failure: _Failure, *, as_json: bool) -> None:
    if as_json:
        error_document = {"type": failure.type, "message": failure.message, "field": failure.field}
        # If standard output fails, too, the exit status is all that is left.
        with contextlib.suppress(OSError):
            output.emit_json({"error": error_document})
            sys.stdout.flush()
    output.warn(failure.line)


def _answer(caller: Caller) -> int:
    # With --json, stdout contains one document, without the output of a user's workload.
    with contextlib.redirect_stdout(sys.stderr) if caller.as_json else contextlib.nullcontext():
        answer = _call(caller)
    if answer == EXIT_INTERRUPTED:
        # Typer has turned Ctrl-C into its own exit status.
        raise KeyboardInterrupt
    if not isinstance(answer, Answer):
        # --help, which has printed already, or a requested exit.
        return answer if isinstance(answer, int) else EXIT_OK
    with process.printing():
        if caller.as_json:
            output.emit_json(answer.document)
        else:
            answer.show()
    return answer.exit_status


def _call(caller: Caller) -> object:
    successor = _SUCCESSORS.get(caller.arguments[0])
    if successor is not None:
        raise UsageError(f"{caller.arguments[0]} is now {successor}; see `stratbench {successor} --help`")
    app = _app(caller.arguments[0])
    call = partial(
        app, args=list(caller.arguments), prog_name="stratbench", standalone_mode=False, obj=caller
    )
    if not {"-h", "--help", "--version"}.intersection(caller.arguments):
        return call()
    with process.printing():
        try:
            return call()
        except SystemExit as error:
            # Typer exits when the reader has left (`| head`).
            if isinstance(error.__context__, BrokenPipeError):
                raise error.__context__ from None
            raise


def _app(command_name: str) -> typer.Typer:
    app = typer.Typer(
        cls=CommandGroup,
        help="Compare distribution strategies for TensorFlow training: speed, communication, correctness.",
        epilog="Example: stratbench demo\n\n"
        "Exit status: 0 success, 1 a case failed, 2 wrong usage or user code, 3 a requirement is missing, "
        "4 regression, 130 interrupted.",
        add_completion=False,
        pretty_exceptions_enable=False,
        # Drawing help with rich would double the time that --help takes.
        rich_markup_mode=None,
        context_settings=SETTINGS,
    )
    # With a callback, this is a group of commands, even with a single one.
    app.callback()(_group)
    for group, name, command, example in _COMMANDS:
        own = _with_file_options(command) if name == command_name == "run" else command
        register = app.command(name, cls=Command, epilog=f"Example: {example}", rich_help_panel=group)
        register(with_options(own, OF_ALL_COMMANDS))
    help_ = "Run an experiment every night and report regressions."
    app.add_typer(_nights(), name="nightly", help=help_, rich_help_panel="Report")
    return app


def _nights() -> typer.Typer:
    nights = typer.Typer(cls=nightly.Nightly, rich_markup_mode=None, no_args_is_help=True)
    for name, command, example in nightly.COMMANDS:
        # `serve` has no answer to print as a document.
        common = [option for option in OF_ALL_COMMANDS if name != "serve" or option.name != "json"]
        nights.command(name, cls=Command, epilog=f"Example: {example}")(with_options(command, common))
    return nights


def _with_file_options(command: Callable[..., Answer]) -> Callable[..., Answer]:
    # Other commands do not import the model of the experiment file.
    from harness.cli.file_options import with_file_options

    return with_file_options(command)


def _print_version(is_asked: bool) -> None:  # noqa: FBT001 - as Typer calls it
    if is_asked:
        output.print_line(f"stratbench {version()}")
        raise typer.Exit


def _group(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Compare distribution strategies for TensorFlow training."""


def _interrupted(message: str = "") -> _Failure:
    return _Failure(type="interrupted", message=message or "interrupted", exit_status=EXIT_INTERRUPTED)


def _describe(error: BaseException, arguments: Sequence[str]) -> _Failure:
    name, field, status = type(error).__name__, None, EXIT_USAGE
    if _is_ours(error):
        name = getattr(error, "kind", name)
        message = str(getattr(error, "message", error))
        field, status = getattr(error, "field", None), getattr(error, "exit_status", EXIT_USAGE)
    elif isinstance(error, _CLICK_ERROR):
        name = "UsageError"
        message = f"{_parser_message(error, arguments)}; see `{_command(arguments)} --help`"
    elif isinstance(error, ModuleNotFoundError):
        name, status = "MissingError", EXIT_MISSING
        message = f"the Python module {error.name!r} is not installed; {INSTALL}"
    elif isinstance(error, OSError) and error.filename is not None:
        message = f"cannot use {error.filename}: {error.strerror}; check the path and its permissions"
    else:
        status = EXIT_CASE
        message = f"unexpected {name}: {error}; report the traceback that --debug shows"
    return _Failure(type=name, message=message, field=field, exit_status=status)


def _parser_message(error: typer.BadParameter, arguments: Sequence[str]) -> str:
    from harness.experiment.load import plain_rule

    message = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")
    message = plain_rule(message).replace("Input should be", "must be")
    names = tuple(getattr(getattr(error, "param", None), "opts", ()))
    for argument, following in itertools.pairwise([*arguments, ""]):
        name, separator, joined = argument.partition("=")
        got = joined if separator else following
        if name in names and got and repr(got) not in message:
            return f"{message}, got {got!r}"
    return message


def _command(arguments: Sequence[str]) -> str:
    # Not every error of the parser knows its command.
    if arguments[0] == "nightly":
        names = {name for name, *_ in nightly.COMMANDS}
        return " ".join(("stratbench", "nightly", *(name for name in arguments[1:2] if name in names)))
    names = {name for _, name, *_ in _COMMANDS}
    return f"stratbench {arguments[0]}" if arguments[0] in names else "stratbench"


def _is_ours(error: BaseException) -> bool:
    # Compared by name, because the packages of the base classes may not have been imported.
    return any(kind.__module__.partition(".")[0] in _PACKAGES for kind in type(error).__mro__)
