"""LSTM/rank_device.sh: which GPU a rank gets."""

import pytest
from pretended_machine import RANK_DEVICE


@pytest.mark.parametrize("variable", ["PMI_LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK"])
def test_each_rank_gets_a_gpu_in_reverse_of_its_local_rank(machine, variable):
    machine.has_gpus(4)
    show = [machine.bin / "bash", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    given = [machine.run(RANK_DEVICE, *show, **{variable: rank}).stdout.strip() for rank in range(5)]
    assert given == ["3", "2", "1", "0", "3"]


def test_torchruns_ranks_under_one_task_of_slurm_get_a_gpu_each(machine):
    machine.has_gpus(4)
    show = [machine.bin / "bash", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    given = [machine.run(RANK_DEVICE, *show, LOCAL_RANK=rank, SLURM_LOCALID=0).stdout.strip() for rank in range(2)]
    assert given == ["3", "2"]


@pytest.mark.parametrize(("allowed", "given"), [("2,6", ["6", "2"]), ("5", ["5", "5"]), ("", ["", ""])])
def test_only_gpus_that_the_scheduler_allows_are_given(machine, allowed, given):
    machine.has_gpus(8)
    show = [machine.bin / "bash", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    for rank, expected in enumerate(given):
        done = machine.run(RANK_DEVICE, *show, PMI_LOCAL_RANK=rank, CUDA_VISIBLE_DEVICES=allowed)
        assert done.stdout.strip() == expected
