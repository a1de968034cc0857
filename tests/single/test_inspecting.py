"""--inspect: its figures in cases worked out by hand, that it changes nothing, and what it leaves in the run."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from test_communicator import Meeting, Threads

from oktopk import GradientAverager, Settings, compressors
from oktopk.entries import Entries
from oktopk.testing.gradients import gradient
from oktopk_training import inspection_figures as figures
from oktopk_training import run_log
from oktopk_training.errors import UserError
from oktopk_training.inspecting import Inspector, NoInspector, inspector_of
from oktopk_training.inspection_files import MOST_COUNT, histogram, read_inspections
from oktopk_training.options import parse_options
from oktopk_training.step import Step

SIZES = {"a.weight": 4, "b.bias": 2}
# By rank and step. With density 1/3, a rank chooses 2 of 6 entries.
GRADIENTS = (
    ([8, 4, 0, 1, 0, 0], [0, 0, 0, 0, 2, 0.5], [7, 7, 0, 0, 0.25, 0]),
    ([-8, 1, 6, 0, 0, 3], [0, 0, 5, 4, 0, 0], [9, 0, 0, 0, 1, 9]),
)


class Written(list):
    inspection = list.append


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


# ---- one figure each


def test_magnitudes_are_counted_from_each_power_of_two_to_the_next():
    counts = figures.powers_of_two(torch.tensor([0.0, -0.0, 1e-45, 1.0, -1.5, 1.999, 2.0, -0.25, 3e38]))
    assert {place - 127: count for place, count in enumerate(counts.tolist()) if count} == {
        -127: 3, -2: 1, 0: 3, 1: 1, 127: 1,
    }  # fmt: skip


def test_a_histogram_has_the_powers_from_the_lowest_to_the_highest_that_occur():
    assert histogram([3, *[0] * 124, 1, 0, 2, *[0] * 128]) == {"zeros": 3, "first": -2, "counts": [1, 0, 2]}
    assert histogram([7, *[0] * 255])["counts"] == []


def test_energy_is_the_sum_of_squares():
    assert figures.energy(torch.tensor([3.0, -4.0, 0.0])) == pytest.approx(25)
    assert figures.energy(torch.zeros(0)) == 0


def test_the_true_choice_is_the_largest_and_its_overlap_is_what_both_have():
    true = figures.largest(torch.tensor([0.0, -9.0, 1.0, 5.0, 5.0, 0.5]), 2)
    assert true.tolist() == [1, 3]  # of equal ones the first
    assert figures.in_both(ints(0, 3, 4), true) == 1
    assert figures.in_both(ints(), true) == 0
    assert figures.largest(torch.tensor([0.0, 2.0]), 2).tolist() == [1]  # zeros are never chosen


def test_entries_are_counted_by_the_parameter_that_they_lie_in():
    assert figures.by_parameter(ints(0, 3, 4), SIZES) == {"a.weight": (2, 4), "b.bias": (1, 2)}
    assert figures.by_parameter(ints(), SIZES) == {"a.weight": (0, 4), "b.bias": (0, 2)}


def test_an_entry_is_as_old_as_the_steps_since_it_was_sent():
    ages = figures.Ages(4, "cpu")
    for sent in ([1.0, 0.0], [0.0, 1.0], [0.0, 0.0]):  # entry 0 in the first step, entry 3 in the second
        ages.step(Entries(ints(0, 3), torch.tensor(sent)))
    counts, total = ages.of(torch.tensor([1.0, 1.0, 0.0, 1.0]))  # 2, 3 and 1 steps; entry 2 holds nothing
    assert (histogram(counts), total) == ({"zeros": 0, "first": 0, "counts": [1, 2]}, 6)
    ages.step(Entries(ints(1), torch.ones(1)))
    counts, total = ages.of(torch.ones(4))  # 3, 0, 4 and 2
    assert (histogram(counts), total) == ({"zeros": 1, "first": 1, "counts": [2, 1]}, 9)
    counts, total = ages.of(torch.zeros(4))
    assert (int(counts.sum()), total) == (0, 0)


# ---- together, on two ranks


def over_ranks(size, action):
    """The action's results of each rank, for a communicator to reduce over and one to inspect over."""
    meetings = Meeting(size), Meeting(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: action(*(Threads(rank, meeting) for meeting in meetings)), range(size)))


def averager_of(comm, compressor, sizes, **options):
    parameters = [(name, torch.nn.Parameter(torch.zeros(size))) for name, size in sizes.items()]
    return GradientAverager(parameters, compressor, Settings(**{"warmup_iters": 0, **options}), comm)


def steps_of(averager, inspector, gradients):
    """Reports, means and residuals of each step."""
    done = []
    for number, flat in enumerate(gradients):
        inspector.begin_step(number)
        sizes = {name: view.numel() for name, view in averager._views.items()}
        for name, part in zip(sizes, flat.split([*sizes.values()]), strict=True):
            averager.hand_in(name, part)
        report = averager.average()
        inspector.end_step(Step(number, 0, report.phase))
        kept = averager.state_dict()["parameters"]
        done.append((report, {name: averager.view(name).clone() for name in kept}, kept))
    return done


