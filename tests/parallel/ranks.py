"""Starting a worker under the real mpiexec or torchrun, with a time limit, and reading what it found."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKERS = Path(__file__).parent / "workers"
RANKS = (1, 2, 3, 4, 5, 7, 8)
TORCH_RANKS = (1, 2, 3, 5)
SECONDS_TO_END = 15  # that a launcher has to end its ranks


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
    """Run a Python program on so many ranks, by mpiexec; returns the finished process, whatever its status."""
    variables = {"MPIR_CVAR_POLLS_BEFORE_YIELD": "0", **variables}  # more ranks than cores: those that wait make room
    return _run([launcher(), "-n", str(ranks), sys.executable], program, arguments, seconds, variables)


def run_torch_ranks(ranks, program, *arguments, seconds=240, **variables):
    """The same by torchrun, with Gloo and without MPI."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return _run(torchrun, program, arguments, seconds, variables)


def run_script(program, *arguments, seconds=240, **variables):
    """Run a program that starts ranks itself."""
    return _run([sys.executable], program, arguments, seconds, variables)


def _run(launch, program, arguments, seconds, variables):
    """In a session of its own: when time is up, all that was started is ended, and not the launcher alone."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("LSTM", "tests", "tests/parallel")),
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    command = [*launch, str(program), *map(str, arguments)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except BaseException:
            _end(process)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _end(process):
    """Ranks have sessions of their own, which only the launcher knows: it is asked first."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.communicate(timeout=SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def findings_of(ranks, worker, *arguments, seconds=240, launch=run_ranks):
    """Run one of the workers; rank 0's last line of output is a JSON object."""
    done = launch(ranks, WORKERS / worker, *arguments, seconds=seconds)
    assert done.returncode == 0, f"{worker} on {ranks} ranks ended with {done.returncode}:\n{done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1])
