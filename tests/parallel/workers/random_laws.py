"""The cases of `laws.py`, and then Hypothesis: rank 0 draws gradients and shrinks them, all ranks reduce what it drew.

Prints the object of `laws.py`, and in it as "random" null or the smallest case that breaks a law. With the argument
"few": of few draws, and the few cases that are enough for another transport.
"""

import base64
import json
import pickle
import sys
from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laws import COMM, NAMES, check, every_case, few_cases, findings

from oktopk.testing import Case
from oktopk.testing.meeting import text_of_first
from oktopk.wire import wires

EXAMPLES, FEW_EXAMPLES = 40, 10
ITERATIONS = 3
NO_MORE = ""
# What a drawn byte stands for: equal magnitudes are frequent then, and sums that cancel. Zero is the simplest.
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, 1e-30, -1e30, 1e-45]
POWERS = np.ldexp(np.linspace(1, 2, 124, endpoint=False), np.linspace(-100, 99, 124).astype(int))
VALUES = np.concatenate([SPECIAL, POWERS, -POWERS]).astype(np.float32)


@dataclass(frozen=True)
class Drawn(Case):
    gradients: np.ndarray = None

    def gradient(self, ranks, rank, iteration):
        return self.gradients[rank, iteration].copy()


@st.composite
def cases(draw):
    n = draw(st.integers(1, 80))
    name = draw(st.sampled_from(NAMES))
    density = draw(st.sampled_from([0.02, 0.1, 0.5, 1.0]))
    length = COMM.size * ITERATIONS * n
    gradients = VALUES[np.frombuffer(draw(st.binary(min_size=length, max_size=length)), np.uint8)]
    threshold = draw(st.sampled_from(["exact", "reuse"]))
    wire = draw(st.sampled_from(list(wires)))
    of_all = gradients.reshape(COMM.size, ITERATIONS, n)
    return name, Drawn("drawn", n, density, ITERATIONS, None, {"threshold": threshold, "wire": wire}, of_all)


def of_rank_0(case):
    """As text, so that it travels over any communicator."""
    text = text_of_first(COMM, base64.b64encode(pickle.dumps(case)).decode() if case else NO_MORE)
    return pickle.loads(base64.b64decode(text)) if text else None


def search(examples):
    @settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=cases())
    def hold(case):
        of_rank_0(case)
        verdict = check(*case)
        assert verdict is None, f"{case}: {verdict}"

    try:
        hold()
    except AssertionError as error:
        return str(error)
    return None


def main():
    few = sys.argv[1:] == ["few"]
    found = findings(few_cases() if few else every_case())
    if COMM.rank:
        while case := of_rank_0(None):
            check(*case)
        return
    at_random = search(FEW_EXAMPLES if few else EXAMPLES)
    of_rank_0(None)
    sys.stdout.write(json.dumps(found | {"random": at_random}) + "\n")


if __name__ == "__main__":
    main()
