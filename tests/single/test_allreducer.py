"""The reducer on one rank, driven through the contract's names alone."""

import logging
import queue
import threading
import traceback

import pytest
import torch

from allreducer import AllReducer, ReducerError, compressors
from oktopk import GradientAverager, Settings
from oktopk.reducer import Reducer
from oktopk.transports.alone import Alone

SPARSE = [name for name, compressor in compressors.items() if compressor.is_sparse]


class Trainer:
    def __init__(self):
        self.sparsities, self.compression_ratios, self.communication_sizes = [], [], []

    def heard(self):
        return self.sparsities, self.compression_ratios, self.communication_sizes


class Loop:
    """Somebody's training loop: it hands in gradients by name and takes the means."""

    def __init__(self, shapes, compression=compressors["oktopk"], **options):
        self.parameters = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
        self.names, self.done = queue.Queue(), queue.Queue()
        options = {"sparse": True, "density": 0.25, "warmup_iters": 2, **options}
        self.reducer = AllReducer(
            self.parameters.items(), threading.Lock(), threading.Lock(), compression,
            msg_queue=self.names, msg_queue2=self.done, **options,
        )  # fmt: skip
        self.thread = threading.Thread(target=self.reducer.run, daemon=True)
        self.thread.start()

    def step(self, **gradients):
        for name, gradient in gradients.items():
            self.reducer.add_tensor(name, torch.as_tensor(gradient).view(self.parameters[name].shape))
            self.names.put(name)
        assert self.done.get(timeout=60) == "DONE"
        return {name: self.reducer.get_result(name).clone() for name in gradients}


@pytest.fixture
def loop():
    started = []

    def start(*arguments, **options):
        started.append(Loop(*arguments, **options))
        return started[-1]

    yield start
    for each in started:
        each.reducer.stop()


EIGHT = torch.tensor([8.0, 1.0, -7.0, 2.0, 3.0, 4.0, 5.0, 6.0])  # a quarter of it is two entries: 8 and -7


def test_the_contract_positions_of_the_constructor():
    trainer = Trainer()
    reducer = AllReducer(
        [("w", torch.nn.Parameter(torch.zeros(4)))], None, None, compressors["topkA"], True, None, None, 2.5, 0.5, 3,
        None, queue.Queue(), queue.Queue(), None, trainer,
    )  # fmt: skip
    assert reducer.trainer is trainer
    assert reducer.train_epoch == 3
    assert (reducer.rank(), reducer.size()) == (0, 1)


def test_warm_up_is_dense_and_the_next_step_is_sparse(loop):
    one = loop({"w": 8})
    for step in range(2):
        assert torch.equal(one.step(w=EIGHT)["w"], EIGHT), f"step {step} is still warm-up"
        assert one.reducer.last_step.phase == "dense"
    assert one.step(w=EIGHT)["w"].tolist() == [8, 0, -7, 0, 0, 0, 0, 0]
    assert one.reducer.last_step.phase == "sparse"


def test_current_density_is_one_until_the_sparse_phase(loop):
    one = loop({"w": 8})
    densities = []
    for _ in range(4):
        densities.append(one.reducer.get_current_density())
        one.step(w=EIGHT)
    assert densities == [1.0, 1.0, 0.25, 0.25]


def test_what_was_not_delivered_comes_later(loop):
    one = loop({"w": 8}, warmup_iters=0)
    one.step(w=EIGHT)
    assert one.step(w=torch.zeros(8))["w"].tolist() == [0, 0, 0, 0, 0, 0, 5, 6]
    assert one.step(w=torch.ones(8))["w"].tolist() == [0, 0, 0, 0, 4, 5, 0, 0]


def test_the_trainer_hears_nothing_while_dense_and_the_hand_worked_values_after(loop):
    trainer = Trainer()
    one = loop({"w": 8}, trainer=trainer)
    one.step(w=EIGHT)
    one.step(w=EIGHT)
    assert trainer.heard() == ([], [], [])
    one.step(w=EIGHT)  # 2 of 8: sparsity 1 - 2/8, ratio 8/2, 2 * (4 + 4) bytes
    assert trainer.heard() == ([0.75], [4.0], [16])


