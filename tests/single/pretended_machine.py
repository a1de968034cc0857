"""A machine as a job script finds it: what is on its PATH, and what its scheduler says."""

import shutil
import subprocess
import sys
from pathlib import Path

from corpora import PROJECT

TRAINER, DOCTOR, RANK_DEVICE = (
    PROJECT / path for path in ("LSTM/main_trainer.py", "scripts/doctor.py", "LSTM/rank_device.sh")
)
COMMANDS = ("bash", "env", "cat", "dirname", "sort", "wc")


class Machine:
    """A folder to stand in, and a PATH on which there are only basic commands, stand-ins, and this very Python."""

    def __init__(self, folder):
        self.folder, self.bin = folder / "some folder", folder / "bin"
        for path in (self.folder, self.bin):
            path.mkdir()
        for command in COMMANDS:
            (self.bin / command).symlink_to(shutil.which(command))
        self.add("mpiexec")
        self.python = self.add("python", f'exec "{sys.executable}" "$@"')

    @property
    def surroundings(self):
        """The project may have an environment of its own here; the launcher would enter it."""
        return {"venv": self.folder / "no environment"}

    def add(self, command, does="exit 99"):
        path = self.bin / command
        path.write_text(f"#!/usr/bin/env bash\n{does}\n")
        path.chmod(0o755)
        return path

    def has_gpus(self, count):
        self.add("nvidia-smi", f"for ((i = 0; i < {count}; i++)); do echo $i; done")

    def run(self, script, *arguments, folder=None, path=None, **variables):
        script = script if isinstance(script, Path) else PROJECT / "LSTM" / script
        return subprocess.run(
            ["bash", script, *map(str, arguments)],
            env={name: str(value) for name, value in {**self.surroundings, **variables}.items()}
            | {"PATH": path or str(self.bin)},
            cwd=folder or self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def launch_line(self, script, *arguments, **variables):
        """What a dry run prints, with the paths that differ between machines replaced by short words."""
        done = self.run(script, *arguments, DRY_RUN=1, **variables)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\n") == 1
        words = {self.python: "PYTHON", TRAINER: "TRAINER", RANK_DEVICE: "RANK_DEVICE", DOCTOR: "DOCTOR"}
        line = done.stdout.strip()
        for path, word in words.items():
            line = line.replace(str(path), word)
        return line

    def pbs(self, nodes):
        """What PBS sets on Polaris: a node file with one line for each node."""
        file = self.folder / "nodes"
        file.write_text("".join(f"x3005c0s{node}b0n0\n" for node in range(nodes)))
        return {
            "PBS_JOBID": "1234.polaris-pbs-01",
            "PBS_ENVIRONMENT": "PBS_BATCH",
            "PBS_NODEFILE": file,
            "PBS_O_WORKDIR": PROJECT,
        }

    @staticmethod
    def slurm(nodes, tasks_per_node):
        return {
            "SLURM_JOB_ID": 77,
            "SLURM_JOB_NUM_NODES": nodes,
            "SLURM_NTASKS": nodes * tasks_per_node,
            "SLURM_NTASKS_PER_NODE": tasks_per_node,
            "SLURM_SUBMIT_DIR": PROJECT,
        }
