"""scripts/doctor.py: run as a user runs it, alone and under mpiexec, and its judgement of facts from other machines."""

import os
import sys
from types import SimpleNamespace

import pytest

import doctor
from corpora import PROJECT, run_program
from doctor import FAULT, NOTE, OK
from link_speed import LinkSpeed
from oktopk.launchers import LAUNCHED_RANKS, MEETING_POINT, OWN_PLACE
from parallel.ranks import run_ranks, run_torch_ranks
from surroundings import MANIFESTS, requirements

LAUNCHERS_OWN = [name for pair in LAUNCHED_RANKS.items() for name in pair] + [*MEETING_POINT, *OWN_PLACE]
TOPICS = ["python", "packages", "mpi", "launcher", "transport", "ranks", "hosts", "devices", "data", "disk"]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in LAUNCHERS_OWN:
        monkeypatch.delenv(name, raising=False)


def diagnose(corpus, tmp_path, *words, python=(), **environment):
    options = ("--data-dir", corpus, "--run-dir", tmp_path / "runs", *words)
    return run_program([*python, "scripts/doctor.py"], *options, environment=environment)


def rows(output):
    """State and text of each topic."""
    found = {}
    for line in output.splitlines():
        state, _, rest = line.strip().partition(" ")
        if state in (OK, NOTE, FAULT):
            topic, text = rest.split(maxsplit=1)
            found[topic] = (state, text)
    return found


