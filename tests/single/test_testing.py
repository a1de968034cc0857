"""`oktopk.testing` passes what is right, and says of each broken compressor which law it breaks. Ranks are threads."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from test_communicator import on_ranks

from corpora import PROJECT
from oktopk import GradientAverager, compressors
from oktopk.algorithms import Algorithm
from oktopk.algorithms.topka import TopkA
from oktopk.choosers import Chooser, ExactTopK
from oktopk.entries import Entries
from oktopk.registry import Compressor
from oktopk.testing import LawBroken, broken_laws, cases, check_compressor
from oktopk.transports.alone import Alone


class SharedDraw(Chooser):
    """Entries drawn from a seed that all ranks share, zeros among them."""

    kept = ("step",)
    step = 0

    def choose(self, residual, gradient):
        residual.add_(gradient)
        gradient.zero_()
        generator = torch.Generator().manual_seed(self.step)
        self.step += 1
        drawn = torch.randperm(self.n, generator=generator)[: self.k].sort().values
        return Entries(drawn.int(), residual[drawn])


class SumsInPlace(Algorithm):
    """Every rank has the same indices, so values alone are summed."""

    def reduce(self, mine):
        sums = mine.values.clone()
        self.comm.allreduce(sums)
        return self.reduction(Entries(mine.indices, sums), delivered=mine)


SIZES = pytest.mark.parametrize("size", [1, 2, 3])


def first(entries, count):
    return Entries(entries.indices[:count], entries.values[:count].clone())


class Loses(TopkA):
    """Of what it says it delivers, the last entry is missing."""

    def reduce(self, mine):
        return self.reduction(self.sum_of_all(first(mine, mine.count - 1)), delivered=mine)


class DeliversHalf(TopkA):
    """Nothing is lost, but at density 1 half of it is late."""

    def reduce(self, mine):
        return super().reduce(first(mine, mine.count // 2))


class Forgets(TopkA):
    """Delivers half in every other reduction, and keeps their number to itself."""

    count = 0

    def reduce(self, mine):
        self.count += 1
        return super().reduce(first(mine, mine.count // 2) if self.count % 2 and self.k < self.n else mine)


class CountsItsStates(TopkA):
    """Asking for its state changes it."""

    asked = 0

    def state_dict(self):
        self.asked += 1
        return {"asked": self.asked}


class CannotBeSaved(TopkA):
    def state_dict(self):
        return {"itself": compressors["topkA"]}


class Infinite(TopkA):
    """And says that it has looked."""

    def reduce(self, mine):
        reduction = super().reduce(mine)
        reduction.mean.values.mul_(float("inf"))
        return replace(reduction, is_finite=True)


class Fails(TopkA):
    def reduce(self, mine):
        raise ZeroDivisionError("there is nothing to divide by")


class OneTooFew(ExactTopK):
    def choose(self, residual, gradient):
        chosen = super().choose(residual, gradient)
        return first(chosen, max(1, chosen.count - 1))


BROKEN = {
    "nothing lost": Compressor("loses", Loses, ExactTopK),
    "dense at density 1": Compressor("delivers half", DeliversHalf, ExactTopK),
    "resume equals no resume": Compressor("forgets", Forgets, ExactTopK),
    "overflow leaves all state as it was": Compressor("counts", CountsItsStates, ExactTopK),
    "no exceptions": Compressor("fails", Fails, ExactTopK),
    "exact choice": Compressor("one too few", TopkA, OneTooFew),
}


def verdict(compressor, comm, **options):
    with pytest.raises(LawBroken) as caught:
        check_compressor(compressor, comm, **options)
    return str(caught.value)


@pytest.mark.parametrize("name", compressors)
def test_our_own_keep_the_laws(name):
    assert check_compressor(name, Alone(), iterations=3) == len(list(cases()))


def test_a_chooser_of_ones_own_chooses_at_density_1_too():
    """An exact one in its place would leave zeros out, of which ranks have different numbers."""
    random_k = Compressor("random-k", SumsInPlace, SharedDraw)
    assert set(on_ranks(3, lambda comm: check_compressor(random_k, comm, iterations=2))) == {len(list(cases()))}
    swapped = Compressor("random-k", SumsInPlace, ExactTopK)
    (said,) = set(on_ranks(3, lambda comm: verdict(swapped, comm, iterations=2)))
    assert "random-k" in said


@pytest.mark.parametrize("name", ["oktopk", "gtopk", "gaussiankSA", "none"])
def test_ranks_may_be_anything_that_a_communicator_joins(name):
    assert len(set(on_ranks(3, lambda comm: check_compressor(name, comm, iterations=2)))) == 1


@SIZES
@pytest.mark.parametrize("law", BROKEN)
def test_each_broken_law_is_named_on_every_rank_alike(law, size):
    said = on_ranks(size, lambda comm: verdict(BROKEN[law], comm, exact=law == "exact choice"))
    assert len(set(said)) == 1
    assert said[0].startswith(f"the law “{law}” is broken by {BROKEN[law].name} on ")
    for word in ("gradients, n = ", "density ", f"P = {size}", "iteration "):
        assert word in said[0]


def test_a_mean_that_is_not_finite_is_found():
    assert "“finite means”" in verdict(Compressor("infinite", Infinite, ExactTopK), Alone())


def test_a_state_that_cannot_be_saved_plainly_is_found():
    said = verdict(Compressor("cannot", CannotBeSaved, ExactTopK), Alone())
    assert "“no exceptions”" in said
    assert "weights_only" in said


def test_an_overflow_that_gets_through_is_found(monkeypatch):
    """The library's own fault, if it did not look at gradients before it summed them."""
    monkeypatch.setattr(GradientAverager, "_agree", lambda *given: (True, set()))
    assert "“overflow leaves all state as it was”" in verdict("none", Alone())
    assert "the step was not skipped" in verdict("none", Alone())


def test_the_cause_of_a_failure_is_at_hand():
    with pytest.raises(LawBroken, match="every rank raised ZeroDivisionError: there is nothing to divide by") as caught:
        check_compressor(BROKEN["no exceptions"], Alone())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_settings_are_handed_on_and_wrong_ones_are_not_a_broken_law():
    assert check_compressor("oktopk", Alone(), sizes=(5,), iterations=2, threshold="reuse", wire="joined")
    with pytest.raises(ValueError, match="momentum"):
        check_compressor("oktopk", Alone(), momentum=0.5)
    with pytest.raises(ValueError, match="there is no compressor"):
        check_compressor("topkZ", Alone())


def test_broken_laws_tells_of_every_case():
    every = list(cases(sizes=(7,), iterations=2))
    found = broken_laws(BROKEN["dense at density 1"], Alone(), every)
    assert len(found) == len(every)
    assert any(found.values())
    assert not all(found.values())


def test_it_needs_neither_mpi_nor_numba_nor_pytest():
    code = (
        "import sys; from oktopk.testing import check_compressor\n"
        "assert not {'mpi4py', 'numba', 'pytest', 'hypothesis'} & {name.split('.')[0] for name in sys.modules}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT / "LSTM", capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
