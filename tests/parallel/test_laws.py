"""Every algorithm keeps the laws, on every number of ranks, on nasty and on random gradients.

1. Every rank gets the identical result. 2. Density 1 gives the dense mean. 3. Nothing is lost. 4. Exact choosers choose
min(k, non-zeros). 5. Means and residuals are those of an oracle in plain NumPy, bit for bit, where choices are exact.
"""

from functools import cache

import pytest
from ranks import RANKS, findings_of

from oktopk import compressors

NAMES = list(dict.fromkeys(compressor.name for compressor in compressors.values()))
CASES_EACH = 22  # nasty kinds, sizes and the long run: a worker that ran fewer has not shown anything


@cache
def findings(ranks):
    return findings_of(ranks, "laws.py")


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", NAMES)
def test_laws_hold_on_nasty_gradients(name, ranks):
    mine = {case: law for case, law in findings(ranks).items() if case.split()[0] == name}
    assert len(mine) >= CASES_EACH
    assert {case: law for case, law in mine.items() if law} == {}


@pytest.mark.parametrize("ranks", RANKS)
def test_laws_hold_on_random_gradients(ranks):
    assert findings_of(ranks, "random_laws.py") is None
