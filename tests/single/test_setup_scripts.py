"""scripts/setup.sh and the README's two commands, with a stand-in for Python that only writes down what is asked."""

import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]

# Knows its version, "makes" environments by copying itself, and takes every module but those in $MISSING for installed.
STAND_IN = """#!/usr/bin/env bash
echo "$*" >>"$LOG"
case "$*" in
    *version_info*) [[ "${VERSION:-new}" == new ]] ;;
    *ensurepip*) [[ "${VENV:-there}" == there ]] ;;
    *find_spec*) for module in ${MISSING-}; do [[ "$*" != *"'$module'"* ]] || exit 1; done ;;
    "-m venv"*) mkdir -p "${@: -1}/bin" && cp "$0" "${@: -1}/bin/python" ;;
    *--requirement*) cat "${@: -1}" >>"$LOG"; [[ "${PIP:-works}" == works ]] ;;
esac
"""


class Machine:
    """A project folder of its own, and a PATH on which there is only the stand-in and the basic commands."""

    def __init__(self, folder):
        self.project = folder / "a project"
        self.bin = folder / "bin"
        self.log = folder / "log"
        for path in (self.project / "audio_data", self.bin):
            path.mkdir(parents=True)
        shutil.copytree(PROJECT / "scripts", self.project / "scripts")
        shutil.copytree(PROJECT / "exp_configs", self.project / "exp_configs")
        (self.project / "LSTM").mkdir()
        for name in ("lstm_oktopk.sh", "launch.sh"):
            shutil.copy(PROJECT / "LSTM" / name, self.project / "LSTM")
        for name in ("requirements.txt", "requirements-dev.txt", "constraints.txt"):
            shutil.copy(PROJECT / name, self.project)
        for command in ("bash", "env", "cat", "grep", "cksum", "dirname", "rm", "cp", "mkdir", "date"):
            (self.bin / command).symlink_to(shutil.which(command))
        self.add("python3")

    def add(self, command):
        (self.bin / command).write_text(STAND_IN)
        (self.bin / command).chmod(0o755)

    def environment(self, folder):
        """Make an environment to activate; returns what activating it sets."""
        (folder / "bin").mkdir(parents=True)
        shutil.copy(self.bin / "python3", folder / "bin" / "python")
        return {"VIRTUAL_ENV": str(folder)}

    def run(self, script, *arguments, **environment):
        self.log.write_text("")
        return subprocess.run(
            ["bash", self.project / "scripts" / script, *arguments],
            env={"PATH": str(self.bin), "LOG": str(self.log), **environment},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @property
    def asked(self):
        return self.log.read_text()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_without_an_environment_one_is_made_from_the_pins_and_torch_comes_first(machine):
    result = machine.run("test.sh", "-k", "one", MISSING="torch")
    assert result.returncode == 0, result.stderr
    asked = machine.asked
    assert f"-m venv --clear {machine.project}/.venv" in asked
    assert asked.index("torch==") < asked.index("--requirement")
    assert asked.count(f"--constraint {machine.project}/constraints.txt") == 2
    assert "\nmpich>=" in asked
    assert "-m pytest --" in asked
    assert asked.endswith(" -k one\n")
    assert str(machine.project / ".venv") in result.stdout


def test_the_second_time_nothing_is_installed(machine):
    machine.run("test.sh")
    result = machine.run("test.sh")
    assert result.returncode == 0
    assert "complete" in result.stdout
    assert "-m pytest --" in machine.asked.splitlines()[-1]
    assert "pip" not in machine.asked
    assert "-m venv" not in machine.asked


def test_changed_requirements_are_installed_over_what_is_there(machine):
    machine.run("test.sh")
    with (machine.project / "requirements.txt").open("a") as file:
        file.write("another-package\n")
    assert machine.run("test.sh").returncode == 0
    assert "another-package" in machine.asked
    assert "-m venv" not in machine.asked


@pytest.mark.parametrize("what_happened_before", ["first set-up", "changed requirements"])
def test_a_set_up_that_was_cut_short_begins_again(machine, what_happened_before):
    if what_happened_before == "changed requirements":
        machine.run("test.sh")
        (machine.project / "constraints.txt").write_text("torch==2.13.0\n")
    failed = machine.run("test.sh", PIP="fails")
    assert failed.returncode == 2
    assert "error: pip could not install" in failed.stderr
    result = machine.run("test.sh")
    assert result.returncode == 0
    assert f"A virtual environment with {machine.bin}/python3" in result.stdout
    assert "-m venv --clear" in machine.asked
    assert "--requirement" in machine.asked


def test_an_environment_whose_python_is_gone_is_made_again(machine):
    machine.run("test.sh")
    (machine.project / ".venv" / "bin" / "python").unlink()
    assert machine.run("test.sh").returncode == 0
    assert "-m venv --clear" in machine.asked
    assert "--requirement" in machine.asked


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_active_environment_is_used_without_pins(machine, tmp_path, variable):
    active = machine.environment(tmp_path / "active")["VIRTUAL_ENV"]
    result = machine.run("test.sh", **{variable: active})
    assert result.returncode == 0, result.stderr
    assert active in result.stdout
    assert "-m venv" not in machine.asked
    assert "--constraint" not in machine.asked
    assert "\nmpich>=" in machine.asked
    assert not (machine.project / ".venv").exists()


@pytest.mark.parametrize("sign", ["mpiexec", "mpirun", "SLURM_JOB_ID", "PBS_JOBID", "CRAYPE_VERSION"])
def test_beside_a_systems_mpi_no_other_is_installed(machine, tmp_path, sign):
    if sign.startswith("mpi"):
        machine.add(sign)
        environment = {}
    else:
        environment = {sign: "1"}
    for compiler in ("mpicc", "cc"):
        machine.add(compiler)
    environment |= machine.environment(tmp_path / "active")
    result = machine.run("test.sh", MISSING="mpi4py", **environment)
    assert result.returncode == 0, result.stderr
    assert "mpich is left out" in result.stdout
    assert "mpich" not in machine.asked
    assert "--no-binary=mpi4py" in machine.asked


def test_the_mpi_of_the_active_environment_itself_is_no_systems(machine, tmp_path):
    environment = machine.environment(tmp_path / "active")
    machine.add("mpiexec")
    shutil.move(machine.bin / "mpiexec", tmp_path / "active" / "bin")
    result = machine.run("test.sh", PATH=f"{tmp_path}/active/bin:{machine.bin}", **environment)
    assert "mpich is left out" not in result.stdout
    assert "\nmpich>=" in machine.asked


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"VERSION": "old"}, "Python 3.11 or newer is needed"),
        ({"VENV": "missing"}, "install python3-venv"),
    ],
)
def test_an_unfit_python_is_one_sentence(machine, state, words):
    result = machine.run("test.sh", **state)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (machine.project / ".venv").exists()


