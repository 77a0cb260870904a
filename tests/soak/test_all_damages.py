"""Every kind of damage to a run folder and to a store under every command that reads or writes them."""

import sys
from collections import Counter

import pytest
from damages import RUN_COMMANDS, RUN_DAMAGE, STORE_COMMANDS, STORE_DAMAGE, Place, judged, tried, write_place

CASES = [(RUN_DAMAGE, RUN_COMMANDS), (STORE_DAMAGE, STORE_COMMANDS)]


@pytest.mark.parametrize(("damages", "commands"), CASES, ids=["run folder", "store"])
def test_each_damage_is_named_or_changes_nothing(damages, commands, tmp_path, capsys):
    template = tmp_path / "template"
    write_place(Place(root=template))
    place = Place(root=tmp_path / "place")
    verdicts, wrong = Counter(), []
    for command in commands:
        before = tried(place, template, command)
        assert tried(place, template, command) == before, command.name
        for damage in damages:
            try:
                verdicts[judged(damage, before, tried(place, template, command, damage))] += 1
            except AssertionError as error:
                wrong.append(f"{damage.name} under {command.name}: {error}")
    with capsys.disabled():
        sys.stdout.write(f"\n{len(damages)} kinds of damage, {len(commands)} commands: {dict(verdicts)}\n")
    assert not wrong, "\n" + "\n".join(wrong)
