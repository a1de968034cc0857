"""scripts/lab.py: hosts with links of a rate, what runs on them, that nothing is left of them; and who may not."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import ROOT, SECONDS_TO_END, WORKERS, run_script

import lab
from corpora import SMALL, make_corpus
from oktopk_training.errors import UserError
from oktopk_training.trace_files import read_trace

needs_root_and_iproute2 = pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")), reason="a lab needs root and iproute2"
)

LAB = ROOT / "scripts" / "lab.py"
HEADERS = 1514 / 1448  # what Ethernet, IP and TCP with timestamps make of a full packet's content
MEGABITS, MANY = 200, 250
SHORT = 50_000  # bytes
LIMITS = "from 1mbit to 100gbit, found '"


@needs_root_and_iproute2
def test_hosts_have_only_their_links_and_ranks_of_a_host_share_memory(tmp_path):
    """Bytes by the interfaces are those that were counted, and headers; no link is faster than was asked."""
    network = ("--hosts", 2, "--ranks-per-host", 2, "--rate", f"{MEGABITS}mbit", "--json", tmp_path / "bytes.json")
    done = run_script(LAB, *network, "--", sys.executable, WORKERS / "links.py")
    assert done.returncode == 0, done.stderr
    found, counted = json.loads(done.stdout), json.loads((tmp_path / "bytes.json").read_text())
    assert found["hosts"] == ["host0", "host0", "host1", "host1"]
    assert found["sharing"] == [2, 2, 2, 2]
    assert not found["memory"]
    for host, sent in found["sent"].items():
        assert counted["hosts"][host]["sent"] == pytest.approx(HEADERS * sent, rel=0.03)
        assert counted["hosts"][host]["received"] == pytest.approx(HEADERS * sent, rel=0.03)
        assert f"{counted['hosts'][host]['sent']:,} bytes sent" in done.stderr
    assert HEADERS * found["sent"]["host0"] * 8 / found["seconds"] < 1.05 * MEGABITS * 1e6  # less, where cores are busy
    assert found["short"] > 0.8 * 2 * SHORT * 8 / (MEGABITS * 1e6)  # the bucket has a burst of 8 kB


@needs_root_and_iproute2
def test_a_trace_holds_the_bytes_that_went_over_the_links(tmp_path):
    """From the first model that ranks share to the last validation."""
    corpus = make_corpus(tmp_path / "corpus", train=8, val=2)
    options = (*SMALL, "--hidden-size", 128, "--data-dir", corpus, "--run-dir", tmp_path / "run", "--max-epochs", 1)
    program = (sys.executable, "-m", "mpi4py", ROOT / "LSTM" / "main_trainer.py", *options, "--trace")
    done = run_script(LAB, "--hosts", 2, "--rate", "1gbit", "--json", tmp_path / "bytes.json", "--", *program)
    assert done.returncode == 0, done.stderr
    links, traced = json.loads((tmp_path / "bytes.json").read_text()), read_trace(tmp_path / "run")
    assert links["sent"] == pytest.approx(HEADERS * sum(each.sent for each in traced), rel=0.03)


@needs_root_and_iproute2
def test_a_cell_of_the_grid_is_measured_once(tmp_path):
    corpus = make_corpus(tmp_path / "corpus", train=8, val=2)
    trainer = ("--data-dir", corpus, "--batch-size", 1, "--max-epochs", 1, "--hidden-size", 8, "--hidden-layers", 1)
    for only in ("learnt-small-2x10gbit-oktopk.json", "pace-small-2x1gbit"):
        words = ("--out", tmp_path / "links", "--only", only)
        done = run_script(ROOT / "scripts" / "compare_on_links.py", *words, "--", *trainer)
        assert done.returncode == 0, done.stderr
        assert "bytes sent" in done.stderr
    assert (tmp_path / "links" / "table.md").read_text() in done.stdout
    assert re.search(r"^\| oktopk \| .*not in \d+\.\d", done.stdout, re.MULTILINE)
    assert (tmp_path / "links" / "wer-2x1gbit.png").read_bytes().startswith(b"\x89PNG")


@needs_root_and_iproute2
def test_the_grid_ends_with_what_is_wrong_for_all_of_it(tmp_path):
    script, out = ROOT / "scripts" / "compare_on_links.py", ("--out", tmp_path / "links")
    done = run_script(script, *out, "--", "--data-dir", tmp_path / "nothing")
    assert done.returncode == 2
    assert done.stderr.count("error: ") == 2
    assert str(tmp_path / "nothing") in done.stderr
    assert "pace-small-2x100mbit-0.json ended as above says" in done.stderr


@needs_root_and_iproute2
def test_torchrun_starts_an_agent_on_each_host():
    who = ["bash", "-c", "echo $(hostname) $RANK $LOCAL_RANK $WORLD_SIZE"]
    done = run_script(LAB, "--hosts", 2, "--ranks-per-host", 2, "--torchrun", "--", *who)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["host0 0 0 4", "host0 1 1 4", "host1 2 0 4", "host1 3 1 4"]


@needs_root_and_iproute2
@pytest.mark.parametrize("torchrun", [(), ("--torchrun",)])
def test_hosts_share_this_machines_cores(torchrun):
    cores, echo = len(os.sched_getaffinity(0)), "echo $OMP_NUM_THREADS ${MPIR_CVAR_POLLS_BEFORE_YIELD-spins}"
    free = {name: value for name, value in os.environ.items() if name not in lab.of_shared_cores(lab.Network(MANY))}
    for hosts, said in ((cores + 1, "1 0"), (1, f"{cores} spins")):
        words = [sys.executable, LAB, *torchrun, "--hosts", str(hosts), "--", "bash", "-c", echo]
        done = subprocess.run(words, env=free, capture_output=True, text=True, timeout=60)
        assert done.stdout.splitlines() == [said] * hosts


@needs_root_and_iproute2
def test_the_exit_status_is_the_commands():
    done = run_script(LAB, "--", "bash", "-c", "exit $((7 * PMI_RANK))")
    assert done.returncode == 7


def test_of_commands_that_end_at_once_the_first_status_counts(tmp_path):
    (tmp_path / "enter.sh").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "enter.sh").chmod(0o755)
    program = f"import sys; sys.path[:0] = {sys.path!r}; import lab; lab.ENTER = {str(tmp_path / 'enter.sh')!r}; "
    program += "sys.exit(lab.run([(f'host{i}', ['x']) for i in range(8)], lab.Network(hosts=8)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS_TO_END)
    assert (done.returncode, done.stderr) == (3, "")


@needs_root_and_iproute2
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_lab_that_is_killed_leaves_nothing(number, tmp_path):
    spaces = tmp_path / "spaces"
    command = ["bash", "-c", f"readlink /proc/self/ns/net >> {spaces}; echo ready; read -r < <(tail -f /dev/null)"]
    with subprocess.Popen(
        [sys.executable, LAB, "--", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as killed:
        assert [killed.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
        there = set(spaces.read_text().split())
        assert len(there) == 2
        assert there <= network_namespaces()
        killed.send_signal(number)
        killed.communicate(timeout=SECONDS_TO_END)
    assert killed.returncode == (-number if number == signal.SIGKILL else 128 + number)
    until = time.monotonic() + SECONDS_TO_END
    while there & network_namespaces():  # those that are killed need a moment
        assert time.monotonic() < until


@needs_root_and_iproute2
def test_a_lab_that_is_told_to_end_while_it_is_built_starts_nothing():
    begun = time.monotonic()
    command = [sys.executable, LAB, "--hosts", "100", "--", "echo", "started"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as told:
        while not list(Path(f"/proc/{told.pid}/task/{told.pid}").glob("children")) or not children_of(told.pid):
            time.sleep(0.01)
        time.sleep(0.2)  # into the building, which takes seconds
        told.terminate()
        said, _ = told.communicate(timeout=SECONDS_TO_END)
    assert (told.returncode, said) == (143, "")
    assert time.monotonic() - begun < SECONDS_TO_END


def children_of(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@needs_root_and_iproute2
def test_a_lab_under_nohup_goes_on_without_its_terminal():
    command = ["nohup", sys.executable, LAB, "--hosts", "1", "--", "bash", "-c", "echo ready; sleep 1; echo done"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout.readline() == b"ready\n"
        running.send_signal(signal.SIGHUP)
        said, _ = running.communicate(timeout=SECONDS_TO_END)
    assert (running.returncode, said) == (0, b"done\n")


def network_namespaces():
    """Of all processes."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add(os.readlink(process / "ns" / "net"))
        except OSError:  # it has just ended
            continue
    return found


