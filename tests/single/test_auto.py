"""oktopk.auto: which forms are tried, and which of them is taken."""

import pytest
import torch

from oktopk import GradientAverager, Settings, auto
from oktopk.pieces import PiecewiseAverager
from oktopk.registry import FASTEST
from oktopk.transports.alone import Alone


class Ranks(Alone):
    """As many, as far as numbers and hosts go."""

    def __init__(self, hosts, has_parts=True):
        super().__init__()
        self.size, self.hosts, self.has_parts = len(hosts), hosts, has_parts


@pytest.fixture
def tried(monkeypatch):
    """Take the times from a table in place of trying."""
    monkeypatch.setattr(auto, "ranks_by_host", lambda ranks: list(dict.fromkeys(ranks.hosts)))

    def choose(hosts, times, settings=None, **of_ranks):
        names = []

        def seconds(make, parameters, form, ranks):
            names.append(form.name)
            return times.get(form.name, (1.0,))

        monkeypatch.setattr(auto, "_seconds", seconds)
        return auto.fastest(None, [], settings or Settings(), Ranks(hosts, **of_ranks)), names

    return choose


GAPS, SEPARATE = "oktopk over the wire gaps", "oktopk over the wire separate"


def test_the_fastest_form_is_taken_and_says_why(tried):
    choice, names = tried("ab", {"dense": (0.95, 0.9), GAPS: (0.08, 0.05), SEPARATE: (0.06, 0.06)})
    assert names == ["dense", SEPARATE, GAPS]
    assert (choice.compression, choice.settings.wire, choice.settings.hierarchical) == ("oktopk", "gaps", False)
    assert choice.reason == (
        f"{GAPS}, of what a reduction takes here (least counts, and sparse is to be below 0.9 of dense): "
        f"dense 900.0 to 950.0 ms, {SEPARATE} 60.0 to 60.0 ms, {GAPS} 50.0 to 80.0 ms"
    )


@pytest.mark.parametrize(("seconds", "chosen"), [(0.91, "dense"), (0.89, "oktopk")])
def test_what_is_hardly_faster_than_dense_is_not_worth_its_delay(tried, seconds, chosen):
    assert tried("ab", {"dense": (1.0, 1.2), GAPS: (1.3, seconds)})[0].compression == chosen


def test_hosts_of_several_ranks_are_tried_as_nodes_too(tried):
    nested = f"{GAPS}, hierarchical"
    choice, names = tried("aabb", {"dense": (0.9,), nested: (0.1,)})
    assert names == ["dense", SEPARATE, f"{SEPARATE}, hierarchical", GAPS, nested]
    assert choice.settings.hierarchical
    assert tried("aabb", {}, has_parts=False)[1] == ["dense", SEPARATE, GAPS]
    assert tried("aa", {})[1] == ["dense", SEPARATE, GAPS]


def test_what_is_asked_for_is_not_varied(tried):
    choice, names = tried("aabb", {"dense": (0.9,)}, Settings(wire="gaps16", hierarchical=True))
    assert names == ["dense", "oktopk over the wire gaps16, hierarchical"]
    assert choice.settings.hierarchical


def test_one_rank_is_dense_without_a_try():
    averager = GradientAverager([("weight", torch.nn.Parameter(torch.ones(9)))], "auto", Settings(), Alone())
    assert averager.compressor.name == "none"
    assert "one rank" in averager.choice.reason


def test_parts_of_a_model_are_refused():
    with pytest.raises(ValueError, match="for a whole model, not for parts of it"):
        PiecewiseAverager(FASTEST, Settings(), Alone())


def test_forms_are_tried_at_the_density_that_lasts(monkeypatch):
    """Neither those of a dense warm-up nor those of the ramp after it."""
    tried = []

    def make(compression, settings):
        tried.append((settings.warmup_iters, settings.ramp_iters))
        return GradientAverager([("w", torch.nn.Parameter(torch.zeros(100)))], compression, settings, Alone())

    auto._seconds(make, ["w"], auto.Form("x", "oktopk", Settings(warmup_iters=3, ramp_iters=5)), Alone())
    assert tried == [(0, 0)]