@pytest.mark.parametrize("name", SPARSE)
def test_every_sparse_compressor_tells_its_trainer(loop, name):
    trainer = Trainer()
    one = loop({"w": 400}, compressors[name], trainer=trainer, warmup_iters=0)
    mean = one.step(w=torch.randn(400, generator=torch.Generator().manual_seed(0)))["w"]
    count = int(torch.count_nonzero(mean))
    assert 2 / 3 * 100 <= count <= 4 / 3 * 100
    assert trainer.heard() == ([1 - count / 400], [400 / count], [8 * count])


@pytest.mark.parametrize("name", ["none", "dense"])
def test_dense_compressors_append_nothing(loop, name):
    trainer = Trainer()
    one = loop({"w": 8}, compressors[name], trainer=trainer, warmup_iters=0)
    assert torch.equal(one.step(w=EIGHT)["w"], EIGHT)
    assert trainer.heard() == ([], [], [])


def test_an_all_zero_gradient_is_no_division_by_zero(loop):
    trainer = Trainer()
    one = loop({"w": 8}, trainer=trainer, warmup_iters=0)
    assert not one.step(w=torch.zeros(8))["w"].any()
    assert trainer.heard() == ([1.0], [8.0], [0])


def test_a_trainer_without_the_lists_is_reported_once_and_stops_nothing(loop, caplog):
    one = loop({"w": 8}, trainer=object(), warmup_iters=0)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert one.step(w=EIGHT)["w"].any()
    assert len([r for r in caplog.records if "takes no sparse metrics" in r.message]) == 1


def test_counters_are_kept_per_merged_gradient(loop):
    one = loop({"a": 6, "b": 6, "c": (2, 2)}, merge_size=8)
    for _ in range(3):
        one.step(a=torch.ones(6), b=torch.ones(6), c=torch.ones(4))
    assert one.reducer._allreduce_counter == {"a": 3, "b": 3, "c": 3}  # 6 + 6 and 6 + 4 are more than 8
    merged = loop({"a": 6, "b": 6, "c": (2, 2)})
    merged.step(a=torch.ones(6), b=torch.ones(6), c=torch.ones(4))
    assert merged.reducer._allreduce_counter == {"a..c": 1}


def test_residuals_belong_to_the_reducer_and_not_to_its_class(loop):
    first, second = loop({"w": 8}, warmup_iters=0), loop({"w": 8}, warmup_iters=0)
    first.step(w=EIGHT)
    assert not second.step(w=torch.zeros(8))["w"].any()


def test_results_have_the_parameters_shapes(loop):
    one = loop({"a": (2, 3), "b": (), "c": (1, 4)}, density=1.0, warmup_iters=0)
    given = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(7.0), "c": torch.ones(1, 4)}
    results = one.step(**given)
    assert all(torch.equal(results[name], given[name]) for name in given)


def test_a_gradient_in_the_merged_buffer_is_not_copied(loop):
    one = loop({"w": 8}, warmup_iters=0)
    view = one.reducer.view("w")
    view.copy_(EIGHT)
    assert one.step(w=view)["w"].tolist() == [8, 0, -7, 0, 0, 0, 0, 0]
    assert one.reducer.get_result("w").data_ptr() == view.data_ptr()


def test_an_error_in_the_thread_surfaces_with_its_traceback_and_does_not_hang(loop):
    heard = []
    one = loop({"w": 8}, warmup_iters=0, err_callback=heard.append)
    one.reducer._merged[0].gradient = None  # as if memory had been corrupted
    one.names.put("w")
    assert one.done.get(timeout=60) == "DONE"
    with pytest.raises(ReducerError) as caught:
        one.reducer.get_result("w")
    assert "in average" in "".join(traceback.format_exception(caught.value.__cause__))
    assert heard == [caught.value.__cause__]
    with pytest.raises(ReducerError):
        one.reducer.add_tensor("w", EIGHT)


@pytest.mark.parametrize(
    "broken", [lambda error: 1 / 0, lambda ranks, rank: exit(3), lambda a, b, c: None, lambda: None]
)
def test_an_err_callback_of_any_kind_does_not_hang_the_loop(loop, broken):
    one = loop({"w": 8}, warmup_iters=0, err_callback=broken)
    one.reducer._merged[0].gradient = None
    one.names.put("w")
    assert one.done.get(timeout=60) == "DONE"
    with pytest.raises(ReducerError):
        one.reducer.get_result("w")


