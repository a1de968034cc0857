"""Starting a worker under the real mpiexec, with a time limit, and reading what it found."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKERS = Path(__file__).parent / "workers"
RANKS = (1, 2, 3, 4, 5, 7, 8)


def launcher():
    """mpiexec or mpirun: the environment's own first, for a PyPI MPI is not always on the PATH."""
    beside_python = Path(sys.executable).parent
    for name in ("mpiexec", "mpirun"):
        if (beside_python / name).exists():
            return str(beside_python / name)
    found = shutil.which("mpiexec") or shutil.which("mpirun")
    assert found, "neither mpiexec nor mpirun is on the PATH: install an MPI, or `pip install mpich`"
    return found


def run_ranks(ranks, program, *arguments, seconds=240, **variables):
    """Run a Python program on so many ranks; returns the finished process, whatever its status."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("LSTM", "tests", "tests/parallel")),
        "OMP_NUM_THREADS": "1",
        "MPIR_CVAR_POLLS_BEFORE_YIELD": "0",  # more ranks than cores: those that wait make room
        **variables,
    }
    command = [launcher(), "-n", str(ranks), sys.executable, str(program), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)


def findings_of(ranks, worker, *arguments, seconds=240):
    """Run one of the workers; rank 0's last line of output is a JSON object."""
    done = run_ranks(ranks, WORKERS / worker, *arguments, seconds=seconds)
    assert done.returncode == 0, f"{worker} on {ranks} ranks ended with {done.returncode}:\n{done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1])
