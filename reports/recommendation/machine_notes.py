"""Notes on workers' machines: disturbances while repeats were timed, figures GPUs lack, and settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.records.outcome import UNSTEADY_DRIFT, UNSTEADY_SHARE, Stability
from harness.records.record import Record

_TAKEN = {
    "foreign_cpu": "Other programs used {share} % of the workers' cores while {repeats} timed.",
    "stolen_cpu": "Other virtual machines were given {share} % of the workers' cores while {repeats} timed.",
    "throttled_cpu": "The limit of a control group withheld {share} % of the workers' cores while {repeats} "
    "timed.",
    "foreign_gpu": "Other programs used {share} % of a GPU's time while {repeats} timed.",
    "throttled_gpu": "Clocks were held down for {share} % of a GPU's time while {repeats} timed: {reasons}.",
}
"""Field of `Stability` → phrase, for shares that are large enough to disturb."""
_MOST_TAKEN = "In one window other programs used {share} % of the workers' cores."
_BESIDE = "Up to {n} other {programs} shared a GPU with the workers, in {repeats} of {of} repeats."
_HOT = "Cores were slowed down for their heat while {names} were timed."
_DRIFT = (
    "Steps of {names} were up to {share} % longer or shorter in the last rounds of a repeat than in its "
    "first, in {repeats} of {of} repeats."
)
_DISTURBED_IN_TURN = "Such minutes move examples/s; ratios, formed within rounds, much less."
_DISTURBED = "Such minutes move examples/s; ratios as well: no case took its turn."
_FIGURES_OF_GPUS = {
    "joules_per_step": "energy",
    "busy": "share busy",
    "own_bytes": "memory of processes",
    "peak_bytes": "peak memory",
    "link_bytes_per_step": "bytes over NVLink",
    "pcie_bytes_per_step": "bytes over PCI Express",
    "foreign_gpu": "use by other programs",
    "n_foreign_gpu": "other programs",
    "throttled_gpu": "slowdowns",
    "gpu_sm_mhz": "clock",
    "gpu_memory_mhz": "clock of memory",
}
_UNKNOWN_GPU_FIGURES = "Not known of GPUs in all repeats: {figures}."
_GOVERNOR = "The governor of the cores is {governor}, which changes their clock."
_TURBO = "Turbo is on: cores run faster while few of them are busy."
_HYPER_THREADS = "Hyper-threads are on: a core may be half of one."
_GPU_KINDS = "Workers have GPUs of several kinds: {kinds}."
_STEADY_GOVERNORS = ("performance", "userspace")


def stability_notes(cases: Mapping[str, list[Record]]) -> list[str]:
    """Disturbances of the repeats of a comparison, and what they mean for its figures."""
    known = [(name, r.stability) for name, records in cases.items() for r in records if r.stability]
    notes = [
        *_taken_notes([stability for _, stability in known]),
        *_gpu_sharing_notes([stability for _, stability in known]),
        *_heat_and_drift_notes(known),
    ]
    if not notes:
        return []
    in_turn = all(r.method is None or r.method.interleave for records in cases.values() for r in records)
    return [*notes, _DISTURBED_IN_TURN if in_turn else _DISTURBED]


def _taken_notes(known: Sequence[Stability]) -> Iterator[str]:
    reasons = ", ".join(dict.fromkeys(reason for each in known for reason in each.gpu_slowdowns))
    for field, phrase in _TAKEN.items():
        shares = [share for each in known if (share := getattr(each, field) or 0.0) >= UNSTEADY_SHARE]
        if not shares:
            continue
        low, high = (f"{100 * share:.0f}" for share in (min(shares), max(shares)))
        yield phrase.format(
            share=low if low == high else f"{low} to {high}",
            repeats="1 repeat was" if len(shares) == 1 else f"{len(shares)} repeats were",
            reasons=reasons,
        )
        most = max(each.foreign_cpu_most or 0.0 for each in known)
        if field == "foreign_cpu" and most:
            yield _MOST_TAKEN.format(share=f"{100 * most:.0f}")


def _gpu_sharing_notes(known: Sequence[Stability]) -> Iterator[str]:
    beside = [each.n_foreign_gpu for each in known if each.n_foreign_gpu]
    if beside:
        programs = "program" if max(beside) == 1 else "programs"
        yield _BESIDE.format(n=max(beside), programs=programs, repeats=len(beside), of=len(known))


def _heat_and_drift_notes(known: Sequence[tuple[str, Stability]]) -> Iterator[str]:
    hot = sorted({name for name, stability in known if stability.n_hot})
    if hot:
        yield _HOT.format(names=", ".join(hot))
    drifts = [(name, abs(stability.drift or 0.0)) for name, stability in known]
    drifting = [(name, drift) for name, drift in drifts if drift >= UNSTEADY_DRIFT]
    if drifting:
        yield _DRIFT.format(
            names=", ".join(dict.fromkeys(name for name, _ in drifting)),
            share=f"{100 * max(drift for _, drift in drifting):.0f}",
            repeats=len(drifting),
            of=len(known),
        )


def unknown_gpu_notes(cases: Mapping[str, list[Record]]) -> list[str]:
    """Figures of GPUs that no record has, with the reasons."""
    reasons: dict[str, list[str]] = {}
    for record in (record for records in cases.values() for record in records):
        found = {
            **(record.gpus.why_no if record.gpus else {}),
            **(record.stability.why_no_gpu if record.stability else {}),
        }
        for name, reason in found.items():
            figure = _FIGURES_OF_GPUS.get(name, name)
            if figure not in reasons.setdefault(reason, []):
                reasons[reason].append(figure)
    text = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
    return [_UNKNOWN_GPU_FIGURES.format(figures=text)] if text else []


def setting_notes(cases: Mapping[str, list[Record]]) -> list[str]:
    """Settings of the workers' machine that let the clock of its cores change, and GPUs that differ."""
    machines = {r.machine for records in cases.values() for r in records if r.machine is not None}
    slow = sorted(
        {machine.governor for machine in machines if machine.governor not in (None, *_STEADY_GOVERNORS)}
    )
    notes = [_GOVERNOR.format(governor=name) for name in slow]
    if any(machine.turbo for machine in machines):
        notes.append(_TURBO)
    if any(machine.hyper_threads for machine in machines):
        notes.append(_HYPER_THREADS)
    kinds = dict.fromkeys(gpu.model for machine in machines for gpu in machine.gpus or () if gpu.model)
    if len(kinds) > 1:
        notes.append(_GPU_KINDS.format(kinds=", ".join(kinds)))
    return notes
