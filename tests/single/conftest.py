import pytest
import torch
from pretended_machine import Machine

from corpora import make_corpus, make_text, train


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """The models here are too small to share out."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def text_corpus(tmp_path_factory):
    return make_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def without_mpi(tmp_path_factory):
    """Variables of a machine without MPI: a module of that name that fails to import."""
    folder = tmp_path_factory.mktemp("no_mpi")
    (folder / "mpi4py.py").write_text("raise ImportError('there is no MPI here')\n")
    return {"PYTHONPATH": str(folder)}


@pytest.fixture(scope="session")
def finished(corpus, tmp_path_factory):
    """A run of two epochs and what it said."""
    run = tmp_path_factory.mktemp("runs") / "run"
    result = train(corpus, run, "--max-epochs", "2")
    assert result.returncode == 0, result.stderr
    return run, result


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)
