import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.provision.worker_environment import process_variables

N_BYTES = 64 << 20
FAULTS_OF_A_SECOND_TENSOR = f"""
import resource
import numpy as np
np.ones({N_BYTES}, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones({N_BYTES}, np.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_a_tensor_takes_the_pages_of_the_one_before(tmp_path: Path) -> None:
    def n_faults(variables: Mapping[str, str]) -> int:
        own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        command = [sys.executable, "-c", FAULTS_OF_A_SECOND_TENSOR]
        done = subprocess.run(command, env=own | variables, capture_output=True, text=True, check=True)
        return int(done.stdout)

    n_without = n_faults(process_variables(tmp_path, "cpu", tmp_path))
    assert n_without * 4 < n_faults({})
