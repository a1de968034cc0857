"""The hook on one rank, and what it refuses."""

import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from oktopk import SparseState, shard_sparsely, sparse_hook
from oktopk.transports.torch import ProcessGroupCommunicator


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def under_ddp(model, state):
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(state, sparse_hook)
    return ddp


def test_three_lines_train_one_process(group):
    torch.manual_seed(0)
    model, state = nn.Linear(50, 4), SparseState(density=0.1, warmup_iters=1)
    ddp = under_ddp(model, state)
    assert state.last_step is None
    for phase, sent in (("dense", None), ("sparse", 20)):
        model.zero_grad()
        ddp(torch.ones(2, 50)).square().sum().backward()
        assert (state.last_step.phase, state.last_step.selected_global) == (phase, sent)
    assert int(torch.cat([each.grad.flatten() for each in model.parameters()]).count_nonzero()) == 20


def test_names_are_those_that_were_given(group):
    model = nn.Linear(50, 4)
    state = SparseState(density=0.1, warmup_iters=0, named_parameters=model.named_parameters())
    ddp = under_ddp(model, state)  # backward needs it alive
    ddp(torch.ones(2, 50)).sum().backward()
    assert state.state_dict()["parameters"].keys() == {"weight", "bias"}


def test_one_state_serves_one_model(group):
    state = SparseState(warmup_iters=0)
    first, second = under_ddp(nn.Linear(5, 4), state), under_ddp(nn.Linear(5, 4), state)
    first(torch.ones(2, 5)).sum().backward()
    with pytest.raises(ValueError, match="give each model a state of its own"):
        second(torch.ones(2, 5)).sum().backward()


def test_sparse_tensors_are_refused(group):
    ddp = under_ddp(nn.Embedding(10, 4, sparse=True), SparseState())
    with pytest.raises(TypeError, match="give its embedding sparse=False"):
        ddp(torch.tensor([1])).sum().backward()


def test_names_are_needed_to_exclude_by_name():
    with pytest.raises(ValueError, match="give named_parameters"):
        SparseState(exclude="*.bias")


def test_a_pattern_that_excludes_nothing_is_refused(group):
    model = nn.Linear(50, 4)
    ddp = under_ddp(model, SparseState(exclude="*.bais", named_parameters=model.named_parameters()))
    with pytest.raises(ValueError, match=r"no parameter has a name like '\*.bais'; 'weight' is one"):
        ddp(torch.ones(2, 50)).sum().backward()


def test_a_state_under_other_names_or_of_other_shapes_is_refused(group):
    def trained(model, **options):
        state = SparseState(warmup_iters=0, **options)
        ddp = under_ddp(model, state)
        ddp(torch.ones(2, 50)).sum().backward()
        return state

    model = nn.Linear(50, 4)
    saved = trained(model).state_dict()
    with pytest.raises(ValueError, match="2 parameters that are not here"):
        trained(model, named_parameters=model.named_parameters()).load_state_dict(saved)
    with pytest.raises(ValueError, match=r"residual of parameter\.0 has the shape"):
        trained(nn.Linear(50, 5)).load_state_dict(saved)


def test_a_scaler_and_pieces_do_not_go_together():
    with pytest.raises(ValueError, match="leave one of them out"):
        SparseState(per_bucket=True, scaler=torch.amp.GradScaler("cpu"))


def test_wrong_options_are_named():
    with pytest.raises(ValueError, match="density is a share above 0"):
        SparseState(density=2)
    with pytest.raises(ValueError, match="there is no compressor 'topk'"):
        SparseState("topk")


def test_a_state_is_not_pickled():
    with pytest.raises(TypeError, match=r"save its state_dict\(\) instead"):
        pickle.dumps(SparseState())


def test_a_model_that_is_not_sharded_is_refused(group):
    with pytest.raises(ValueError, match="call fully_shard on it first"):
        shard_sparsely(nn.Linear(3, 3), dist.group.WORLD)


@pytest.mark.parametrize("first", ["the reducer's own", "the program"])
def test_groups_are_given_back_whoever_takes_them_down_first(first):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    whole = ProcessGroupCommunicator(dist.group.WORLD)
    part = whole.part([[0]])
    taking_down = [part.close, whole.close, dist.destroy_process_group]
    for take_down in taking_down if first == "the reducer's own" else reversed(taking_down):
        take_down()
    part.close()
    assert not dist.is_initialized()
