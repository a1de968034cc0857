"""Every algorithm keeps the laws, on every number of ranks, on nasty and on random gradients.

Those of `oktopk.testing`; means and residuals are also those of an oracle in plain NumPy, bit for bit, where choices
are exact, and within their bands where they are not.
"""

from functools import cache

import pytest
from ranks import RANKS, TORCH_RANKS, WORKERS, findings_of, run_ranks, run_torch_ranks

from oktopk import compressors

NAMES = list(dict.fromkeys(compressor.name for compressor in compressors.values()))
CASES_EACH = 28  # nasty kinds, sizes, events and the long run: a worker that ran fewer has not shown anything
MORE_CASES = dict.fromkeys((1, 2, 3, 5), 11)  # of wires that round, and of nodes of several ranks
FEW_CASES_EACH = 7
SECONDS_TO_END = 60
BROKEN = ("Differs", "Raises", "LeavesOut")
LAUNCHERS = pytest.mark.parametrize("launch", [run_ranks, run_torch_ranks])


@cache
def findings(ranks):
    return findings_of(ranks, "random_laws.py")


@cache
def findings_under_torchrun(ranks):
    return findings_of(ranks, "random_laws.py", "few", launch=run_torch_ranks)


def assert_laws_hold(found, name, at_least):
    mine = {case: law for case, law in found.items() if case.split()[0] == name}
    assert len(mine) >= at_least
    assert {case: law for case, law in mine.items() if law} == {}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", NAMES)
def test_laws_hold_on_nasty_gradients(name, ranks):
    assert_laws_hold(findings(ranks), name, CASES_EACH + MORE_CASES.get(ranks, 0))


@pytest.mark.parametrize("ranks", RANKS)
def test_laws_hold_on_random_gradients(ranks):
    assert findings(ranks)["random"] is None


@pytest.mark.parametrize("ranks", TORCH_RANKS)
@pytest.mark.parametrize("name", NAMES)
def test_laws_hold_under_torchrun(name, ranks):
    assert_laws_hold(findings_under_torchrun(ranks), name, FEW_CASES_EACH)


@pytest.mark.parametrize("ranks", TORCH_RANKS)
def test_laws_hold_on_random_gradients_under_torchrun(ranks):
    assert findings_under_torchrun(ranks)["random"] is None


@cache
def sentences(launch):
    return findings_of(3, "laws.py", *BROKEN, seconds=SECONDS_TO_END, launch=launch)


@LAUNCHERS
@pytest.mark.parametrize(
    ("fault", "law", "figures"),
    [
        ("Differs", "identical on all ranks", "the means of rank 1 and rank 0 differ in"),
        ("Raises", "no exceptions", "rank 0 came to allgatherv"),
        ("LeavesOut", "all ranks in step", "rank 0 came to allgatherv"),
    ],
)
def test_every_rank_hears_of_a_law_that_one_rank_broke(fault, law, figures, launch):
    said = sentences(launch)[fault]
    assert len(said) == 3
    assert len(set(said)) == 1
    assert f"the law “{law}” is broken by {fault}" in said[0]
    assert "P = 3, iteration 0" in said[0]
    assert figures in said[0]
    assert ("rank 1 raised ValueError: rank one's own trouble" in said[0]) == (fault == "Raises")


@LAUNCHERS
def test_a_message_that_nobody_sends_ends_the_job(launch):
    done = launch(2, WORKERS / "laws.py", "Waits", seconds=SECONDS_TO_END)
    assert done.returncode != 0
    assert "Waits on normal gradients, n = 1000, density 0.02 takes more than 3 seconds" in done.stderr
