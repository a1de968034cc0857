"""For all tests: Hypothesis without deadlines, for kernels compile on first use; Ctrl-C; and which tests run alone."""

import fcntl
import signal

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # by a shell that started this in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Many small messages between more ranks than cores, or a rate that is looked at: beside other tests they take for ever.
ALONE = ("test_laws.py", "test_reducer_under_mpi.py", "test_lab.py")


def _runs_alone(item):
    return item.path.name in ALONE


def pytest_collection_modifyitems(items):
    """Those that run alone come last: several workers (scripts/test.sh) are then all busy until they begin."""
    items.sort(key=_runs_alone)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Other workers wait while a test runs alone; the wait counts in no test's time."""
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if _runs_alone(item) else fcntl.LOCK_SH)
        return (yield)