def test_a_sound_machine_is_ready(corpus, tmp_path):
    done = diagnose(corpus, tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    assert done.stdout.endswith("\nready to train\n")
    found = rows(done.stdout)
    assert list(found) == TOPICS
    assert found["transport"][1].startswith("mpi: mpi4py ")
    assert sys.executable in found["python"][1]
    assert found["data"][0] == OK
    assert "12 + 4 utterances, all readable" in " ".join(done.stdout.split())
    assert not (tmp_path / "runs").exists()


def test_two_ranks_give_one_table_with_the_links_between_them(corpus, tmp_path):
    program = PROJECT / "scripts" / "doctor.py"
    done = run_ranks(2, program, "--data-dir", corpus, "--run-dir", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ready to train") == 1
    found = rows(done.stdout)
    assert found["ranks"][1].startswith("2")
    assert "µs and" in found["links"][1]
    assert "(rank 1)" in " ".join(done.stdout.split())
    assert found["hosts"][1].split(";")[0].endswith("(2)")


def test_torchruns_ranks_need_no_mpi(corpus, tmp_path, without_mpi):
    program = PROJECT / "scripts" / "doctor.py"
    done = run_torch_ranks(2, program, "--data-dir", corpus, "--run-dir", tmp_path, **without_mpi)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ready to train") == 1
    found = rows(done.stdout)
    assert list(found) == [*TOPICS, "links"]
    assert found["mpi"][0] == NOTE
    assert found["mpi"][1].startswith("no MPI; torchrun works")
    assert found["launcher"] == (OK, found["launcher"][1])
    assert found["transport"] == (OK, "torch: torch.distributed over gloo")
    assert found["ranks"][1].startswith("2, as WORLD_SIZE says")
    assert found["hosts"][1].split(";")[0].endswith("(2)")
    assert "µs and" in found["links"][1]


def test_torch_between_ranks_of_another_launcher(corpus, tmp_path, without_mpi):
    program, port = PROJECT / "scripts" / "doctor.py", 20_000 + os.getpid() % 10_000
    options = ("--data-dir", corpus, "--run-dir", tmp_path, "--transport", "torch")
    done = run_ranks(2, program, *options, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **without_mpi)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows(done.stdout)["ranks"][1].startswith("2, as PMI_SIZE says")
    lost = run_ranks(2, program, *options)
    assert lost.returncode == 1
    assert "set MASTER_ADDR" in " ".join(lost.stdout.split())


def test_no_mpi_is_a_fault_where_its_launcher_started_ranks_and_else_a_note(corpus, tmp_path, without_mpi):
    alone = diagnose(corpus, tmp_path, **without_mpi)
    assert alone.returncode == 0, alone.stdout
    assert rows(alone.stdout)["mpi"][0] == NOTE
    assert rows(alone.stdout)["transport"] == (OK, "alone: one rank has nobody to reach")
    assert "torch.distributed.run" in rows(alone.stdout)["ranks"][1]
    ranks = run_ranks(2, PROJECT / "scripts" / "doctor.py", "--data-dir", corpus, "--run-dir", tmp_path, **without_mpi)
    assert ranks.returncode == 1
    found = rows(ranks.stdout)
    assert {topic for topic in found if found[topic][0] == FAULT} == {"mpi", "transport", "ranks"}


def test_ranks_without_torch_still_compare_what_they_see(corpus, tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so: cannot open shared object file')\n")
    options = ("--data-dir", corpus, "--run-dir", tmp_path)
    done = run_ranks(2, PROJECT / "scripts" / "doctor.py", *options, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout.count(" to mend before a run can start") == 1
    found = rows(done.stdout)
    assert found["ranks"] == (OK, "2, as PMI_SIZE says")
    assert found["hosts"][1].split(";")[0].endswith("(2)")
    assert "torch does not load: libcudart" in found["packages"][1]


def test_all_ranks_end_with_the_status_of_the_table(tmp_path):
    program = PROJECT / "scripts" / "doctor.py"
    done = run_ranks(2, program, "--data-dir", tmp_path, "--run-dir", tmp_path)
    assert done.returncode == 1
    assert done.stdout.count("1 to mend") == 1


@pytest.mark.parametrize("size", ["OMPI_COMM_WORLD_SIZE", "PALS_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_ranks_that_each_believe_they_are_alone_are_found_out(size, corpus, tmp_path):
    rank = LAUNCHED_RANKS[size]
    first = diagnose(corpus, tmp_path, **{size: "4", rank: "0"})
    assert first.returncode == 1
    state, text = rows(first.stdout)["ranks"]
    assert state == FAULT
    assert f"the launcher started 4 ranks ({size}), but MPI counts 1" in text
    assert "--no-binary=mpi4py" in first.stdout
    other = diagnose(corpus, tmp_path, **{size: "4", rank: "2"})
    assert (other.returncode, other.stdout) == (1, "")


def test_a_shell_inside_a_slurm_job_is_no_rank(corpus, tmp_path):
    assert diagnose(corpus, tmp_path, SLURM_NTASKS="4", SLURM_PROCID="0").returncode == 0


def test_without_any_package_it_still_says_what_is_missing(corpus, tmp_path):
    done = diagnose(corpus, tmp_path, python=("-S",), PYTHONPATH="")  # -S: without site-packages
    assert done.returncode == 1
    assert done.stderr == ""
    found = rows(done.stdout)
    assert "torch is missing" in found["packages"][1]
    assert found["mpi"][1].startswith("mpi4py does not load")
    assert "python -m pip install -r requirements.txt" in done.stdout
    assert found["data"][0] == NOTE


def test_ranks_without_mpi4py_are_told_so_once(corpus, tmp_path):
    done = diagnose(corpus, tmp_path, python=("-S",), PYTHONPATH="", PMI_SIZE="2", PMI_RANK="0")
    assert "the launcher started 2 (PMI_SIZE)" in rows(done.stdout)["ranks"][1]
    assert diagnose(corpus, tmp_path, python=("-S",), PYTHONPATH="", PMI_SIZE="2", PMI_RANK="1").stdout == ""


def test_a_torch_that_does_not_load_is_a_row(corpus, tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so: cannot open shared object file')\n")
    done = diagnose(corpus, tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == ""
    assert "torch does not load: libcudart.so" in " ".join(done.stdout.split())


def test_faulty_data_are_named_with_their_line(tmp_path):
    for name in MANIFESTS:
        (tmp_path / name).write_text("gone.wav,gone.txt\n")
    done = diagnose(tmp_path, tmp_path)
    assert done.returncode == 1
    said = f"{tmp_path}/an4_train_manifest.csv:1: there is no audio file"
    assert said.replace(" ", "") in "".join(done.stdout.split())  # a long path is broken anywhere


def test_a_place_that_cannot_be_written_is_a_fault(corpus, tmp_path):
    (tmp_path / "runs").write_text("a file")
    done = diagnose(corpus, tmp_path)
    assert done.returncode == 1
    assert rows(done.stdout)["disk"][1].startswith("cannot write in ")


def facts(**changes):
    return {
        "host": "node1",
        "python": "3.12.1",
        "packages": dict(requirements()),
        "torch_fault": None,
        "backends": ["gloo"],
        "first_device": None,
        "cores": [0, 1],
        "data": list(MANIFESTS),
        **changes,
    }


def versions(**changes):
    return facts()["packages"] | changes


@pytest.mark.parametrize(
    ("check", "ranks", "state", "words"),
    [
        (doctor.check_python, [facts(python="3.9.18")], FAULT, "3.9.18"),
        (doctor.check_python, [facts(python="3.10.14")], FAULT, "3.10.14"),
        (doctor.check_python, [facts(), facts(python="3.11.7")], FAULT, "ranks run 3.11.7, 3.12.1"),
        (doctor.check_packages, [facts()], OK, "all 10"),
        (doctor.check_packages, [facts(packages=versions(torch="2.10.0+cu128"))], OK, "all 10"),
        (
            doctor.check_packages,
            [facts(packages=versions(torch="2.1.2+cu121"))],
            FAULT,
            "torch is older than 2.3",
        ),
        (
            doctor.check_packages,
            [facts(), facts(packages=versions(numba=None))],
            FAULT,
            "numba is missing on some",
        ),
        (
            lambda ranks: doctor.check_packages(ranks, spared=("mpi4py",)),
            [facts(packages=versions(mpi4py=None))],
            OK,
            "all 9 of requirements.txt but mpi4py",
        ),
        (doctor.check_packages, [facts(packages=versions(mpi4py=None))], FAULT, "mpi4py is missing"),
        (doctor.check_packages, [facts(), facts(packages=versions(torch="2.9"))], FAULT, "torch differs"),
        (doctor.check_hosts, [facts(), facts()], OK, "node1 (2)"),
        (doctor.check_hosts, [facts()] * 3, NOTE, "3 ranks share 2 cores of node1"),
        (doctor.check_hosts, [facts(cores=[0]), facts(cores=[1]), facts(host="node2")], OK, "node2 (1)"),
        (doctor.check_devices, [facts()], OK, "CPU"),
        (doctor.check_devices, [facts(first_device="3"), facts(first_device="2")], OK, "one for each rank"),
        (
            doctor.check_devices,
            [facts(first_device="0"), facts(first_device="0")],
            NOTE,
            "2 ranks of node1 have 1",
        ),
        (doctor.check_devices, [facts(first_device="0"), facts()], NOTE, "2 ranks of node1 have 1"),
        (doctor.check_devices, [facts(first_device="0"), facts(first_device="0", host="b")], OK, "one for each"),
    ],
)
def test_the_facts_of_other_machines(check, ranks, state, words):
    finding = check(ranks)
    assert finding.state == state
    assert words in finding.text
    assert (finding.remedy != "") == (state != OK)


def test_a_host_that_does_not_see_the_data_is_named(corpus):
    finding = doctor.check_data([facts(), facts(host="node2", data=[])], corpus)
    assert finding.state == FAULT
    assert finding.text.startswith("node2 cannot see")


@pytest.mark.parametrize(
    ("library", "launcher", "state"),
    [
        ("MPICH Version: 4.3", "HYDRA build details:", OK),
        ("MPICH Version: 4.3", "mpiexec (Open MPI) 5.0.3", NOTE),
        ("MPI VERSION : CRAY MPICH version 8.1.28", "HYDRA build details:", NOTE),
        ("MPICH Version: 4.3", "mpiexec (PALS) 1.2.12", NOTE),
        ("Open MPI v5.0.3", "mpiexec (Open MPI) 5.0.3", OK),
        ("Open MPI v5.0.3", "a launcher of which we know nothing", OK),
    ],
)
def test_a_launcher_of_another_mpi_is_noted(library, launcher, state, tmp_path, monkeypatch):
    path = tmp_path / "mpiexec"
    path.write_text(f"#!/bin/sh\necho '{launcher}'\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    finding = doctor.check_launcher(SimpleNamespace(Get_library_version=lambda: library))
    assert finding.state == state


def test_no_launcher_is_a_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    assert doctor.check_launcher(None).state == FAULT
    assert doctor.check_launcher(None, spared=True).state == NOTE


def test_an_mpi_for_the_main_thread_alone_is_a_fault():
    mpi = SimpleNamespace(
        THREAD_SERIALIZED=2, THREAD_MULTIPLE=3, Query_thread=lambda: 1, Get_version=lambda: (4, 0),
        Get_library_version=lambda: "MPICH Version: 4.3",
    )  # fmt: skip
    assert doctor.check_mpi(mpi, None).state == FAULT


def test_a_slow_link_is_noted():
    speed = LinkSpeed(latency=5e-5, bandwidth=1e8, partner=3, allreduce=2.0)
    finding = doctor.check_links(speed)
    assert finding.state == NOTE
    assert "0.1 GB/s" in finding.text
    assert "rank 3" in finding.text
    assert "MPI may be on TCP" in finding.remedy
    assert "GLOO_SOCKET_IFNAME" in doctor.check_links(speed, "torch").remedy