def test_only_root_may_build_one(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match="only root may: start it as root"):
        lab.check_tools()


def test_a_lab_holds_no_other(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv(lab.INSIDE, "1gbit")
    with pytest.raises(UserError, match="this is a host of a lab, which can hold no other"):
        lab.check_tools()


def test_mpiexec_is_not_asked_to_start_what_it_cannot(monkeypatch):
    monkeypatch.setattr(lab, "ENTER", Path("/some where/enter_host.sh"))
    with pytest.raises(UserError, match="has a space: choose --torchrun, or another folder"):
        lab.start_by_mpiexec(lab.Network(), ["true"])


@pytest.mark.parametrize(("rate", "size"), [("1mbit", 8000), ("0.1gbit", 8000), ("1gbit", 31_250), ("10gbit", 312_500)])
def test_little_passes_at_once(rate, size):
    """Or a short message after a pause would be faster than its link."""
    assert lab.burst(rate) == size


@needs_root_and_iproute2
def test_no_packet_is_larger_than_the_bucket():
    """Or it is cut into frames, which cores that have ranks to run cannot keep up with."""
    words = ("ip", "-d", "-j", "link", "show", "dev", lab.LINK)
    done = run_script(LAB, "--hosts", 1, "--rate", "100mbit", "--", *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["gso_max_size"] == 4000 < lab.burst("100mbit")


def test_without_iproute2_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no ip here, which a lab is built with: install iproute2"):
        lab.check_tools()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hosts", "2"], "there is no command: put it behind the options, after --"),
        (["--torchrun", "--", __file__], f"{__file__} is no program that can be started; put `python` before"),
        (["--hosts", "300", "--", "true"], "argument --hosts: expected at most 250, found '300'"),
        *(
            (["--rate", rate, "--", "true"], f"argument --rate: expected a rate like 100mbit or 1gbit, {LIMITS}{rate}'")
            for rate in ("fast", "1kbit", "0gbit", "0.0001gbit", "101gbit", "99999999999999999999gbit")
        ),
        (["--json", "/missing/bytes.json", "--", "true"], "cannot write /missing/bytes.json: No such file"),
    ],
)
def test_wrong_options_are_one_sentence(words, said):
    done = run_script(LAB, *words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {said}")
