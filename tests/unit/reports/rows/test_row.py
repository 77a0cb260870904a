"""The table of figures: its paths lead to fields of records."""

from __future__ import annotations

import dataclasses
from typing import Union, get_args, get_origin, get_type_hints

import pytest

from harness.records.record import Record
from reports.rows.row import all_figures

PATHS = [figure.of for _, figure in all_figures() if isinstance(figure.of, str)]


def field_type(owner: object, name: str) -> object:
    """Type of a field, or of a property, without None."""
    assert isinstance(owner, type), owner
    hints = get_type_hints(owner)
    kind = hints[name] if name in hints else get_type_hints(getattr(owner, name).fget)["return"]
    options = [option for option in get_args(kind) if option is not type(None)]
    is_optional = get_origin(kind) is Union or type(kind).__name__ == "UnionType"
    return options[0] if is_optional and len(options) == 1 else kind


@pytest.mark.parametrize("path", PATHS)
def test_a_path_leads_to_a_figure_of_records(path: str) -> None:
    kind: object = Record
    for name in path.split("."):
        kind = field_type(kind, name)
    assert not dataclasses.is_dataclass(kind)
