"""Fixed phrases of verdicts, and the table of notes: each kind with its severity, phrase and remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from harness.records.comparison import MIN_REPEATS_INTERVAL
from reports.rows.report import Note, Severity

# Claims, each after the label of its kind.
FASTEST: Final = "{leader}, {ratios}"
ONE_DEVICE_IS_FASTEST: Final = "{leader}: one device is fastest; next is {second}, {ratio}"
BASELINE_IS_FASTEST: Final = "{leader}, the baseline; next is {second}, {ratio}"
NEXT: Final = "{ratio}, the next"
TIED: Final = "{names} are tied: {ratio}; {decides}"
NO_INTERVAL: Final = "{leader} leads{ratio}; --repeats {least} or more decides"
ONLY_ONE: Final = "only {leader} was measured and checked correct"
NO_CANDIDATE: Final = "no strategy was measured and checked correct"
UNDER_FAULTS: Final = "strategies are not ranked under faults; compare {metrics}"
UNDER_FAULTS_UNMEASURED: Final = (
    "strategies are not ranked under faults; set measure.evaluate to compare the models"
)

# What would decide a tie.
REPEATS_TO_DECIDE: Final = "about {n} repeats would decide: --repeats {n}"
TOO_MANY_TO_DECIDE: Final = "more than {n} repeats would be needed to decide"
TOO_FEW_REPEATS: Final = f"too few repeats of {{names}}, at least {MIN_REPEATS_INTERVAL} are needed"

# Details.
FASTEST_TOO: Final = "Fastest: {claim}"
SENDS_FEWER: Final = "{name} sends {share} fewer bytes than {other}{how}"
SENDS_MORE: Final = "{name} sends {share} more bytes than {other}{how}"
SENDS_TIMES: Final = "{name} sends {share} the bytes of {other}{how}"
BY_PREDICTION: Final = " (predicted)"
SENT: Final = "Sent per step, all workers: {figures}"
SENT_OVER_TCP: Final = "{name} {sent} over TCP ({apart}predicted payload {payload})"
SENT_PREDICTED: Final = "{name} {payload} (predicted; TCP not measured)"
SENT_NOTHING: Final = "{name} nothing"
SENT_UNKNOWN: Final = "{name} not stored"
NOT_SIGNIFICANT: Final = "No significant difference between {first} and {second}: p = {p}"
NOT_SIGNIFICANT_CORRECTED: Final = (
    "No significant difference between {first} and {second}: p = {p}, {corrected} corrected for {n} pairs"
)
EMULATED: Final = "Rates are those of emulated TPU cores; on TPUs the order may differ"
NOT_RANKED: Final = "{how}, not ranked: {names}"
FASTER: Final = "Faster"
FASTER_WITHOUT_INTERVAL: Final = "Faster (no CI)"
NOT_DIFFERENT: Final = "As fast"
MEASURED: Final = "Measured"
WITHOUT_RESULT: Final = "No result: {names}"
NO_ANSWER: Final = {
    "fastest": "compare.goal is fastest, but fewer than two strategies were measured and checked correct",
    "cheapest": "compare.goal is cheapest, but fewer than two ranked strategies have a price; set "
    "cluster.price_per_hour",
    "network": "compare.goal is network, but fewer than two ranked strategies sent a known number of bytes",
}

# Answers for other goals.
CHEAPEST: Final = "{leader} is cheapest: {cost}"
CHEAPEST_TIED: Final = "{names} are tied for cheapest: {leader} {cost}"
CHEAPEST_NO_INTERVAL: Final = "{leader} is cheapest by its mean: {cost}, no CI"
LEAST_NETWORK: Final = "{leader} sends least: {figure}{rate}"
BYTES_TIED: Final = "{names} are tied for least traffic: {leader} {figure}{rate}"
BYTES_BOUNDED: Final = "only an upper bound is known of {bounded}"
BYTES_TOO_FEW: Final = f"at least {MIN_REPEATS_INTERVAL} repeats of each are needed"

# Links of several rates.
OVERTAKES: Final = "{slower}, {name} overtakes {other} (measured at {low} and {high}, n = {n})"
MAY_OVERTAKE: Final = (
    "{slower}, {name} may overtake {other}: not significant at {ends} (measured at {low} and {high}, n = {n})"
)
BELOW: Final = "Below about {rate}"
SOMEWHERE_ABOVE: Final = "Somewhere above {rate}"
NONE_OVERTAKES: Final = "No strategy overtakes {best} between the measured link rates"
NONE_OVERTAKES_PERHAPS: Final = (
    "No strategy overtakes {best} between the measured link rates, by means: not significant at {ends}"
)
NONE_OVERTAKES_ELSEWHERE: Final = "Between the other link rates no strategy overtakes the best, by means"
UNKNOWN_WITH_ONE: Final = (
    "Unknown between {low} and {high}: only {name} was measured and checked correct at both; measure another"
)
UNKNOWN_WITH_NONE: Final = (
    "Unknown between {low} and {high}: no strategy was measured and checked correct at both; measure two"
)
UNKNOWN_WITHOUT_BEST: Final = (
    "Unknown between {low} and {high}: {best} is best at {here}, but has no checked result at {there}; "
    "measure it there"
)

Subject = Literal["machine", "correctness", "figures", "method"]


@dataclass(frozen=True, slots=True)
class NoteKind:
    """Severity, subject, phrase and remedy of one kind of note."""

    severity: Severity
    subject: Subject
    phrase: str
    remedy: str = ""


_REPEATS = "in {n} of {of} repeats"
NOTES: Final[Mapping[str, NoteKind]] = {
    "machine-busy": NoteKind(
        "warning",
        "machine",
        f"machine busy: other programs used {{share}} % of the workers' cores {_REPEATS}{{most}}",
        "rerun on an idle machine",
    ),
    "cores-shared": NoteKind(
        "warning", "machine", "{text}", "use fewer workers or a machine with more cores"
    ),
    "cores-stolen": NoteKind(
        "warning",
        "machine",
        f"machine busy: other virtual machines used {{share}} % of the workers' cores {_REPEATS}",
        "rerun on an idle host",
    ),
    "cpu-limited": NoteKind(
        "warning",
        "machine",
        f"CPU limited: a cgroup quota withheld {{share}} % of the workers' cores {_REPEATS}",
        "raise the CPU limit of the container",
    ),
    "gpu-busy": NoteKind(
        "warning",
        "machine",
        f"GPU busy: other programs used {{share}} % of a GPU's time {_REPEATS}",
        "rerun on idle GPUs",
    ),
    "gpu-shared": NoteKind(
        "warning",
        "machine",
        f"GPU shared: {{programs}} other program(s) on a worker's GPU {_REPEATS}",
        "rerun on idle GPUs",
    ),
    "gpu-slowed": NoteKind(
        "warning",
        "machine",
        f"GPU slowed: clocks were held down for {{share}} % of the time {_REPEATS} ({{reasons}})",
        "check power and cooling",
    ),
    "cores-hot": NoteKind(
        "warning", "machine", "CPU throttled by heat while {names} ran", "check cooling, then rerun"
    ),
    "capture-wrong": NoteKind("warning", "correctness", "captured step differs: {text}"),
    "not-separable": NoteKind("warning", "correctness", "NOT SEPARABLE: {names}: {text}"),
    "check-blind": NoteKind(
        "warning",
        "correctness",
        "check is blind: {names} sends nothing, yet passed the check",
        "do not rely on ✓ for this workload",
    ),
    "advice": NoteKind("warning", "method", "{names}: {text}"),
    "self-differs": NoteKind(
        "warning",
        "figures",
        "A/A test failed: {names} is {ratio} itself",
        "distrust differences of this size",
    ),
    "baseline-absent": NoteKind("warning", "method", "{text}"),
    "batch-differs": NoteKind(
        "warning",
        "method",
        "batch of {names} is {batch}, of the others {usual}",
        "compare examples/s, not step times",
    ),
    "tpu-emulated": NoteKind(
        "warning",
        "method",
        "TPU cores are emulated: rates are those of this machine",
        "do not choose a strategy for TPUs by them",
    ),
    "input-bound": NoteKind(
        "warning",
        "method",
        "input-bound: share of step time waiting for input: {shares}",
        "use --input staged or a faster dataset",
    ),
    "ratios-wide": NoteKind(
        "warning",
        "figures",
        "CI target of {within} not reached: {ratios}",
        "raise measure.until.at_most",
    ),
    "bytes-below": NoteKind(
        "warning",
        "figures",
        "{names}: {outer} bytes are below {inner} bytes",
        "one of the two is wrong: report it",
    ),
    "bytes-apart": NoteKind(
        "warning",
        "figures",
        "{names}: {outer} bytes are {times} the {inner} bytes",
        "expected within {most} %: look for other traffic",
    ),
    "bytes-unexpected": NoteKind(
        "warning",
        "figures",
        "{names}: {outer} bytes without {inner} bytes",
        "look for other traffic",
    ),
    "rows-summed": NoteKind(
        "warning",
        "method",
        "sparse rows with equal ids are summed before the update in {summed}, not in {kept}",
        "with Adam-like optimizers or clipping these take different steps",
    ),
    "warmup-unsettled": NoteKind("warning", "figures", "{text}", "raise measure.warmup_steps"),
    "retransmits": NoteKind("warning", "machine", "{text}", "check the network"),
    "drift": NoteKind(
        "warning",
        "machine",
        f"step time drifted by up to {{share}} % {_REPEATS} ({{names}})",
        "compare ratios, not examples/s",
    ),
    "slow-steps": NoteKind("note", "figures", "slow steps: average rate below the median rate by {shares}"),
    "repeats-missing": NoteKind("note", "figures", "{names}: {n} of {of} repeats have a result"),
    "ratios-robust": NoteKind(
        "note", "machine", "load affects examples/s; ratios, measured in turns, hardly"
    ),
    "ratios-affected": NoteKind(
        "note",
        "machine",
        "load affects examples/s and ratios: cases took no turns",
        "set measure.interleave: true",
    ),
    "payload-bound": NoteKind(
        "note", "figures", "payload of {names} is an upper bound: sparse rows are known only at run time"
    ),
    "separability-unknown": NoteKind("note", "correctness", "{names}: {text}"),
    "capture-unknown": NoteKind("note", "correctness", "captured step: {text}"),
    "self": NoteKind("note", "method", "A/A test: {names} is {ratio} itself"),
    "ratios-narrow": NoteKind("note", "figures", "CI target of {within} reached"),
    "links-differ": NoteKind("note", "method", "link limits differ: {links}"),
    "bfloat16": NoteKind("note", "method", "mixed precision: layers in bfloat16, variables in float32"),
    "float16": NoteKind(
        "note", "method", "mixed precision: layers in float16 with loss scaling, variables in float32"
    ),
    "xla": NoteKind(
        "note", "method", "XLA compiles each worker's computation, not communication or Python calls"
    ),
    "tf32": NoteKind(
        "note", "method", "float32 products may round to TF32 in timed steps, never in the check"
    ),
    "pipeline": NoteKind("note", "method", "batches come from the workload's own tf.data pipeline"),
    "preparation": NoteKind(
        "note",
        "method",
        "up to {total} s before the first timed step ({names}: {stages}); limit of capture and references: "
        "{limit} s",
    ),
    "observer": NoteKind("note", "method", "instrumentation changes the mean step: {changes}"),
    "observer-unknown": NoteKind("note", "method", "overhead of instrumentation unknown for {names}: {text}"),
    "gpu-figures-unknown": NoteKind("note", "machine", "GPU figures unknown in some repeats: {figures}"),
    "governor": NoteKind(
        "note", "machine", "CPU governor is {governor}: clocks change", "set it to performance"
    ),
    "turbo": NoteKind("note", "machine", "CPU turbo is on: few busy cores run faster than many"),
    "hyper-threads": NoteKind("note", "machine", "hyper-threading is on: a core may be half of one"),
    "gpu-kinds": NoteKind("note", "machine", "workers have different GPUs: {kinds}"),
    "record": NoteKind("note", "method", "{text}"),
}
"""Kind → its row; among those of one severity the first is the gravest."""

_ORDER = {kind: (row.severity != "warning", place) for place, (kind, row) in enumerate(NOTES.items())}


def note(kind: str, *strategies: str, **values: object) -> Note:
    """Fill in the phrase of one kind of note.

    Args:
        strategies: those that it concerns, which the phrase may name.
        values: other fields of phrase and remedy.
    """
    row, fields = NOTES[kind], {"names": ", ".join(strategies), **values}
    return Note(
        kind=kind,
        severity=row.severity,
        phrase=row.phrase.format(**fields),
        remedy=row.remedy.format(**fields),
        strategies=strategies,
    )


def by_gravity(notes: Sequence[Note]) -> tuple[Note, ...]:
    """Sort notes: the gravest warning of each subject, then the other warnings, then the rest."""
    ordered = sorted(notes, key=lambda item: _ORDER[item.kind])
    gravest: dict[str, Note] = {}
    for item in ordered:
        if item.severity == "warning":
            gravest.setdefault(NOTES[item.kind].subject, item)
    first = {id(item) for item in gravest.values()}
    return (*gravest.values(), *(item for item in ordered if id(item) not in first))
