"""Who waits for whom: the sentences, and the judgement of watchdogs that talk to each other without any ranks."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest

from oktopk import gate, watchdog
from oktopk.gate import Gate
from oktopk.places import At, Member, Place, Post
from oktopk.watchdog import Watchdog

SECONDS = 20  # until something that is waited for counts as lost


class Waiting:
    """What a watchdog sees of a communicator, and what it does to it."""

    def __init__(self, rank, number=0, operation="", partner=None):
        self.rank, self.at = rank, At(number, operation, partner)
        self.told, self.aborted = [], threading.Event()

    def tell_failure(self, cause):
        self.told.append(cause)

    def abort(self, status):
        self.status = status
        self.aborted.set()


def members(*hosts):
    return [Member(rank, host, "token", "127.0.0.1", 1000 + rank) for rank, host in enumerate(hosts)]


def post_of(communicator, *hosts):
    return Post(("name", 1), communicator, members(*hosts)).look()


HERE = ("here",) * 4
BEHIND = Place(6)


def absence(places, silent=None, left=None, waiting=("allreduce",), hosts=HERE):
    communicator = Waiting(0, 7, *waiting)
    post = post_of(communicator, *hosts)
    for rank, place in places.items():
        post.note(rank, place, 0.0)
    for rank, place in (left or {}).items():
        post.note(rank, place._replace(left=True), 0.0)
    return post.absence(silent or {}, 30)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"places": {1: BEHIND, 2: Place(7, "allreduce", 3.0), 3: Place(7, "allreduce", 9.0)}},
            "rank 1 has not come to allreduce 7 for 30 s (it was last seen between operations, after 6)",
        ),
        (
            {"places": {1: BEHIND, 2: BEHIND, 3: Place(6, "bcast 6", 1.0)}},
            "ranks 1 and 2 have not come to allreduce 7 for 30 s (they were last seen between operations, after 6), "
            "nor has rank 3 (bcast 6 is where it is)",
        ),
        (
            {"places": {2: Place(0), 3: Place(6, elsewhere="allgatherv 3")}, "silent": {1: "{they} {do} not answer"}},
            "rank 1 has not come to allreduce 7 for 30 s (it does not answer), nor has rank 2 (it was last seen "
            "between operations, before the first), nor has rank 3 (it waits in allgatherv 3 of another communicator)",
        ),
        (
            {"places": {}, "left": {1: BEHIND, 3: BEHIND}},
            "ranks 1 and 3 have not come to allreduce 7 for 30 s (they have left)",
        ),
        (
            {"places": {1: BEHIND, 2: BEHIND}, "hosts": ("a", "b", "c", "a")},
            "ranks 1 on b and 2 on c have not come to allreduce 7 for 30 s (they were last seen between operations, "
            "after 6)",
        ),
        (
            {"places": dict.fromkeys(range(1, 12), BEHIND), "hosts": ("here",) * 12},
            "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 others have not come to allreduce 7 for 30 s (they were last seen "
            "between operations, after 6)",
        ),
        (
            {"places": {2: Place(7)}, "waiting": ("receive", 2)},
            "rank 2 has not come to receive from rank 2 for 30 s (it was last seen between operations, after 7)",
        ),
        ({"places": {1: Place(7, "allreduce 7", 2.0)}}, "allreduce 7 has lasted 30 s, and all ranks are in it"),
    ],
)
def test_ranks_that_have_not_come_are_named_with_what_is_known_of_them(arguments, sentence):
    assert absence(**arguments) == sentence


def test_a_rank_that_waits_longest_speaks_for_all_of_its_operation():
    communicator = Waiting(0, 7, "allreduce")
    post = post_of(communicator, *HERE).look(5.0)
    post.note(1, Place(7, "allreduce 7", 9.0), 0.0)
    post.note(2, Place(8, "allreduce 8", 99.0), 0.0)
    assert post.longest() == 9.0


def test_time_in_which_this_process_was_stopped_does_not_count():
    """A look counts what it is told to, and a new operation begins anew."""
    communicator = Waiting(0, 7, "allreduce")
    post = post_of(communicator, *HERE).look(1.0).look(1.0)
    assert post.seconds == 2.0
    communicator.at = At(8, "allreduce")
    assert post.look(1.0).seconds == 0.0


def test_who_has_left_behind_an_operation_will_not_come():
    communicator = Waiting(0, 7, "allreduce")
    post = post_of(communicator, *HERE)
    post.note(1, Place(6, left=True), 10.0)
    post.note(2, Place(7, left=True), 10.0)  # it has been in it before
    assert post.departed({}, 11.0) == {}, "it may be about to say why"
    assert post.departed({}, 12.0) == {1: "left"}
    gone = {("127.0.0.1", 1003): 10.0}
    assert post.departed(gone, 12.0) == {1: "left", 3: "gone"}
    said = (
        "rank 1 has left (its program ended) while others wait in allreduce 7: give all ranks the same number of steps"
    )
    assert post.departure(post.departed(gone, 12.0)) == said
    said = "rank 3 is gone (its process ended without a word) while others wait in allreduce 7"
    assert post.departure({3: "gone"}) == said


# ---- watchdogs


@pytest.fixture
def watched(monkeypatch):
    """Watchdogs of so many ranks, each with its thread, and what they watch."""
    monkeypatch.setattr(watchdog.os, "_exit", lambda status: None)  # the last resort: here, an abort returns
    monkeypatch.setattr(Watchdog, "_kill_silent", lambda dog, post: None)  # here, all ranks are this process
    with ExitStack() as stack:

        def make(*communicators, limit=1.0):
            dogs = [Watchdog(limit) for _ in communicators]
            places = [dog.member(rank) for rank, dog in enumerate(dogs)]
            for dog, communicator in zip(dogs, communicators, strict=True):
                dog.add(communicator, places)
                dog.start()
                stack.callback(dog.leave)
            return dogs

        yield make


def said(capsys, kind):
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith(kind)]


def test_the_first_of_those_that_wait_says_who_has_not_come_and_ends_the_job_once(watched, capsys, caplog):
    ranks = [Waiting(0, 3, "allreduce"), Waiting(1, 3, "allreduce"), Waiting(2, 2)]
    caplog.set_level("DEBUG", "oktopk.watchdog")
    watched(*ranks)
    assert ranks[0].aborted.wait(SECONDS)
    words = "rank 2 has not come to allreduce 3 for 1 s (it was last seen between operations, after 2)"
    assert said(capsys, "error") == [f"error: {words}; {gate.ALLOWED}"]
    assert ranks[0].status == 1
    assert ranks[0].told == [f"{words}; {gate.ALLOWED}"]
    assert not ranks[1].aborted.is_set()
    assert f"error: {words}" in caplog.text


def test_the_first_word_comes_before_the_end_and_a_rank_that_comes_late_is_let_in(watched, capsys):
    ranks = [Waiting(0, 3, "allreduce"), Waiting(1, 2)]
    dogs = watched(*ranks, limit=30.0)
    until, warnings = time.monotonic() + SECONDS, []
    while not warnings and time.monotonic() < until:
        threading.Event().wait(0.1)
        warnings = said(capsys, "warning")
    assert len(warnings) == 1
    assert warnings[0].startswith("warning: rank 1 has not come to allreduce 3 for ")
    ranks[0].at = ranks[1].at = At(3)
    dogs[1].limit = dogs[0].limit = 0.5
    threading.Event().wait(1.5)
    assert said(capsys, "error") == []


def test_a_rank_that_has_gone_is_told_from_a_wall_that_lets_nobody_through(watched, capsys):
    """Nobody listens at either's port; one had answered before."""
    ranks = [Waiting(0), Waiting(1)]
    dogs = watched(*ranks, limit=60.0)
    until = time.monotonic() + SECONDS
    while not dogs[0]._reached and time.monotonic() < until:
        threading.Event().wait(0.05)
    port = dogs[1].member(1).port
    dogs[1]._ended = True
    dogs[1]._socket.close()
    wall, lonely = Waiting(0, 1, "allreduce"), Watchdog(60.0)
    lonely.add(wall, [lonely.member(0), Member(1, "elsewhere", "", "127.0.0.1", port)])
    lonely.start()
    ranks[0].at = At(1, "allreduce")
    assert ranks[0].aborted.wait(SECONDS)
    assert "rank 1 is gone (its process ended without a word) while others wait in allreduce 1" in ranks[0].told[0]
    assert not wall.aborted.is_set()
    assert lonely._gone
    lonely.leave()