def inspected(compressor, every=2):
    """What rank 0 writes of the steps worked out by hand."""

    def action(comm, own):
        averager, run = averager_of(comm, compressor, SIZES, density=1 / 3), Written()
        inspector = Inspector(every, own, run)
        averager.inspect(inspector)
        steps_of(averager, inspector, [torch.tensor(each, dtype=torch.float32) for each in GRADIENTS[comm.rank]])
        return run

    first, second = over_ranks(2, action)
    assert [{**each, "seconds": 0} for each in first] == [{**each, "seconds": 0} for each in second]
    return first


def test_the_figures_of_a_step_are_those_worked_out_by_hand():
    """Rank 0 chooses entries 0 and 1, rank 1 entries 0 and 2; in the mean, 0, 2.5, 3, 0.5, 0, 1.5, 2 and 1 are largest.

    The 8 and the -8 cancel out, so the result has entries 1 and 2.
    """
    record = inspected("topkA")[0]
    assert (record["iter"], record["phase"]) == (0, "sparse")
    assert record["overlap"] == 0.5
    assert record["overlap_of_result"] == 1
    assert record["energy"] == pytest.approx(180 / 191)
    assert record["energy_sent"] == record["energy"]
    assert record["selected"] == {"a.weight": (2, 4), "b.bias": (0, 2)}
    gradient, residual = record["gradient"], record["residual"]
    assert gradient == {"norm": pytest.approx(math.sqrt(191 / 2)), "zeros": 5, "first": 0, "counts": [2, 1, 2, 2]}
    assert residual == {"norm": pytest.approx(math.sqrt(11 / 2)), "zeros": 9, "first": 0, "counts": [2, 1]}
    assert record["ages"] == {"steps": 1, "mean": 1, "zeros": 0, "first": 0, "counts": [3]}


def test_what_was_dropped_on_the_way_was_chosen_and_not_sent():
    """The global choice has entries 1 and 2: of rank 0 the 4 arrives, of rank 1 the 6."""
    record = inspected("oktopk")[0]
    assert record["energy"] == pytest.approx(180 / 191)
    assert record["energy_sent"] == pytest.approx(52 / 191)


def test_ages_count_the_steps_that_nobody_inspects_too():
    """In the third step rank 0 keeps an entry sent in the second and one never sent, rank 1 two never sent."""
    first, third = inspected("topkA")
    assert (first["iter"], third["iter"]) == (0, 2)
    assert third["ages"] == {"steps": 3, "mean": 2.5, "zeros": 0, "first": 0, "counts": [1, 3]}


# ---- nothing changes


class Counting:
    def __init__(self):
        self.calls = []

    def before(self, reducer):
        self.calls.append(("before", reducer.reductions))

    def after(self, reducer, chosen, reduction):
        self.calls.append(("after", chosen is None, reduction is None))


def test_a_reducer_shows_every_reduction_and_without_an_inspector_nothing():
    comm = Threads(0, Meeting(1))
    averager, counting = averager_of(comm, "oktopk", SIZES, warmup_iters=1, density=0.5), Counting()
    assert all(reducer.inspector is None for reducer in averager._reducers)
    averager.inspect(counting)
    steps_of(averager, NoInspector(), [torch.ones(6)] * 2)
    assert counting.calls == [("before", 0), ("after", True, True), ("before", 1), ("after", False, False)]
    averager.inspect(None)
    steps_of(averager, NoInspector(), [torch.ones(6)])
    assert len(counting.calls) == 4


def test_off_there_is_no_inspector_and_nobody_is_asked():
    assert isinstance(inspector_of(None, None, None, None), NoInspector)


CASES = [(name, {}) for name in dict.fromkeys(each.name for each in compressors.values())]
CASES += [("oktopk", {"wire": "gaps16"}), ("topkA2", {"momentum": 0.9}), ("oktopk", {"merge_size": 90})]
CASES += [("gtopk", {"exclude": "b*"}), ("gaussiank", {"threshold": "reuse"}), ("topkSA", {"density": 0.5})]


