"""Commands with grouped commands and options in --help, and complete summaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from typer.core import TyperCommand, TyperGroup

from harness.errors import UsageError

if TYPE_CHECKING:
    from typer import Context
    from typer._click import Parameter

COMMON = "Every command"
"""Group of the options common to all commands."""
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
Record = tuple[str, str]


class Command(TyperCommand):
    """Command with grouped options, which refuses a value that a later one would silently replace."""

    # Typer includes click, and the base of its contexts, under a private name.
    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Read the arguments.

        Raises:
            UsageError: several values are given for an option with a single one.
        """
        *_, order = self.make_parser(ctx).parse_args(args=list(args))
        for parameter, n_given in Counter(order).items():
            is_list, is_switch = (getattr(parameter, name, False) for name in ("multiple", "is_flag"))
            if n_given > 1 and not (is_list or is_switch) and parameter.param_type_name == "option":
                name = parameter.opts[0].removeprefix("--")
                raise UsageError(f"must be given once, got it {n_given} times; drop one", field=name)
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def collect_usage_pieces(self, ctx: Context) -> list[str]:  # type: ignore[override]
        """List the parts of the usage line."""
        arguments = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return [self.options_metavar or "", *map(_argument_name, arguments)]

    def format_options(self, ctx: Context, formatter: object) -> None:  # type: ignore[override]
        """Write the arguments, then the options group by group."""
        records: list[tuple[str, Record]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                help_ = getattr(parameter, "help", None) or ""
                records.append(("Arguments", (_argument_name(parameter), help_)))
            else:
                own = COMMON if parameter.name == "help" else "Options"
                records.append((getattr(parameter, "rich_help_panel", None) or own, record))
        # The sort is stable: groups are in the order of their first options, the common one last.
        _write_groups(formatter, sorted(records, key=lambda item: item[0] == COMMON))


class CommandGroup(TyperGroup):
    """Commands by group, with the complete first line of their help."""

    def format_commands(self, ctx: Context, formatter: object) -> None:  # type: ignore[override]
        """Write the commands group by group."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        records = [
            (
                getattr(command, "rich_help_panel", None) or "Commands",
                (name, (command.help or "").strip().partition("\n\n")[0].replace("\n", " ")),
            )
            for name, command in commands
            if command is not None and not command.hidden
        ]
        _write_groups(formatter, records)


def _argument_name(parameter: Parameter) -> str:
    return parameter.metavar or (parameter.name or "").upper()


def _write_groups(formatter: object, records: Iterable[tuple[str, Record]]) -> None:
    groups: dict[str, list[Record]] = {}
    for group, record in records:
        groups.setdefault(group, []).append(record)
    for group, rows in groups.items():
        with formatter.section(group):  # type: ignore[attr-defined]
            formatter.write_dl(rows)  # type: ignore[attr-defined]
