"""Options of `stratbench run` for fields of the experiment file, as declared by its model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, get_args

import typer

from harness.cli.options import with_options
from harness.cli.output import Answer
from harness.experiment.model import Experiment
from harness.experiment.references import StrategyRef, WorkloadRef, split_list
from harness.sections import Option, Section, section_in
from harness.written_values import parse_scalar

_VALUES = "values of the experiment's file"
_PANELS = {
    "workloads": "Experiment",
    "strategies": "Experiment",
    "cluster": "Workers",
    "measure": "Measurement",
    "checkpoint": "Checkpoints",
}
"""Section of the file → group of its options in --help."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileOption:
    """An option, and the dotted path of its field.

    Attributes:
        default: text of the field's default; None if there is none to show.
        is_swept: True if the file takes several values.
    """

    path: str
    option: Option
    types: frozenset[object]
    default: object = None
    is_swept: bool = False

    @property
    def parameter(self) -> inspect.Parameter:
        is_flag = bool in self.types
        kind = bool if is_flag else int | None if self.types == {int} else str | None
        option = self.option
        return inspect.Parameter(
            option.name.replace("-", "_"),
            inspect.Parameter.KEYWORD_ONLY,
            default=False if is_flag else None,
            annotation=Annotated[
                kind,
                typer.Option(
                    f"--{option.name}",
                    metavar=option.metavar,
                    parser=self._whole_number if kind == int | None and self.is_swept else None,
                    help=option.help
                    + ("" if self.default is None else f" [default: from the file, else {self.default}]"),
                    rich_help_panel=_PANELS[self.path.partition(".")[0]],
                ),
            ],
        )

    def _whole_number(self, text: str) -> int:
        try:
            return int(text)
        except ValueError:
            numbers = [part.strip() for part in text.split(",")]
            is_list = len(numbers) > 1 and all(map(str.isdecimal, numbers))
            several = f"; for several, write --set '{self.path}=[{', '.join(numbers)}]'" if is_list else ""
            raise typer.BadParameter(f"must be a whole number, got {text!r}{several}") from None

    def value(self, argument: str | int | None) -> object:
        """Value for the file; None if the option is not given."""
        if not isinstance(argument, str):
            return argument or None if bool in self.types else argument
        if not self.types.isdisjoint((StrategyRef, WorkloadRef)):
            return list(split_list(argument, field=self.option.name))
        return parse_scalar(argument) if int in self.types else argument


def file_options(section: type[Section] = Experiment, above: str = "") -> Iterator[FileOption]:
    """Options of the fields of a section and its subsections, in the order of the file."""
    for name, field in section.model_fields.items():
        path = above + section.key_of(name)
        below = section_in(field.annotation)
        if below is not None:
            yield from file_options(below, f"{path}.")
        for option in field.metadata:
            if isinstance(option, Option):
                yield FileOption(
                    path=path,
                    option=option,
                    types=frozenset(_types(field.annotation)),
                    default=_plain_default(field.default),
                    is_swept=isinstance(field.default, tuple),
                )


def with_file_options(command: Callable[..., Answer]) -> Callable[..., Answer]:
    """The same command with an option for each field that declares one."""
    options = {option.parameter.name: option for option in file_options()}

    def store(context: typer.Context, arguments: Mapping[str, str | int | None]) -> None:
        values = {options[name].path: options[name].value(value) for name, value in arguments.items()}
        context.meta[_VALUES] = {path: value for path, value in values.items() if value is not None}

    # After the context and the experiment.
    return with_options(command, [option.parameter for option in options.values()], store, place=2)


def values_of_options(context: typer.Context) -> Mapping[str, object]:
    """Dotted path → value given as an option."""
    values: Mapping[str, object] = context.meta[_VALUES]
    return values


def _types(annotation: object) -> Iterator[object]:
    if isinstance(annotation, type) and not get_args(annotation):
        if annotation is not type(None):
            yield annotation
        return
    if isinstance(annotation, str):
        yield str
    for part in get_args(annotation):
        yield from _types(part)


def _plain_default(default: object) -> object:
    value = default[0] if isinstance(default, tuple) and len(default) == 1 else default
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else None