def test_of_ranks_that_fail_at_once_one_may_speak(watched):
    for _ in range(3):
        ranks = [Waiting(rank) for rank in range(4)]
        dogs = watched(*ranks, limit=60.0)
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda pair: pair[0].may_speak(pair[1]), zip(dogs, ranks, strict=True)))
        assert answers.count(True) == 1, answers
        assert not dogs[3].may_speak(ranks[3]), "the first is about to end the job"


@pytest.mark.parametrize(("word", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("0", 0)])
def test_a_limit_is_read_with_its_unit(word, seconds):
    assert watchdog.LIMIT.read(word) == seconds


@pytest.mark.parametrize("word", ["-1", "nan", "inf", "5 minutes", "", "m", "1e10"])
def test_what_is_no_limit_is_refused(word, monkeypatch):
    with pytest.raises(ValueError, match="expected"):
        watchdog.LIMIT.read(word)
    monkeypatch.setenv(watchdog.VARIABLE, word or " ")
    monkeypatch.setattr(watchdog, "_limit", None)
    with pytest.raises(ValueError, match="OKTOPK_WATCHDOG: expected seconds"):
        watchdog.limit()


# ---- the gate


def a_gate(rank=0, size=3, limit=1.0):
    return Gate(limit, f"the start of test {os.getpid()}", rank, size, os.getppid())


