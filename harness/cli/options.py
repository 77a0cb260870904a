"""Options that several commands share, and their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from harness.cli.help import COMMON
from harness.errors import UsageError
from harness.experiment.references import parse_strategy, parse_workload, split_list
from harness.requests import Target
from harness.written_values import parse_duration_s, parse_share
from reports.history import CONFIRM

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout.", rich_help_panel=COMMON)
]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=COMMON)
]
OF_ALL_COMMANDS = tuple(
    Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=kind)
    for name, kind in (("json", Json), ("debug", Debug))
)
"""Options that `main` reads from the arguments."""
WorkloadArgument = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="A shipped name, keras:NAME, or path/to/file.py:function.")
]
Workers = Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Worker processes.")]
Replicas = Annotated[int, typer.Option("--replicas", metavar="R", min=1, help="Replicas per worker.")]
MACHINE = "Machine"
_MOST_SHARE = 0.5
T = TypeVar("T")


class Hardware(StrEnum):
    """Kind of device that replicas run on."""

    CPU = "cpu"
    GPU = "gpu"
    TPU = "tpu"


Device = Annotated[
    Hardware,
    typer.Option(
        "--device", help="Device of the replicas; not needed on this machine.", case_sensitive=False
    ),
]

ShareGpus = Annotated[
    bool, typer.Option("--share-gpus", help="Let replicas share a GPU if there are too few.")
]

Restore = Annotated[Path | None, typer.Option("--restore", metavar="PATH", help="Start from a checkpoint.")]

ExperimentArgument = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT", help="An experiment file, or a name of `stratbench list experiments`."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Set a value of the experiment file; may be repeated."),
]
OutFolder = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write results here [default: runs/NAME-TIME-ID]."),
]
TimeBudget = Annotated[
    str | None,
    typer.Option("--time-budget", metavar="30m", help="Start no new case after this time; needs a unit."),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryOptions:
    """Options of all commands of `nightly`: an experiment, and its nights in a history."""

    experiment: ExperimentArgument
    store: Annotated[
        Path,
        typer.Option(
            "--store", metavar="DIR", help="Folder of the history; created if missing.", show_default=False
        ),
    ]
    confirm: Annotated[
        int,
        typer.Option(
            "--confirm",
            metavar="K",
            min=CONFIRM,
            max=30,
            help="Nights that a change must last before it is reported.",
        ),
    ] = CONFIRM
    settings: Settings = None


TimeoutFactor = Annotated[
    float,
    typer.Option(
        "--timeout-factor",
        metavar="X",
        help="Multiply the time after which a worker counts as hung.",
        rich_help_panel=MACHINE,
    ),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetOptions:
    """Options of commands that handle one strategy for one workload."""

    workload: WorkloadArgument
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            "-s",
            metavar="S",
            help="A strategy: NAME or NAME:key=value,key=value, or path/to/file.py:Builder.",
            show_default=False,
        ),
    ] = None
    plan: Annotated[
        str | None,
        typer.Option(
            "--plan",
            metavar="FILE",
            help="An edited plan of `stratbench plan --json`, in place of --strategy.",
        ),
    ] = None
    workers: Workers = 2
    replicas: Replicas = 1

    def target(self, device: Hardware = Hardware.CPU, *, share_gpus: bool = False) -> Target:
        """Read the workload and the strategy, or the plan in its place, and check that both are known.

        Raises:
            UsageError: one is unknown, a list is given, or other devices than GPUs are to be shared.
        """
        if share_gpus and device is not Hardware.GPU:
            raise UsageError(f"is for --device gpu, got it with {device}; drop it", field="share-gpus")
        target = replace(self.parsed(), device=device.value, share_gpus=share_gpus)
        # The registries are not needed for --help.
        from harness.preflight import check_target

        check_target(target)
        return target

    def parsed(self) -> Target:
        """Read the same, without running a user's file.

        Raises:
            UsageError: a text is no reference, or a list is given.
        """
        strategy = self.strategy
        if strategy is None or self.plan is not None:
            if strategy is not None or self.plan is None:
                got = "neither" if self.plan is None else "both"
                raise UsageError(f"must be given, or --plan FILE in its place, got {got}", field="strategy")
            strategy = plan_reference(self.plan)
        if len(split_list(strategy, field="strategy")) != 1:
            raise UsageError(
                f"must be one strategy, got {strategy!r}; to compare several use `stratbench run`",
                field="strategy",
            )
        return Target(
            workload=parse_workload(self.workload, field="workload"),
            strategy=parse_strategy(strategy, field="strategy"),
            workers=self.workers,
            replicas=self.replicas,
        )


def with_options(
    command: Callable[..., T],
    further: Sequence[Parameter] = (),
    receive: Callable[[typer.Context, Mapping[str, Any]], None] | None = None,
    *,
    place: int | None = None,
) -> Callable[..., T]:
    """The command with further options, and one for each field of parameters that are dataclasses.

    Args:
        further: options; those that the command has itself are left out.
        receive: called with the context and the values of the further options, before the command.
        place: index of the first of these among the command's own; None for the end.
    """
    own = signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in own.parameters.items()
        if is_dataclass(parameter.annotation)
    }
    parameters = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY)
        for name, whole in own.parameters.items()
        for parameter in (
            signature(groups[name], eval_str=True).parameters.values() if name in groups else (whole,)
        )
    ]
    added = [parameter for parameter in further if parameter.name not in own.parameters]
    index = len(parameters) if place is None else place
    parameters[index:index] = added

    def called(**arguments: Any) -> T:  # noqa: ANN401 - of any command
        values = {parameter.name: arguments.pop(parameter.name) for parameter in added}
        if receive is not None:
            receive(arguments["context"], values)
        for name, group in groups.items():
            arguments[name] = group(**{field.name: arguments.pop(field.name) for field in fields(group)})
        return command(**arguments)

    # Typer reads parameters and help from the function.
    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {}
    called.__doc__ = command.__doc__
    return called


def is_given(context: typer.Context, name: str) -> bool:
    """True if an option is given on the command line, False if it has its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def plan_reference(path: str, *, field: str = "plan") -> str:
    """Reference to a strategy, for the path of a plan.

    Raises:
        UsageError: it is not the path of a JSON file.
    """
    if not path.endswith(".json") or ":" in path or "," in path:
        raise UsageError(
            f"must be a path that ends in .json, without colon and comma, got {path!r}; rename the file",
            field=field,
        )
    return path


def duration_s(text: str, *, field: str) -> float:
    """Read `90s`, `30m` or `1h30m`.

    Raises:
        UsageError: it is none of these, or a number without a unit.
    """
    number = text.strip()
    if number.isdecimal():
        raise UsageError(
            f"needs a unit, such as {number[:9]}m or {number[:9]}s, got {text[:80]!r}", field=field
        )
    seconds = parse_duration_s(text)
    if not seconds:
        raise UsageError(f"must be a time such as 90s, 30m or 1h30m, got {text[:80]!r}", field=field)
    return seconds


def share(text: str, *, field: str) -> float:
    """Read `3%` or `0.03`, up to a half.

    Raises:
        UsageError: it is neither, or more than a half.
    """
    value = parse_share(text)
    if value is None or value > _MOST_SHARE:
        raise UsageError(f"must be a share such as 3%, 50% at most, got {text[:80]!r}", field=field)
    return value
