"""A command whose options are each given once, but for those that are lists."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from typer.core import TyperCommand

from harness.errors import UsageError

if TYPE_CHECKING:
    from typer import Context


class OnceEach(TyperCommand):
    """A command that refuses a value that a later one would silently replace."""

    # Typer has click, and the base of its contexts, under a private name.
    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Read the arguments.

        Raises:
            UsageError: an option that has one value is given several.
        """
        *_, order = self.make_parser(ctx).parse_args(args=list(args))
        for parameter, n_given in Counter(order).items():
            is_list, is_switch = (getattr(parameter, name, False) for name in ("multiple", "is_flag"))
            if n_given > 1 and not (is_list or is_switch) and parameter.param_type_name == "option":
                name = parameter.opts[0].removeprefix("--")
                raise UsageError(f"must be given once, got it {n_given} times; drop one", field=name)
        rest: list[str] = super().parse_args(ctx, args)
        return rest
