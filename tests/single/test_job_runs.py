"""The job scripts as they are used: they train, go on, and start other programs."""

import json
import os
import sys
from pathlib import Path

import pytest
from pretended_machine import DOCTOR

from corpora import make_corpus
from runs import records


def test_a_script_trains_on_this_machine_and_sent_again_goes_on(machine, tmp_path):
    """From another folder, with the launcher beside this Python, past the start of the sparse phase."""
    corpus, run = make_corpus(tmp_path / "corpus", train=8, val=2), tmp_path / "run"
    small = {"batch_size": 2, "max_epochs": 1, "warmup_iters": 1, "hidden_size": 16, "hidden_layers": 2}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    small |= {"resume": "auto", "data_dir": corpus, "OMP_NUM_THREADS": 1}
    for epochs in (1, 2):
        small["max_epochs"] = epochs
        done = machine.run("lstm_topkDSA.sh", "--run-dir", run, "--device", "cpu", path=path, **small)
        assert done.returncode == 0, done.stderr
    phases = [record["phase"] for record in records(run) if record["kind"] == "iter"]
    assert phases == ["dense", "sparse", "sparse", "sparse"]
    assert [record["iter"] for record in records(run) if record.get("name") == "resumed"] == [2]
    options = json.loads((run / "config.json").read_text())["options"]
    assert (options["nworkers"], options["compressor"], options["lr"]) == (2, "topkDSA", 0.01)


@pytest.mark.parametrize("has_mpi", [True, False])
def test_a_script_trains_by_torch_with_an_mpi_launcher_and_without(machine, tmp_path, without_mpi, has_mpi):
    corpus, run = make_corpus(tmp_path / "corpus", train=8, val=2), tmp_path / "run"
    small = {"batch_size": 2, "max_epochs": 1, "warmup_iters": 1, "hidden_size": 16, "hidden_layers": 2}
    (machine.bin / "mpiexec").unlink()  # the stand-in
    path = str(machine.bin)
    if has_mpi:
        path += f"{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"transport": "torch", "data_dir": corpus, "OMP_NUM_THREADS": 1, **without_mpi, **small}
    done = machine.run("lstm_oktopk.sh", "--run-dir", run, "--device", "cpu", path=path, **variables)
    assert done.returncode == 0, done.stderr
    assert [record["phase"] for record in records(run) if record["kind"] == "iter"] == ["dense", "sparse"]
    config = json.loads((run / "config.json").read_text())
    assert (config["ranks"], config["options"]["transport"]) == (2, "torch")


def test_the_doctor_can_be_started_as_a_run_would_be(machine, tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = machine.run("lstm_oktopk.sh", "--data-dir", tmp_path, path=path, program=DOCTOR, nworkers=3)
    assert done.returncode == 1  # there are no data in that folder
    assert "3, as" in done.stdout
    assert done.stdout.count("1 to mend") == 1