def test_an_active_environment_that_is_too_old_is_one_sentence(machine, tmp_path):
    result = machine.run("test.sh", VERSION="old", **machine.environment(tmp_path / "active"))
    assert result.returncode == 2
    assert "older than Python 3.11" in result.stderr


def with_data(machine):
    for part in ("train", "val"):
        (machine.project / "audio_data" / f"an4_{part}_manifest.csv").write_text("")


def test_the_demo_makes_its_data_first(machine):
    machine.run("demo.sh")
    assert "scripts/prepare_an4.py --synthetic" in machine.asked.splitlines()


def test_the_demo_trains_on_two_ranks_and_reports_on_the_run(machine):
    machine.add("mpiexec")
    with_data(machine)
    result = machine.run("demo.sh", "--density", "0.05")
    assert result.returncode == 0, result.stderr
    train, report = machine.asked.splitlines()[-2:]
    assert train.startswith("-n 2 ")
    assert "main_trainer.py --dnn lstman4" in train
    assert "--compressor oktopk --density 0.02" in train
    run = train.split("--run-dir ")[1].split()[0]
    assert train.endswith(f"--run-dir {run} --density 0.05")
    assert report == f"scripts/report.py {run}"


def test_the_demo_keeps_the_choice_of_the_run_folder(machine):
    with_data(machine)
    result = machine.run("demo.sh", "--run_dir=elsewhere")
    assert result.returncode == 2
    assert "LSTM/lstm_oktopk.sh" in result.stderr


def test_the_demo_takes_the_data_that_is_there(machine):
    machine.add("mpiexec")
    with_data(machine)
    result = machine.run("demo.sh")
    assert result.returncode == 0, result.stderr
    assert "prepare_an4" not in machine.asked
    assert "corpus in audio_data" in result.stdout