@pytest.mark.parametrize("name", SPARSE)
def test_a_sum_beyond_float32_is_an_error(loop, name):
    """Of two elements topkSA makes a dense result: that is looked at too."""
    one = loop({"w": 2}, name, density=0.5, warmup_iters=0)
    for gradient in ([3e38, 1.2e38], [3e38, 1e38], [3.3e38, 0.5e38]):  # the second stays, and grows to 2.7e38
        one.step(w=torch.tensor(gradient))
    with pytest.raises(ReducerError, match="beyond float32"):
        one.step(w=torch.tensor([0.0, 3e38]))


@pytest.mark.parametrize("warmup_iters", [0, 10])
def test_a_gradient_too_long_to_be_summed_is_skipped(loop, warmup_iters):
    one = loop({"w": 8}, warmup_iters=warmup_iters)
    one.step(w=torch.full((8,), 3e38))
    assert one.reducer.last_step.skipped
    assert one.reducer.last_step.phase == ("dense" if warmup_iters else "sparse")


def test_complex_parameters_are_refused(loop):
    with pytest.raises(ValueError, match="w is complex"):
        AllReducer([("w", torch.nn.Parameter(torch.ones(2, dtype=torch.complex64)))], None, None, "topkA")


def test_a_transposed_gradient_is_taken_as_it_reads(loop):
    one = loop({"w": (3, 3)}, density=1.0, warmup_iters=0)
    one.reducer.view("w").copy_(torch.arange(9.0).view(3, 3))
    assert torch.equal(one.step(w=one.reducer.view("w").t())["w"], torch.arange(9.0).view(3, 3).t())


def test_a_missing_gradient_is_named(loop):
    with pytest.raises(TypeError, match="the gradient of w is None"):
        loop({"w": 8}).reducer.add_tensor("w", None)


def test_parameters_without_elements_are_no_gradients_of_their_own(loop):
    one = loop({"none": 0, "w": 8}, merge_size=4, warmup_iters=0)
    assert one.step(none=torch.zeros(0), w=EIGHT)["w"].tolist() == [8, 0, -7, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"norm_clip": -1.0}, {"norm_clip": float("nan")}, {"sigma_scale": -1.0}, {"threshold_period": 0},
        {"region_period": 0}, {"merge_size": 0}, {"warmup_iters": -1}, {"momentum": 1.0}, {"threshold": "guess"},
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AllReducer([("w", torch.nn.Parameter(torch.zeros(4)))], None, None, compressors["oktopk"], **wrong)


def test_an_unknown_compressor_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match=r"no compressor 'topk'.*oktopk"):
        AllReducer([("w", torch.nn.Parameter(torch.zeros(4)))], None, None, "topk")


def test_reducers_give_their_communicators_back(loop):
    """MPI has about two thousand."""
    for _ in range(3000):
        one = Loop({"w": 1})
        one.reducer.stop()
        one.thread.join()


def test_a_name_that_nobody_gave_is_named_in_the_error(loop):
    one = loop({"w": 8})
    one.names.put("v")
    one.done.get(timeout=60)
    with pytest.raises(ReducerError, match="'v'"):
        one.reducer.get_result("w")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_gradient_is_skipped_and_residuals_stay(loop, value, caplog):
    one = loop({"w": 8}, warmup_iters=0)
    one.step(w=EIGHT)
    broken = EIGHT.clone()
    broken[3] = value
    with caplog.at_level(logging.WARNING):
        assert not one.step(w=broken)["w"].any()
        assert one.reducer.last_step.skipped
        one.step(w=broken)
    assert one.reducer.skipped_steps == 2
    assert len([r for r in caplog.records if "not finite" in r.message]) == 1  # once per epoch
    assert one.step(w=torch.zeros(8))["w"].tolist() == [0, 0, 0, 0, 0, 0, 5, 6]
    assert one.reducer._allreduce_counter == {"w": 2}


def test_ten_skips_in_a_row_are_an_error(loop):
    one = loop({"w": 8}, warmup_iters=0)
    broken = torch.full((8,), float("nan"))
    for _ in range(9):
        one.step(w=broken)
    one.step(w=EIGHT)  # a good one in between: counting starts anew
    for _ in range(9):
        one.step(w=broken)
    with pytest.raises(ReducerError, match="10 steps in a row"):
        one.step(w=broken)


