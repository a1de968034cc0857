"""Training one run of an experiment by the job script, so that this works wherever that does."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import _project
from oktopk_training.errors import UserError
from oktopk_training.files import make_folder, writing

JOB_SCRIPT = _project.ROOT / "LSTM" / "lstm_oktopk.sh"
WITH_PARENT = _project.ROOT / "scripts" / "with_parent.py"
CONFIG = "quickstart"
OUTPUT = "output.txt"  # in a run's folder: what the job said
NOT_FOR_RUNS = ("DRY_RUN", "program")  # variables of the job script that would have it train nothing
SEEN = 4096  # bytes at the end of that
TOLD = 6  # lines of these


def words_of(given):
    """All that main_trainer.py is told, with the options of the configuration and of the user's variables."""
    done = subprocess.run(**_job(given, DRY_RUN="1"), stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise UserError(f"the job script ended with status {done.returncode}; mend what it says above")
    line = shlex.split(done.stdout)
    return line[next(place for place, word in enumerate(line) if word.endswith("main_trainer.py")) + 1 :]


def train(run, folder):
    """Begin a run, or go on with it; its status. However this ends, the run is asked for a checkpoint and ends too."""
    with _opened(make_folder(folder) / OUTPUT) as output:
        job = subprocess.Popen(
            **_job([*run.words, "--run-dir", folder, "--resume", "auto"]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the experiment: a run that hears it too ends without a checkpoint
        )
        try:
            return job.wait()
        finally:
            job.terminate()  # nothing that has ended
            job.wait()


def _opened(path):
    with writing(path):
        return open(path, "ab")


def last_lines(folder):
    """Of what a job said, in the order that it said them."""
    with open(folder / OUTPUT, "rb") as output:
        output.seek(max(0, output.seek(0, os.SEEK_END) - SEEN))
        said = output.read().decode(errors="replace")
    return [line for line in said.splitlines() if line.strip()][-TOLD:]


def _job(words, **variables):
    command = [sys.executable, WITH_PARENT, os.getpid(), "bash", JOB_SCRIPT, *words]
    users = {name: value for name, value in os.environ.items() if name not in NOT_FOR_RUNS}
    surroundings = {"config": CONFIG, **users, **_own_python(), **variables}
    return {"args": list(map(str, command)), "env": surroundings}


def _own_python():
    """The job script enters an environment if none is active; the one that this runs in counts as active."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    return {"PATH": path, "VIRTUAL_ENV": os.environ.get("VIRTUAL_ENV", sys.prefix)}