@pytest.mark.parametrize(("compressor", "options"), CASES, ids=str)
def test_looking_changes_neither_bits_nor_bytes(compressor, options):
    sizes = {"a.weight": 60, "a.bias": 7, "b.weight": 33}
    options = {"density": 0.1, "warmup_iters": 1, **options}

    def action(comm, own):
        run, found = Written(), []
        for inspector in (NoInspector(), Inspector(2, own, run)):
            averager = averager_of(comm, compressor, sizes, **options)
            averager.inspect(inspector if isinstance(inspector, Inspector) else None)
            flat = [torch.from_numpy(gradient("layered", 100, comm.size, comm.rank, step)) for step in range(5)]
            found.append(steps_of(averager, inspector, flat))
        return found, run

    for (without, looked_at), run in over_ranks(3, action):
        for (report, means, kept), (its_report, its_means, its_kept) in zip(without, looked_at, strict=True):
            assert (report.bytes_sent, report.selected_local) == (its_report.bytes_sent, its_report.selected_local)
            assert all(torch.equal(means[name], its_means[name]) for name in sizes)
            assert repr(kept) == repr(its_kept)
        is_sparse = compressors[compressor].is_sparse
        assert [each["phase"] for each in run] == ["dense", *["sparse" if is_sparse else "dense"] * 2]
        for each in run[1:] if is_sparse else ():
            assert 0 < each["overlap"] <= 1
            assert 0 < each["energy_sent"] <= each["energy"] * 1.02 <= 1.02  # what 16 bits hold may be a little more
            assert each["ages"]["steps"] == each["iter"]


# ---- what lies in the run


LINE = {
    **{"iter": 4, "epoch": 0, "phase": "sparse", "seconds": 0.1, "overlap": 0.5, "overlap_of_result": 0.75},
    "gradient": {"norm": 2.0, "zeros": 1, "first": -3, "counts": [1, 2]},
    "residual": {"norm": 1.0, "zeros": 2, "first": -3, "counts": [2]},
    "energy": 0.9,
    "energy_sent": None,
    "ages": {"steps": 3, "mean": 1.5, "zeros": 0, "first": 0, "counts": [1, 1]},
    "selected": {"layers.0.weight_ih_l0": [1, 4]},
}


def write_lines(folder, *lines):
    (folder / "inspections.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))


def test_what_was_written_is_read_by_step_and_nobody_needs_to_have_inspected(tmp_path):
    assert read_inspections(tmp_path) == []
    write_lines(tmp_path, LINE, {**LINE, "iter": 2, "phase": "dense"}, {**LINE, "overlap": 0.25})
    dense, sparse = read_inspections(tmp_path)
    assert (dense.iter, dense.phase, dense.residual, dense.gradient_norm) == (2, "dense", None, 2.0)
    assert (sparse.overlap, sparse.age, sparse.selected) == (0.25, 1.5, {"layers.0.weight_ih_l0": (1, 4)})
    assert sparse.gradient.shares() == [(-3, 0.25), (-2, 0.5)]
    assert sparse.gradient.share_of_zeros == 0.25


@pytest.mark.parametrize(
    "changed",
    [
        {"iter": -1},
        {"gradient": None},
        {"gradient": {**LINE["gradient"], "first": 10**9}},
        {"gradient": {**LINE["gradient"], "counts": [0] * 300}},
        {"gradient": {**LINE["gradient"], "zeros": MOST_COUNT}},
        {"ages": {**LINE["ages"], "counts": [0.5]}},
        {"selected": {"a": 3}},
        {"selected": [1]},
    ],
    ids=str,
)
def test_a_line_that_is_none_of_its_own_is_refused(changed, tmp_path):
    write_lines(tmp_path, LINE, {**LINE, **changed})
    with pytest.raises(UserError, match=r"inspections\.jsonl:2: this line is not an inspection's record"):
        read_inspections(tmp_path)


def test_a_run_that_goes_on_leaves_the_steps_before_its_checkpoint(tmp_path):
    path = tmp_path / "inspections.jsonl"
    write_lines(tmp_path, *({**LINE, "iter": number} for number in (0, 2, 4, 6)))
    whole = path.read_text().splitlines(keepends=True)
    for step, left in ((5, 3), (4, 2), (0, 0)):
        path.write_text("".join(whole) + '{"iter": 7, "ep')
        run_log._cut(path, step)
        assert path.read_text() == "".join(whole[:left])
    path.write_text("".join(whole[:2]) + '{"iter": 3, "ep')
    run_log._cut(path, 9)
    assert path.read_text() == "".join(whole[:2])
    path.unlink()
    run_log._cut(path, 9)
    assert not path.exists()


def test_a_run_that_begins_anew_keeps_what_it_wrote_under_another_name(tmp_path):
    for content in ("first", "second"):
        for name in ("metrics.jsonl", "inspections.jsonl"):
            (tmp_path / name).write_text(content)
        run_log.set_aside(tmp_path)
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {
        f"{name}.jsonl.{number}": content
        for name in ("metrics", "inspections")
        for number, content in ((1, "first"), (2, "second"))
    }


@pytest.mark.parametrize(
    ("words", "part"), [(("0",), "a whole number above 0"), (("5", "--hierarchical"), "leave one of them out")]
)
def test_what_cannot_be_inspected_is_refused(words, part, corpus):
    with pytest.raises(UserError, match=f"--inspect.*{part}"):
        parse_options(["--data-dir", str(corpus), "--inspect", *words])
