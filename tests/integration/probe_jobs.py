"""Jobs that the tests of providers run in worker processes."""

import itertools
import multiprocessing
import os
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np

from harness.errors import CaseError
from harness.worker.jobs.training import Batch, Training
from harness.worker.process.job import JobState
from strategies.plan.schema import StepSummary


def add(state: JobState, left: int, right: int) -> int:
    return left + right


def echo(state: JobState, value: object) -> object:
    return value


def remember(state: JobState, value: int) -> int | None:
    before = state.get(int) if state.has(int) else None
    state.put(value)
    return before


def descriptors(state: JobState) -> list[str]:
    with os.scandir("/proc/self/fd") as entries:
        paths = [Path(entry.path) for entry in entries]
    # The listing's own descriptor is closed by now.
    return sorted(str(path.readlink()) for path in paths if path.is_symlink())


def affinity(state: JobState) -> set[int]:
    return os.sched_getaffinity(0)


def environment(state: JobState) -> dict[str, str]:
    return dict(os.environ)


def speak(state: JobState, text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stderr.write(f"{text}\n")


def wait_for_ever(state: JobState) -> None:
    sys.stdout.write("waiting for ever\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


def wait_beside_a_grandchild(state: JobState) -> None:
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,)).start()
    wait_for_ever(state)


def fail(state: JobState) -> None:
    raise np.linalg.LinAlgError("singular\nmore detail")


def fail_as_case(state: JobState) -> None:
    raise CaseError("non-finite-loss", "step 3: the loss is not finite: nan; lower it", stage="collect")


def return_unpicklable(state: JobState) -> object:
    return lambda: None


def exit_with(state: JobState, status: int) -> None:
    os._exit(status)


def fail_unless_first(state: JobState, worker: int) -> None:
    if worker == 0:
        wait_for_ever(state)
    raise RuntimeError("connection to a peer was lost")


def capture_workload(
    state: JobState, name: str, folder: str, n_batches: int
) -> tuple[int, list[list[np.ndarray]], StepSummary]:
    from harness.worker.session.capture_store import save
    from strategies.capture.capture import capture
    from strategies.summary import summarise
    from workloads.data.examples import examples_of
    from workloads.registry import resolve

    workload = resolve(name, {})
    captured = capture(workload.train_step(), workload.dataset(0).element_spec)
    summary = summarise(captured.step, workload.name, captured.rows)
    save(Path(folder), captured.step, captured.initial)
    batches = examples_of(workload).batches(workload.batch_size)
    return workload.batch_size, list(itertools.islice(batches, n_batches)), summary


def die_in_step(state: JobState) -> None:
    training = state.get(Training)
    step = training.session.step

    def dying_step(feeds: Batch) -> object:
        if next(count) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(feeds)

    count = itertools.count()
    training.session.step = dying_step


def lose_in_step(state: JobState, number: int) -> None:
    training = state.get(Training)
    step = training.session.step

    def losing_step(feeds: Batch) -> object:
        losses = step(feeds)
        return [np.float32("nan")] if next(count) == number else losses

    count = itertools.count()
    training.session.step = losing_step


def drop_sum_over_replicas(state: JobState) -> None:
    """Break TensorFlow's own strategies: every replica keeps its gradients to itself."""
    from strategies.baselines import replicated_step

    replicated_step.sum_over_replicas = lambda gradients: gradients  # type: ignore[assignment]


def halve_shares(state: JobState) -> None:
    """Break TensorFlow's own strategies: every replica counts for half of what it is."""
    from strategies.baselines import replicated_step

    traced = replicated_step.in_replica
    replicated_step.in_replica = lambda weight, sums: traced(weight / 2, sums)


def halve_closures(state: JobState) -> None:
    """Break TensorFlow's parameter servers: every closure counts for half of what it is."""
    from strategies.baselines import coordinated

    traced = coordinated.in_replica
    coordinated.in_replica = lambda weight, sums: traced(weight / 2, sums)


def closures(state: JobState, n_closures: int) -> tuple[list[float], list[int]]:
    """Have a coordinator's closures made: their losses and workers."""
    training = state.get(Training)
    step = training.session._step  # type: ignore[attr-defined]
    step.feed(training.feeds)
    losses, _, workers = step.run(n_closures)
    return losses.tolist(), workers.tolist()


def host_name(state: JobState) -> str:
    return socket.gethostname()


def privileges(state: JobState) -> dict[str, object]:
    """Permissions of a worker's process, as the kernel sees them."""
    status = dict(
        line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line
    )
    try:
        Path("/written").touch()
        root_is_writable = True
    except OSError:
        root_is_writable = False
    return {
        "uid": os.getuid(),
        "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
        "no_new_privileges": int(status["NoNewPrivs"]),
        "root_is_writable": root_is_writable,
    }


def fill_memory(state: JobState, n_bytes: int) -> None:
    """Touch so many bytes; with none, wait for a peer that does."""
    if not n_bytes:
        wait_for_ever(state)
    ballast = np.ones(n_bytes, np.uint8)
    raise AssertionError(f"{ballast.nbytes} bytes were to be had")


def fill_disk(state: JobState) -> None:
    """Write until the small file system is full that a container has for its messages."""
    with Path("/dev/shm/filled").open("wb") as file:
        while True:
            file.write(bytes(1 << 20))
