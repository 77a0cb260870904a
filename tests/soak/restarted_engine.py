"""A run whose engine is restarted: `python restarted_engine.py FOLDER PLACE`, in an own network namespace.

FOLDER takes the engine's socket and data, and has the worker image in a file; PLACE takes what workers write.
Writes the kind of the first case's failure and the result of the next.
"""

import functools
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import docker
import probe_jobs
from docker.errors import DockerException
from waiting import eventually, is_waiting

from harness.cluster import ClusterShape
from harness.errors import CaseError
from harness.provision.docker import provider as docker_provider
from harness.provision.protocols import StartOptions

JOBS = Path(__file__).resolve().parents[1] / "integration"


class Engine:
    """A Docker engine with a socket and folders of its own."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix://{folder}/docker.sock"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; return when it answers."""
        folder = self._folder
        arguments = [f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["dockerd", *arguments, f"--host={self.address}"], stdout=log, stderr=log
            )
        eventually(self._answers, 60.0, "the engine answers")

    def stop(self) -> None:
        """End it, and with it its containers."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60.0)

    def _answers(self) -> bool:
        try:
            docker.DockerClient(base_url=self.address, version="auto").close()
        except DockerException:
            return False
        return True


def main(folder: Path, place: Path) -> None:
    """Run the case that is disturbed, and the next."""
    engine = Engine(folder)
    with ExitStack() as stack:
        engine.start()
        stack.callback(engine.stop)
        load = ["docker", "--host", engine.address, "load", "--quiet", "--input", str(folder / "image")]
        subprocess.run(load, check=True, stdout=subprocess.DEVNULL)
        os.environ["DOCKER_HOST"] = engine.address
        os.chdir(JOBS)
        cases = place / "cases"
        cases.mkdir()
        logs = [cases / "a" / f"worker-{k}.log" for k in range(2)]
        options = StartOptions(imports=("json",))
        cluster = stack.enter_context(
            docker_provider.start(
                ClusterShape(workers=2), "restarted", place / "logs", options, reads=[JOBS], writes=[cases]
            )
        )
        with cluster.open_session(range(2), logs) as processes:

            def restart() -> None:
                for log in logs:
                    eventually(functools.partial(is_waiting, log), 30.0, "the job runs")
                engine.stop()
                engine.start()

            thread = threading.Thread(target=restart)
            thread.start()
            try:
                processes.call(probe_jobs.wait_for_ever, [(), ()], timeout_s=120)
            except CaseError as error:
                sys.stdout.write(f"{error.kind}\n")
            thread.join()
        with cluster.open_session(range(2), logs) as processes:
            sums = processes.call(probe_jobs.add, [(1, 2), (3, 4)], timeout_s=30)
            sys.stdout.write(f"{sums}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
