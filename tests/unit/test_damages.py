"""A third of all kinds of damage, each under one command in turn; all under all are in `tests/soak`."""

from collections.abc import Sequence

import pytest
from damages import (
    RUN_COMMANDS,
    RUN_DAMAGE,
    STORE_COMMANDS,
    STORE_DAMAGE,
    Command,
    Damage,
    Outcome,
    Place,
    judged,
    tried,
    write_place,
)

PAIRS = [
    (damage, commands[number % len(commands)])
    for damages, commands in ((RUN_DAMAGE, RUN_COMMANDS), (STORE_DAMAGE, STORE_COMMANDS))
    for number, damage in enumerate(damages[::3])
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("damages")
    write_place(Place(root=folder / "template"))
    return Place(root=folder / "place")


@pytest.fixture(scope="module")
def undamaged(place: Place) -> dict[str, Outcome]:
    commands: Sequence[Command] = (*RUN_COMMANDS, *STORE_COMMANDS)
    return {
        command.name: tried(place, place.root.parent / "template", command)
        for command in {command.name: command for command in commands}.values()
    }


def test_there_are_kinds_of_damage_enough() -> None:
    assert len({damage.name for damage, _ in PAIRS}) >= 120


@pytest.mark.parametrize(("damage", "command"), PAIRS, ids=[f"{d.name} - {c.name}" for d, c in PAIRS])
def test_damage_is_named_or_changes_nothing(
    damage: Damage, command: Command, place: Place, undamaged: dict[str, Outcome]
) -> None:
    after = tried(place, place.root.parent / "template", command, damage)
    assert judged(damage, undamaged[command.name], after) in ("named", "unchanged")
