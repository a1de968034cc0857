"""The wrapper around torch optimizers, on one rank: it must be the optimizer it wraps, and lose nothing of it."""

import copy
import io
import pickle

import pytest
import torch

import oktopk
from allreducer import ReducerError, compressors
from distributed_optimizer import DistributedOptimizer

MAKERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


def make_model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


@pytest.fixture
def wrap():
    wrapped = []

    def make(model, maker="sgd", **options):
        wrapped.append(DistributedOptimizer(MAKERS[maker](model.parameters()), model.named_parameters(), **options))
        return wrapped[-1]

    yield make
    for optimizer in wrapped:
        optimizer.stop()


def batches(count):
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(4, 6, generator=generator), torch.randn(4, 3, generator=generator)) for _ in range(count)]


def train(model, optimizer, count=5):
    for inputs, targets in batches(count):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("options", [{}, {"compression": compressors["oktopk"], "is_sparse": True, "density": 1.0}])
def test_one_rank_trains_as_the_bare_optimizer_does(wrap, maker, options):
    bare, distributed = make_model(), make_model()
    train(bare, MAKERS[maker](bare.parameters()))
    train(distributed, wrap(distributed, maker, **options))
    for a, b in zip(bare.parameters(), distributed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_it_is_an_instance_of_the_class_it_wraps(wrap):
    model = make_model()
    assert isinstance(wrap(model, "adam"), torch.optim.Adam)


def test_state_dict_round_trips(wrap):
    first, second = make_model(), make_model()
    one = wrap(first, "momentum")
    train(first, one)
    two = wrap(second, "momentum")
    second.load_state_dict(first.state_dict())
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    train(first, one)
    train(second, two)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_learning_rate_scheduler_made_before_wrapping_works(wrap):
    model = make_model()
    bare = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(bare, 0.5)
    optimizer = DistributedOptimizer(bare, model.named_parameters())
    train(model, optimizer, 1)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    optimizer.stop()


def test_gradients_live_in_the_merged_buffer_through_training(wrap):
    model = make_model()
    optimizer = wrap(model)
    train(model, optimizer, 3)
    for name, parameter in model.named_parameters():
        assert parameter.grad.data_ptr() == optimizer.reducer.view(name).data_ptr()


def test_local_steps_accumulate_and_the_last_synchronizes(wrap):
    together, apart = make_model(), make_model()
    ((inputs, targets),) = batches(1)
    bare = MAKERS["sgd"](together.parameters())
    torch.nn.functional.mse_loss(together(inputs), targets).backward()
    bare.step()
    optimizer = wrap(apart)
    optimizer.zero_grad()
    for i, half in enumerate((slice(0, 2), slice(2, 4))):
        optimizer.local = i == 0
        (torch.nn.functional.mse_loss(apart(inputs[half]), targets[half]) / 2).backward()
    optimizer.step()
    for a, b in zip(together.parameters(), apart.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-7)


def test_a_parameter_without_a_gradient_does_not_hang_the_step(wrap):
    model = make_model()
    unused = torch.nn.Parameter(torch.ones(3))
    optimizer = DistributedOptimizer(
        torch.optim.SGD([*model.parameters(), unused], lr=0.1), [*model.named_parameters(), ("unused", unused)]
    )
    train(model, optimizer, 2)
    optimizer.stop()
    assert unused.tolist() == [1, 1, 1]


def test_a_closure_is_called_once_before_the_gradients_are_averaged(wrap):
    model, calls = make_model(), []
    optimizer = wrap(model)

    def closure():
        optimizer.zero_grad()
        loss = model(batches(1)[0][0]).square().mean()
        loss.backward()
        calls.append(loss)
        return loss

    before = model[0].weight.detach().clone()
    assert optimizer.step(closure) is calls[0]
    assert len(calls) == 1
    assert not torch.equal(before, model[0].weight)


def test_a_step_with_a_non_finite_gradient_changes_nothing(wrap):
    model = make_model()
    optimizer = wrap(model, "momentum")
    train(model, optimizer, 2)
    before = copy.deepcopy(model.state_dict())
    optimizer.zero_grad()
    (model(batches(1)[0][0]).sum() * float("nan")).backward()
    optimizer.step()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert optimizer.reducer.skipped_steps == 1


def test_set_trainer_reaches_the_reducer_and_epochs_are_counted(wrap):
    class Trainer:
        sparsities, compression_ratios, communication_sizes = [], [], []

    model = make_model()
    optimizer = wrap(model, compression=compressors["oktopk"], is_sparse=True, density=0.1, warmup_iters=1)
    optimizer.set_trainer(Trainer)
    train(model, optimizer, 3)
    optimizer.add_train_epoch()
    elements = sum(p.numel() for p in model.parameters())
    chosen = int(elements * 0.1)
    assert Trainer.sparsities == [1 - chosen / elements] * 2
    assert Trainer.compression_ratios == [elements / chosen] * 2
    assert optimizer.reducer.train_epoch == 1
    assert optimizer.get_current_density() == 0.1


def test_several_backward_passes_before_a_step_add_up(wrap):
    together, apart = make_model(), make_model()
    bare, optimizer = MAKERS["sgd"](together.parameters()), wrap(apart)
    for inputs, targets in batches(4):
        for model, each in ((together, bare), (apart, optimizer)):
            for half in (slice(0, 2), slice(2, 4)):
                torch.nn.functional.mse_loss(model(inputs[half]), targets[half]).backward()
            each.step()
            each.zero_grad()
    for a, b in zip(together.parameters(), apart.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_backward_pass_that_is_thrown_away_leaves_no_trace(wrap):
    once, twice = make_model(), make_model()
    train(once, wrap(once), 2)
    optimizer = wrap(twice)
    for inputs, targets in batches(2):
        twice(inputs).sum().backward()
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(twice(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    for a, b in zip(once.parameters(), twice.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_parameter_that_is_stepped_but_not_reduced_is_refused(wrap):
    model, other = make_model(), torch.nn.Linear(3, 3)
    optimizer = wrap(model)
    optimizer.add_param_group({"params": list(other.parameters())})
    model(batches(1)[0][0]).sum().backward()
    with pytest.raises(ValueError, match=r"shape \(3, 3\) in group 1 .* wrap it again"):
        optimizer.step()


def test_repeated_names_and_nothing_to_train_are_refused():
    model = make_model()
    twice = [*model.named_parameters(), *make_model().named_parameters()]
    with pytest.raises(ValueError, match=r"two parameters are called '0\.weight'"):
        DistributedOptimizer(torch.optim.SGD([p for _, p in twice], lr=0.1), twice)
    with pytest.raises(ValueError, match="nothing to reduce"):
        DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), [("w", torch.zeros(3))])


def test_a_step_after_stop_is_an_error_and_no_hang():
    model = make_model()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    optimizer.stop()
    model(batches(1)[0][0]).sum().backward()
    with pytest.raises(ReducerError, match="stopped"):
        optimizer.step()


def test_an_optimizer_that_calls_its_closure_several_times(wrap):
    bare, distributed = make_model(), make_model()
    plain = torch.optim.LBFGS(bare.parameters(), max_iter=5)
    wrapped = DistributedOptimizer(
        torch.optim.LBFGS(distributed.parameters(), max_iter=5), distributed.named_parameters()
    )
    inputs, targets = batches(1)[0]
    for model, optimizer in ((bare, plain), (distributed, wrapped)):

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            return loss

        optimizer.step(closure)
    wrapped.stop()
    for a, b in zip(bare.parameters(), distributed.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_a_double_precision_model_gets_gradients_of_its_own_kind(wrap):
    model = make_model().double()
    optimizer = wrap(model)
    before = model[0].weight.detach().clone()
    torch.nn.functional.mse_loss(model(torch.ones(4, 6).double()), torch.ones(4, 3).double()).backward()
    optimizer.step()
    assert model[0].weight.grad.dtype == torch.float64
    assert not torch.equal(before, model[0].weight)


def test_an_error_in_the_reducer_reaches_synchronize_and_the_handler(wrap):
    model, heard = make_model(), []
    optimizer = wrap(model, err_handler=heard.append)
    optimizer.reducer._merged[0].gradient = None
    model(batches(1)[0][0]).sum().backward()
    with pytest.raises(AttributeError) as caught:
        optimizer.synchronize()
    assert heard == [caught.value]


# ---- what other loops do


def test_a_step_that_is_given_up_after_synchronizing_leaves_nothing_behind(wrap):
    model = make_model()
    optimizer = wrap(model)
    (inputs, targets), *_ = batches(1)
    for given_up in (True, False):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        if given_up:
            optimizer.synchronize()
    before = optimizer.reducer._allreduce_counter.copy()
    optimizer.step()
    assert [count - before[name] for name, count in optimizer.reducer._allreduce_counter.items()] == [1]


def test_a_parameter_that_is_frozen_later_stays_where_it_is(wrap):
    bare, distributed = make_model(), make_model()
    both = ((bare, MAKERS["momentum"](bare.parameters())), (distributed, wrap(distributed, "momentum")))
    for model, optimizer in both:
        train(model, optimizer)
        model[0].weight.requires_grad_(False)
        train(model, optimizer)
        frozen = model[0].weight.clone()
        train(model, optimizer)
        assert torch.equal(model[0].weight, frozen)
        model[0].weight.requires_grad_(True)
        train(model, optimizer)
    for a, b in zip(bare.parameters(), distributed.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("who_loads", ["wrapper", "wrapped"])
def test_a_scheduler_and_a_loaded_state_reach_both_optimizers(who_loads):
    model = make_model()
    base = MAKERS["momentum"](model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(base, 1, gamma=0.5)
    optimizer = DistributedOptimizer(base, model.named_parameters())
    loaded = optimizer.state_dict()
    loaded["param_groups"][0]["lr"] = 0.8
    (optimizer if who_loads == "wrapper" else base).load_state_dict(loaded)
    train(model, optimizer, count=1)
    scheduler.step()
    optimizer.stop()
    assert optimizer.param_groups[0]["lr"] == base.param_groups[0]["lr"] == 0.4
    assert len(base.state) == len(optimizer.state) == 4


def test_a_gradient_that_is_there_when_the_optimizer_is_wrapped_counts(wrap):
    bare, distributed = make_model(), make_model()
    for model in (bare, distributed):
        (inputs, targets), *_ = batches(1)
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
    MAKERS["sgd"](bare.parameters()).step()
    wrap(distributed).step()
    for a, b in zip(bare.parameters(), distributed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_backward_pass_after_synchronizing_is_refused(wrap):
    """It would add this rank's own gradient to the mean, and part the ranks."""
    model = make_model()
    optimizer = wrap(model)
    (inputs, targets), *_ = batches(1)
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.synchronize()
    before = copy.deepcopy(model.state_dict())
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    for refused in (optimizer.step, optimizer.synchronize):
        with pytest.raises(RuntimeError, match=r"backward was called after synchronize\(\)"):
            refused()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    optimizer.zero_grad()
    train(model, optimizer, 2)  # and it goes on


def test_gradients_may_be_clipped_between_synchronizing_and_the_step(wrap):
    bare, distributed = make_model(), make_model()
    plain, optimizer = MAKERS["sgd"](bare.parameters()), wrap(distributed)
    for inputs, targets in batches(3):
        for model, each in ((bare, plain), (distributed, optimizer)):
            each.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            if each is optimizer:
                optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            each.step()
    for a, b in zip(bare.parameters(), distributed.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-7)


@pytest.mark.parametrize("loads", [False, True])
def test_step_hooks_run_once_a_step(wrap, loads):
    model, heard = make_model(), []
    optimizer = wrap(model)
    optimizer.register_step_post_hook(lambda *_: heard.append("post"))
    optimizer.register_step_pre_hook(lambda *_: heard.append("pre"))
    if loads:
        optimizer.load_state_dict(optimizer.state_dict())
    train(model, optimizer, 2)
    assert heard == ["pre", "post"] * 2


KINDS = {
    "dense": {},
    "oktopk": {"compression": compressors["oktopk"], "is_sparse": True, "density": 0.1, "warmup_iters": 3},
    "reuse": {"compression": compressors["oktopk"], "is_sparse": True, "density": 0.1, "warmup_iters": 1,
              "threshold": "reuse", "threshold_period": 3},
    "gaussiank": {"compression": compressors["gaussiank"], "is_sparse": True, "density": 0.1, "warmup_iters": 1},
    "topkAopt": {"compression": compressors["topkAopt"], "is_sparse": True, "density": 0.1, "warmup_iters": 1,
                 "threshold_period": 4},
    "corrected": {"compression": compressors["oktopk"], "is_sparse": True, "density": 0.1, "warmup_iters": 3,
                  "momentum_correction": True},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["the same optimizer", "a new one"])
def test_a_replay_from_a_loaded_state_is_the_same_bit_for_bit(wrap, kind, where):
    model = make_model()
    optimizer = wrap(model, "nesterov", **KINDS[kind])
    train(model, optimizer, 7)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(model, optimizer, 9)
    first = copy.deepcopy(model.state_dict())
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    if where == "a new one":
        model = make_model(seed=1)
        optimizer = wrap(model, "nesterov", **KINDS[kind])
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    train(model, optimizer, 9)
    for name, value in model.state_dict().items():
        assert torch.equal(value, first[name]), name


def test_a_state_by_parameter_name_survives_another_merging(wrap):
    model = make_model()
    optimizer = wrap(model, **KINDS["oktopk"])
    train(model, optimizer, 6)
    state = optimizer.state_dict()["oktopk"]
    other = wrap(make_model(), **KINDS["oktopk"], merge_size=10)
    other.reducer.load_state_dict(state)
    taken = other.state_dict()["oktopk"]["parameters"]
    assert sum(float(each["residual"].abs().sum()) for each in taken.values()) > 0
    for name, kept in state["parameters"].items():
        assert torch.equal(taken[name]["residual"], kept["residual"])
        assert taken[name]["reductions"] == kept["reductions"] == 6


def test_a_state_without_the_reducers_share_lets_it_begin_anew(wrap):
    model = make_model()
    optimizer = wrap(model, **KINDS["oktopk"])
    plain = MAKERS["sgd"](model.parameters()).state_dict()
    train(model, optimizer, 5)
    assert optimizer.reducer.last_step.phase == "sparse"
    optimizer.load_state_dict(plain)
    assert not any("residual" in each for each in optimizer.state_dict()["oktopk"]["parameters"].values())
    assert optimizer.get_current_density() == 1


def test_gradients_that_were_exchanged_by_hand_are_taken_as_they_are(wrap):
    bare, distributed = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    bare.extra, distributed.extra = (torch.nn.Parameter(torch.ones(3, 3)) for _ in range(2))
    distributed.load_state_dict(bare.state_dict())
    for model, optimizer in ((bare, MAKERS["sgd"](bare.parameters())), (distributed, wrap(distributed))):
        (model(torch.ones(2, 3)) @ model.extra).square().sum().backward()
        model.weight.grad, model.extra.grad = model.extra.grad, model.weight.grad
        optimizer.step()
    for a, b in zip(bare.parameters(), distributed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_plain_optimizer_that_loads_a_corrected_ones_state_has_its_momentum(wrap):
    model = make_model()
    optimizer = wrap(model, "nesterov", momentum_correction=True)
    train(model, optimizer, 2)
    plain = MAKERS["sgd"](model.parameters())
    plain.load_state_dict(optimizer.state_dict())
    assert (plain.param_groups[0]["momentum"], plain.param_groups[0]["nesterov"]) == (0.9, True)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["momentum"] == 0


def test_cuts_of_another_number_of_ranks_are_not_taken_over(wrap):
    model = make_model()
    optimizer = wrap(model, **KINDS["oktopk"])
    train(model, optimizer, 5)
    state = optimizer.state_dict()
    (kept,) = state["oktopk"]["compressors"].values()
    kept["algorithm"]["cuts"] = [0, 10, 20, 83]  # of three ranks
    optimizer.load_state_dict(state)
    train(model, optimizer, 3)
    assert optimizer.reducer.last_step.phase == "sparse"


@pytest.mark.parametrize("corrected", [False, True])
def test_wrapping_it_again_with_all_parameters_is_taken_literally(corrected):
    model, other = make_model(), torch.nn.Linear(3, 3)
    options = {**KINDS["oktopk"], "momentum_correction": corrected}
    bare = MAKERS["nesterov"](model.parameters())
    optimizer = DistributedOptimizer(bare, model.named_parameters(), **options)
    train(model, optimizer, 5)
    kept = optimizer.state_dict()["oktopk"]["parameters"]["0.weight"]
    optimizer.add_param_group({"params": list(other.parameters())})
    named = [*model.named_parameters(), *((f"other.{name}", p) for name, p in other.named_parameters())]
    again = DistributedOptimizer(optimizer, named, **options)
    assert isinstance(again, torch.optim.SGD)
    assert torch.equal(again.state_dict()["oktopk"]["parameters"]["0.weight"]["residual"], kept["residual"])
    before = other.weight.detach().clone()
    again.zero_grad()
    other(model(batches(1)[0][0])).square().sum().backward()
    again.step()
    again.stop()
    assert not torch.equal(other.weight, before)


@pytest.mark.parametrize("copier", [copy.deepcopy, copy.copy, pickle.dumps, lambda it: torch.save(it, io.BytesIO())])
def test_a_copy_is_refused_with_what_to_do_instead(wrap, copier):
    with pytest.raises(TypeError, match=r"DistributedSGD is bound to .* keep its state_dict\(\)"):
        copier(wrap(make_model()))


def test_parameters_on_two_devices_are_refused_with_both_names():
    named = [("here", torch.nn.Parameter(torch.ones(3))), ("there", torch.nn.Parameter(torch.ones(3, device="meta")))]
    with pytest.raises(ValueError, match="the parameters lie on cpu and meta"):
        DistributedOptimizer(torch.optim.SGD([p for _, p in named], lr=0.1), named)


def test_the_library_wraps_without_the_contracts_words():
    bare, distributed = make_model(), make_model()
    train(bare, MAKERS["adam"](bare.parameters()))
    optimizer = oktopk.DistributedOptimizer(
        MAKERS["adam"](distributed.parameters()), distributed.named_parameters(), compression="oktopk", density=1.0
    )
    train(distributed, optimizer)
    assert optimizer.last_step.phase == "dense"
    optimizer.stop()
    for a, b in zip(bare.parameters(), distributed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_dropped_optimizer_is_not_kept_by_its_parameters(wrap):
    import gc
    import weakref

    model = make_model()
    optimizer = DistributedOptimizer(MAKERS["sgd"](model.parameters()), model.named_parameters())
    there = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert there() is None


# ---- momentum correction


@pytest.mark.parametrize("nesterov", [False, True])
def test_what_goes_into_the_velocity_is_clipped_as_the_gradient_would_be(nesterov):
    """Clipping the mean velocity, which stays unclipped itself, trains something else."""
    bare, distributed = make_model(), make_model()
    plain = with_momentum(bare.parameters(), nesterov=nesterov)
    optimizer = DistributedOptimizer(
        with_momentum(distributed.parameters(), nesterov=nesterov), distributed.named_parameters(),
        momentum_correction=True, velocity_clip=0.05,
    )  # fmt: skip
    for inputs, targets in batches(8):
        for model, each in ((bare, plain), (distributed, optimizer)):
            each.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            if each is plain:
                assert torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05) > 0.05
            each.step()
    optimizer.stop()
    for a, b in zip(bare.parameters(), distributed.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def with_momentum(parameters, **more):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **more)


@pytest.mark.parametrize("nesterov", [False, True])
def test_corrected_momentum_is_the_optimizers_own_while_dense(nesterov):
    bare, distributed = make_model(), make_model()
    train(bare, with_momentum(bare.parameters(), nesterov=nesterov))
    optimizer = DistributedOptimizer(
        with_momentum(distributed.parameters(), nesterov=nesterov),
        distributed.named_parameters(),
        momentum_correction=True,
    )
    optimizer.load_state_dict(with_momentum(distributed.parameters(), nesterov=nesterov).state_dict())
    train(distributed, optimizer)
    optimizer.stop()
    for a, b in zip(bare.parameters(), distributed.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("option", ["weight_decay", "dampening"])
def test_momentum_correction_refuses_what_would_act_outside_the_momentum(option):
    model = make_model()
    optimizer = with_momentum(model.parameters(), **{option: 0.1})
    with pytest.raises(ValueError, match=f"knows no {option}"):
        DistributedOptimizer(optimizer, model.named_parameters(), momentum_correction=True)


def test_corrected_momentum_grows_where_nothing_is_delivered_and_ends_where_it_is():
    """By hand: gradients [4, 1], one of two entries sent, momentum 1/2, learning rate 1."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = DistributedOptimizer(
        torch.optim.SGD([parameter], lr=1.0, momentum=0.5), [("p", parameter)], compression=compressors["topkA2"],
        is_sparse=True, density=0.5, warmup_iters=0, momentum_correction=True,
    )  # fmt: skip
    steps = []
    for gradient in ([4.0, 1.0], [1.0, 1.0], [0.0, 0.0]):
        before = parameter.detach().clone()
        optimizer.zero_grad()
        (parameter * torch.tensor(gradient)).sum().backward()
        optimizer.step()
        steps.append((before - parameter.detach()).tolist())
    optimizer.stop()
    # velocity [4, 1], sent 4; velocity [1, 1.5], residual 1 + 1.5, sent 2.5; velocity [0.5, 0], residual 1 + 0.5
    assert steps == [[4.0, 0.0], [0.0, 2.5], [1.5, 0.0]]


def test_momentum_correction_needs_a_momentum():
    model = make_model()
    with pytest.raises(ValueError, match="one momentum above 0"):
        DistributedOptimizer(MAKERS["adam"](model.parameters()), model.named_parameters(), momentum_correction=True)
