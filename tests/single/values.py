"""Values, and what must be chosen of them by definition, for the tests of kernels and of choosers."""

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from oktopk.cpu_operations import CpuOps
from oktopk.entries import Entries
from oktopk.operations import TorchOps

BOTH = pytest.mark.parametrize("ops", [CpuOps, TorchOps])
FLOATS = st.one_of(
    st.floats(-(2.0**100), 2.0**100, width=32),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-30, 1e-45, -1e-45, 1e37]).map(np.float32).map(float),
)
VECTORS = st.integers(1, 200).flatmap(lambda n: arrays(np.float32, n, elements=FLOATS))


def entries(array):
    return Entries(torch.arange(len(array), dtype=torch.int32), torch.from_numpy(array))


def assert_same(a, b):
    assert a.indices.dtype == b.indices.dtype == torch.int32
    assert a.values.dtype == b.values.dtype == torch.float32
    assert torch.equal(a.indices, b.indices)
    assert a.values.numpy().tobytes() == b.values.numpy().tobytes()


def assert_sorted_by_definition(chosen, array, k):
    """The k largest non-zero magnitudes, of equal ones the lowest indices, in the order of their indices."""
    order = np.lexsort((np.arange(len(array)), -np.abs(array.astype(np.float64))))
    order = np.sort([i for i in order[:k] if array[i] != 0])
    assert chosen.indices.tolist() == list(order)
    assert chosen.values.tolist() == array[order.astype(int)].tolist()
