from pathlib import Path

import pytest

from harness.worker.counters import cores
from harness.worker.counters.cores import EnergyReading, read_energy, taken_j


def zone(root: Path, name: str, label: str, microjoules: int) -> None:
    folder = root / name
    folder.mkdir(exist_ok=True)
    for file, value in (("name", label), ("energy_uj", microjoules), ("max_energy_range_uj", 100_000_000)):
        (folder / file).write_text(f"{value}\n")


@pytest.fixture
def zones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cores, "_ZONES", tmp_path)
    return tmp_path


def test_sockets_count_and_what_is_in_them_does_not_count_again(zones: Path) -> None:
    def write(microjoules: int) -> EnergyReading:
        zone(zones, "intel-rapl:0", "package-0", microjoules)
        zone(zones, "intel-rapl:1", "package-1", 2 * microjoules)
        zone(zones, "intel-rapl:2", "psys", 9 * microjoules)
        zone(zones, "intel-rapl:0:0", "core", microjoules)
        zone(zones, "intel-rapl-mmio:0", "package-0", microjoules)
        return read_energy()

    before, after = write(1_000_000), write(3_000_000)
    assert taken_j(before, after) == pytest.approx(6.0)
    assert before.missing is None


def test_a_counter_begins_anew(zones: Path) -> None:
    zone(zones, "intel-rapl:0", "package-0", 99_000_000)
    before = read_energy()
    zone(zones, "intel-rapl:0", "package-0", 2_000_000)
    assert taken_j(before, read_energy()) == pytest.approx(3.0)


def test_a_machine_without_counters_says_so(zones: Path) -> None:
    nothing = read_energy()
    assert nothing == EnergyReading(missing="this machine shows no energy of its processors (RAPL)")
    assert taken_j(nothing, nothing) is None
    zone(zones, "intel-rapl:0", "package-0", 1)
    assert taken_j(nothing, read_energy()) is None


def test_what_only_root_may_read_is_told_apart(zones: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zone(zones, "intel-rapl:0", "package-0", 1)

    def refuse(self: Path) -> str:
        raise PermissionError(self)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert read_energy().missing == "the kernel shows the energy of processors to root alone"


def test_a_counter_that_holds_no_number_is_none(zones: Path) -> None:
    zone(zones, "intel-rapl:0", "package-0", 1)
    (zones / "intel-rapl:0" / "energy_uj").write_text("many")
    assert read_energy().packages == ()
