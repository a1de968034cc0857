"""Hypothesis looks for gradients that break a law: rank 0 draws and shrinks, all ranks reduce what it drew.

Prints null, or the smallest case that it found.
"""

import json
import sys

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from laws import COMM, NAMES, check

EXAMPLES = 40
ITERATIONS = 3
NO_MORE = None
FLOATS = st.one_of(
    st.floats(-(2.0**100), 2.0**100, width=32),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 1e-30, -1e30, 1e-45]).map(np.float32).map(float),
)


@st.composite
def cases(draw):
    n = draw(st.integers(1, 80))
    name = draw(st.sampled_from(NAMES))
    density = draw(st.sampled_from([0.02, 0.1, 0.5, 1.0]))
    gradients = draw(arrays(np.float32, (COMM.size, ITERATIONS, n), elements=FLOATS))
    return name, n, density, draw(st.sampled_from(["exact", "reuse"])), gradients


def run(case):
    name, n, density, threshold, gradients = case
    return check(name, lambda rank, iteration: gradients[rank, iteration], n, density, ITERATIONS, threshold)


@settings(
    max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
@given(case=cases())
def search(case):
    COMM.bcast(case)
    verdict = run(case)
    assert verdict is None, f"{case}: {verdict}"


def main():
    if COMM.rank:
        while (case := COMM.bcast(None)) is not NO_MORE:
            run(case)
        return
    found = None
    try:
        search()
    except AssertionError as error:
        found = str(error)
    COMM.bcast(NO_MORE)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
