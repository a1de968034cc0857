"""oktopk_training.recorded: gradients that a run writes down are read again as they were."""

import numpy as np
import pytest
import torch

from oktopk_training.errors import UserError
from oktopk_training.recorded import STEPS, Recorder, read_recorded, recorded_ranks


def parameters(value):
    made = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((2, 3), (4,))]
    for number, each in enumerate(made):
        each.grad = torch.full_like(each, value + number)
    return made


def test_what_a_rank_writes_down_from_a_step_on_is_what_is_read(tmp_path):
    for rank in range(2):
        recorder = Recorder(tmp_path, 5, rank)
        for step in range(4, 10):
            recorder.take(step, parameters(100 * rank + step))
    for rank, theirs in ((0, 0), (1, 1), (2, 0)):
        read = read_recorded(tmp_path / "gradients", rank)
        assert [each.tolist() for each in read] == [
            [100.0 * theirs + step] * 6 + [100.0 * theirs + step + 1] * 4 for step in range(5, 5 + STEPS)
        ]


def test_nothing_is_written_unless_it_is_asked_for(tmp_path):
    Recorder(tmp_path, None, 0).take(0, parameters(1))
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_gradient_is_refused(tmp_path):
    with pytest.raises(UserError, match="has no gradients; record some by"):
        read_recorded(tmp_path, 0)
    np.save(tmp_path / "step-1-rank-0.npy", np.zeros((2, 2)))
    with pytest.raises(UserError, match="is no gradient: it holds float64 of shape"):
        read_recorded(tmp_path, 0)
    (tmp_path / "step-1-rank-0.npy").write_bytes(b"\x93NUMPY\x01\x00")
    with pytest.raises(UserError, match="cannot be read"):
        read_recorded(tmp_path, 0)
    for step in (1, 2):
        np.save(tmp_path / f"step-{step}-rank-0.npy", np.zeros(step, np.float32))
    with pytest.raises(UserError, match="gradients of rank 0 have several lengths; keep those of one run"):
        read_recorded(tmp_path, 0)


def test_other_files_beside_them_are_left_alone(tmp_path):
    for name in ("step-1-rank-1x", "step-1-rank-01", "step-1-rank-0-copy-3", "step-x-rank-2", "step-1-rank-0"):
        np.save(tmp_path / f"{name}.npy", np.ones(3, np.float32))
    assert recorded_ranks(tmp_path) == [0]
    assert [each.tolist() for each in read_recorded(tmp_path, 5)] == [[1.0] * 3]
