"""For all tests: Hypothesis without deadlines, for kernels compile on first use; and which tests run alone."""

import fcntl

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def _wants_all_cores(item):
    return "parallel" in item.path.parts


def pytest_collection_modifyitems(items):
    """Tests that start ranks come last: two workers (scripts/test.sh) are then both busy until those begin."""
    items.sort(key=_wants_all_cores)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Of two workers, one waits while the other runs a test that starts ranks; the wait counts in no test's time."""
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if _wants_all_cores(item) else fcntl.LOCK_SH)
        return (yield)
