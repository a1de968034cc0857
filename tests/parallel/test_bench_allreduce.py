"""The benchmarks of a reduction over two ranks: what they compare, and with what."""

import json

import numpy as np
import pytest
from ranks import ROOT, run_ranks, run_torch_ranks

BENCH = ROOT / "scripts" / "bench_allreduce.py"
TINY = ("--elements", 3000, "--iters", 2, "--warmup", 1)


@pytest.mark.parametrize(
    ("launch", "name", "library"), [(run_ranks, "mpi", "mpi4py"), (run_torch_ranks, "torch", "torch.distributed")]
)
def test_the_yardstick_is_the_allreduce_of_the_transport(launch, name, library, tmp_path):
    done = launch(2, BENCH, *TINY, "--json", tmp_path / "figures.json")
    assert done.returncode == 0, done.stderr
    title, heads, units, *rows = done.stdout.splitlines()
    assert title.startswith("2 ranks, 3000 elements")
    assert library in title
    assert heads.split()[:4] == ["median", "min", "max", "ratio"]
    assert f"  to {name} " in units
    assert [row.split()[0] for row in rows] == [name, "dense", "oktopk"]
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["ranks"], figures["transport"]) == (2, name)
    yardstick, dense, oktopk = figures["rows"]
    assert yardstick["ratio"] == 1
    assert dense["bytes_sent"] > 4 * 3000  # with the word that says whether gradients are finite
    assert oktopk["selected_local_per_k"] == [1, 1]


AT_THE_VERY_END = """
import atexit, glob

def names():
    return [open(name).read().strip() for name in glob.glob("/proc/self/task/*/comm")]

atexit.register(lambda: print("threads:", *names()))
"""


def test_torchrun_needs_no_mpi_and_no_thread_outlives_the_program(tmp_path):
    (tmp_path / "mpi4py.py").write_text("raise SystemExit('mpi4py was imported')\n")
    (tmp_path / "sitecustomize.py").write_text(AT_THE_VERY_END)
    done = run_torch_ranks(2, BENCH, *TINY, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("threads:") == 3  # the launcher's own too
    assert "gloo" not in done.stdout.split("threads:", 1)[1], "which aborts the interpreter now and then"


def test_gradients_of_a_run_can_be_measured_with(tmp_path):
    for rank, size in enumerate((3000, 3000, 2999)):
        np.save(tmp_path / f"step-7-rank-{rank}.npy", np.arange(size, dtype=np.float32) + rank)
    done = run_ranks(2, BENCH, *TINY, "--gradients", f"recorded:{tmp_path}", "--elements", 5)
    assert done.stdout.startswith("2 ranks, 3000 elements"), done.stderr
    done = run_ranks(3, BENCH, *TINY, "--gradients", f"recorded:{tmp_path}")
    assert done.returncode == 2
    assert "rank 2 has other numbers of elements than rank 0" in done.stderr


def test_gradients_that_nothing_reduces_are_refused(tmp_path):
    for value, said in ((np.nan, "holds values that are not finite"), (1e38, "so long that their sum is not finite")):
        for rank in range(2):
            np.save(tmp_path / f"step-7-rank-{rank}.npy", np.full(3000, value if rank else 1, np.float32))
        done = run_ranks(2, BENCH, *TINY, "--gradients", f"recorded:{tmp_path}")
        assert done.returncode == 2
        (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
        assert said in line


def test_a_transport_that_there_is_none_of_is_one_sentence():
    done = run_ranks(1, BENCH, *TINY, "--transport", "pigeons")
    assert done.returncode == 2
    assert done.stderr.startswith("error: argument --transport: expected one of auto, alone, mpi, torch")


def test_a_step_is_timed_unwatched_and_watched():
    done = run_ranks(2, ROOT / "scripts" / "bench_watching.py", "--elements", 3000, "--turns", 2)
    assert done.returncode == 0, done.stderr
    title, unwatched, *watched = done.stdout.splitlines()
    assert title == "2 ranks, 3000 elements, oktopk, 2 turns; medians in ms"
    assert unwatched.split()[0] == "unwatched"
    assert [line.split()[0] for line in watched] == ["--trace", "--inspect,", "--inspect,"]
    assert all(line.split()[-1][0] in "+-" for line in watched)