def test_a_gate_names_who_is_not_there(monkeypatch):
    monkeypatch.setattr(gate, "local_size", lambda: 3)
    first, third = a_gate(0), a_gate(2)
    with gate.socket.socket(gate.socket.AF_UNIX, gate.socket.SOCK_DGRAM) as presence:
        presence.bind(third.address(2))
        assert first.here() == [0, 2]
    assert first.here() == [0]
    assert first.absence([0, 2], 30) == f"rank 1 has not come to {first.name} for 30 s"
    assert first.absence([0], 30) == f"ranks 1 and 2 have not come to {first.name} for 30 s"
    assert first.loss([0, 2]) == f"rank 1 has ended before {first.name}, where others wait"
    monkeypatch.setattr(gate, "local_size", lambda: 2)
    assert first.absence([0, 2], 30) == f"{first.name} has waited 30 s for others; of this host, ranks 0 and 2 came"
    assert first.loss([0, 2]) == f"a rank of this host has ended before {first.name}, where others wait"


def test_a_gate_ends_a_rank_that_waits_too_long_and_no_other():
    """The rank is a process that would wait for ever, in a launcher that has started two."""
    program = (
        "import sys, time; from oktopk.starting import waited_for; from threading import Event\n"
        "with waited_for('the start of nothing'): Event().wait(float(sys.argv[1]))"
    )
    environment = {**os.environ, "PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "OKTOPK_WATCHDOG": "1.5"}
    environment["PYTHONPATH"] = os.path.dirname(os.path.dirname(watchdog.__file__))
    start = partial(subprocess.run, env=environment, capture_output=True, text=True, timeout=SECONDS)
    done = start([sys.executable, "-c", program, "0.1"])
    assert (done.returncode, done.stderr) == (0, "")
    done = start([sys.executable, "-c", program, "1000"])
    assert done.returncode == -9
    assert done.stderr == f"error: rank 1 has not come to the start of nothing for 2 s; {gate.ALLOWED}\n"