def test_norm_clip_bounds_the_gradient_before_it_is_compressed(loop):
    one = loop({"a": 2, "b": 2}, density=1.0, warmup_iters=0, norm_clip=1.0, merge_size=2)
    results = one.step(a=torch.tensor([3.0, 0.0]), b=torch.tensor([0.0, 4.0]))
    assert torch.allclose(results["a"], torch.tensor([0.6, 0.0]))  # the norm of the whole, 5, not of a part
    assert torch.allclose(results["b"], torch.tensor([0.0, 0.8]))
    assert one.reducer.last_step.grad_norm == pytest.approx(5.0)
    small = one.step(a=torch.tensor([0.1, 0.0]), b=torch.tensor([0.0, 0.1]))
    assert torch.allclose(small["a"], torch.tensor([0.1, 0.0]))


@pytest.mark.parametrize("density", [0, -0.1, 1.5, float("nan")])
def test_a_density_outside_its_range_is_refused(density):
    with pytest.raises(ValueError, match="density"):
        AllReducer([("w", torch.nn.Parameter(torch.zeros(4)))], None, None, compressors["oktopk"], density=density)


def test_the_registry_has_the_ten_names_and_their_aliases():
    assert set(compressors) == {
        "none", "dense", "topkA", "topkA2", "topkAopt", "topkSA", "topkDSA", "gtopk", "gaussiank", "gaussiankconcat",
        "gaussiankSA", "oktopk",
    }  # fmt: skip
    assert compressors["dense"] is compressors["none"]
    assert compressors["topkDSA"] is compressors["topkSA"]


def test_a_merged_gradient_whose_indices_overflow_int32_is_refused_with_the_remedy():
    class Huge:
        name, size, gradient = "w", 2**31, torch.zeros(1)

    with pytest.raises(OverflowError, match="merge_size"):
        Reducer(Huge, compressors["oktopk"], Settings(), Alone())


def test_a_compressor_that_is_not_to_be_used_is_no_silence(caplog):
    with caplog.at_level(logging.WARNING):
        reducer = AllReducer([("w", torch.nn.Parameter(torch.zeros(4)))], None, None, compressors["oktopk"])
    assert "every step will be dense: oktopk was given" in caplog.text
    assert reducer.get_current_density() == 1
    caplog.clear()
    AllReducer([("w", torch.nn.Parameter(torch.zeros(4)))], None, None, compressors["none"])
    assert caplog.text == ""


def test_a_reducer_that_was_stopped_through_its_queue_says_so(loop):
    one = loop({"w": 8})
    one.names.put("STOP")
    one.thread.join(timeout=60)
    with pytest.raises(ReducerError, match="stopped"):
        one.reducer.add_tensor("w", EIGHT)


@pytest.mark.parametrize("value", [1.5, "128", float("inf"), None, [1]])
def test_a_count_is_a_whole_number(value):
    with pytest.raises(ValueError, match="warmup_iters is a whole number, 0 or more"):
        Settings(warmup_iters=value)


@pytest.mark.parametrize("compression", ["oktopk", "gaussiank"])
def test_the_density_comes_down_after_the_warm_up_and_a_resumed_ramp_goes_on_alike(compression):
    settings = Settings(density=0.01, warmup_iters=2, ramp_iters=3)
    (parameter,) = torch.nn.Linear(1000, 10, bias=False).parameters()
    gradients = torch.randn(9, 10, 1000, generator=torch.Generator().manual_seed(0))

    def steps(averager, chosen):
        densities, means = [], []
        for gradient in chosen:
            densities.append(averager.get_current_density())
            averager.hand_in("w", gradient.clone())
            averager.average()
            means.append(averager.view("w").clone())
        return densities, means

    def made():
        return GradientAverager([("w", parameter)], compression, settings)

    densities, means = steps(made(), gradients)
    ratio = (0.01 / 0.25) ** 0.25
    assert densities == pytest.approx([1, 1, 0.25 * ratio, 0.25 * ratio**2, 0.25 * ratio**3, 0.01, 0.01, 0.01, 0.01])
    if compression == "oktopk":
        assert [int(mean.count_nonzero()) for mean in means[2:]] == [int(10_000 * each) for each in densities[2:]]
    for stop in range(1, 9):
        before, after = made(), made()
        steps(before, gradients[:stop])
        after.load_state_dict(before.state_dict())
        for mean, whole in zip(steps(after, gradients[stop:])[1], means[stop:], strict=True):
            assert torch.equal(mean, whole)


def test_a_density_above_the_ramps_beginning_has_none():
    (parameter,) = torch.nn.Linear(10, 10, bias=False).parameters()
    settings = Settings(density=0.5, warmup_iters=0, ramp_iters=3)
    assert GradientAverager([("w", parameter)], "oktopk", settings).get_current_density() == 0.5
