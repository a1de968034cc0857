"""Ranks that wait in an operation find out which others have not come, say so, and end the job in the end.

A thread of each process listens, and nothing is sent as long as operations end soon. Of those that have waited for
about a second, the lowest asks all others, by UDP and beside the transport. After a tenth of the limit it says which
have not come; at the limit, or once one of these has left for good, it says so and ends the job on all ranks.

The limit is 300 seconds, or what the variable OKTOPK_WATCHDOG or `set_limit` says. With 0 there is no watchdog.
"""

import atexit
import hashlib
import json
import logging
import os
import secrets
import select
import socket
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress

from .fields import MOST, Kind
from .places import LAST_WORDS, Member, Place, Post

log = logging.getLogger("oktopk.watchdog")

VARIABLE = "OKTOPK_WATCHDOG"
USUAL_LIMIT = 300.0  # seconds
SLOWEST_PACE = 1.0  # seconds from one look to the next
SILENCE = 2.0  # seconds without an answer, after which a rank does not answer
WARNED_AFTER = 0.1  # of the limit
SECONDS_TO_END = 10.0  # for the transport's own way, before this process just ends
SECONDS_TO_SPEAK = 0.3  # that ranks which fail at once wait for each other
LONGEST = 4096  # bytes of a message
RECORD = 512  # bytes in which a rank says where it listens
ERRORS_TOO = 11  # Linux' IP_RECVERR: to hear of it when nobody listens any more
UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds_of(word):
    """ "90", "90s" and "1.5m" are 90."""
    unit = UNITS.get(word[-1:])
    return float(word[:-1]) * unit if unit else float(word)


LIMIT = Kind("seconds, or minutes as 5m", seconds_of, lambda value: 0 <= value <= MOST, metavar="SECONDS")


class Watchdog:
    """Of one process, for all communicators that it is a member of."""

    def __init__(self, limit):
        self.limit, self._pid, self._ended = limit, os.getpid(), False
        self._posts, self._made = {}, defaultdict(int)
        self._waiting = {}  # name of a post -> since when this rank asks there
        self._asked = {}  # name of a post -> when a lower rank did
        self._heard, self._gone = set(), {}  # addresses of hosts; of processes that are no more, and since when
        self._failing, self._warned, self._news = {}, None, threading.Event()
        self._token, self._socket = secrets.token_hex(8), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("", 0))
        with suppress(OSError):
            self._socket.setsockopt(socket.IPPROTO_IP, ERRORS_TOO, 1)

    @property
    def pace(self):
        return min(SLOWEST_PACE, self.limit / 20) or SLOWEST_PACE

    @property
    def silence(self):
        return max(SILENCE, 3 * self.pace)

    def member(self, rank):
        """Where this process, which is rank `rank` of all, is to be found."""
        return Member(rank, socket.gethostname(), self._token, _own_address(), self._socket.getsockname()[1])

    def add(self, communicator, members):
        """Watch over a communicator; all its members do it, and in the same order as for others of the same ranks."""
        ranks = tuple(member.rank for member in members)
        self._made[ranks] += 1
        name = f"{hashlib.sha256(repr(ranks).encode()).hexdigest()[:8]}.{self._made[ranks]}"
        here = members[communicator.rank].host
        near = [each._replace(address="127.0.0.1") if each.host == here else each for each in members]
        self._posts[name] = Post(communicator, near)
        self._send_all(name, "place", self._posts[name].place())
        return self

    def run(self):
        """The thread."""
        before = time.monotonic()
        while not self._ended:
            self._listen(self.pace)
            now = time.monotonic()
            awake, before = min(now - before, 2 * self.pace), now
            for name, post in list(self._posts.items()):
                post.look(awake)
                if self.limit:
                    self._look_after(name, post, now)

    def leave(self):
        """This process ends; ranks that wait for it have no need to."""
        if self._ended or os.getpid() != self._pid:
            return
        self._ended = True
        if getattr(sys, "last_value", None) is None:  # or it has another cause, and says that
            for name, post in list(self._posts.items()):
                self._send_all(name, "place", post.look().place(left=True))
        self._socket.close()

    # Messages.

    def _send_all(self, name, kind, content):
        for rank, _ in self._posts[name].others():
            self._send(name, rank, kind, content)

    def _send(self, name, rank, kind, content):
        post = self._posts[name]
        member, message = post.members[rank], json.dumps([kind, name, post.mine, content])
        with suppress(OSError):
            self._socket.sendto((member.token + message).encode(), (member.address, member.port))

    def _listen(self, seconds):
        until = time.monotonic() + seconds
        with suppress(OSError, ValueError):  # it was closed
            while select.select([self._socket], [], [], max(0.0, until - time.monotonic()))[0]:
                try:
                    message, address = self._socket.recvfrom(LONGEST, socket.MSG_DONTWAIT)
                except ConnectionError:
                    self._note_gone()
                    continue
                if secrets.compare_digest(message[: len(self._token)], self._token.encode()):
                    self._heard.add(address[0])
                    with suppress(ValueError, TypeError, LookupError, RecursionError):
                        self._hear(*json.loads(message[len(self._token) :]))

    def _note_gone(self):
        with suppress(OSError, AttributeError):
            while True:
                address = self._socket.recvmsg(LONGEST, LONGEST, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)[3]
                self._gone.setdefault(address, time.monotonic())

    def _hear(self, kind, name, rank, content):
        post, now = self._posts[name], time.monotonic()
        if kind == "said":
            log.debug("%s", content)
        elif kind == "failing":
            self._failing.setdefault(post.members[rank].rank, now)
        else:
            post.note(rank, Place(*content), now)
        self._news.set()
        if kind == "ask":
            if rank < post.mine:
                self._asked[name] = now
            self._send(name, rank, "place", post.look().place(self._elsewhere(post)))

    def _elsewhere(self, post):
        return next((each.operation() for each in self._posts.values() if each is not post and each.seconds), "")

    # Judgement.

    def _look_after(self, name, post, now):
        if post.seconds < self.pace or now - self._asked.get(name, -SILENCE) < 3 * self.pace:
            self._waiting.pop(name, None)
            return
        if name not in self._waiting:
            self._waiting[name] = now
            post.places.clear()
        self._send_all(name, "ask", post.place())
        departed, longest = post.departed(self._gone, now), post.longest()
        if departed:
            self._end(name, post.departure(departed))
        elif longest >= self.limit:
            said = post.absence(self._silent(name, now), longest)
            self._end(name, f"{said}; the job is ended, for --watchdog or {VARIABLE} allows no more")
        elif longest >= max(WARNED_AFTER * self.limit, self.silence + self.pace) and not post.is_warned():
            self._warn(name, longest, now)

    def _silent(self, name, now, silence=None):
        """Ranks that have not answered for a while, and how a sentence has it."""
        post, found = self._posts[name], {}
        for rank, member in post.others():
            heard = max(self._waiting[name], post.places.get(rank, (None, 0.0))[1])
            if now - heard > (silence or self.silence):
                known = member.address in self._heard
                found[rank] = "{they} {do} not answer" if known else "nothing was ever heard of {their} watchdog"
        return found

    def _warn(self, name, seconds, now):
        """Once for an operation, and for others again once the limit has passed."""
        post = self._posts[name]
        post.warned = post.at.number
        if self._warned is None or now - self._warned > self.limit:
            self._warned = now
            self._say(name, f"warning: {post.absence(self._silent(name, now), seconds)}")

    def _say(self, name, sentence):
        """Aloud here; for the log, on the first rank."""
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()
        if self._posts[name].mine == 0:
            log.debug("%s", sentence)
        else:
            self._send(name, 0, "said", sentence)

    def _end(self, name, sentence):
        post = self._posts[name]
        communicator = post.communicator()
        others = any(time.monotonic() - heard < SECONDS_TO_END for heard in self._failing.values())
        if others or communicator is None or communicator.at is not post.at:
            return
        self._ended = True
        last_resort = threading.Timer(SECONDS_TO_END, os._exit, (1,))
        last_resort.daemon = True
        last_resort.start()
        self._send_all(name, "failing", None)
        self._say(name, f"error: {sentence}")
        communicator.tell_failure(sentence)
        communicator.abort(1)

    # For the main thread, when something has failed there.

    def account(self, communicator):
        """Why an operation fails here: ranks that have left, are gone or do not answer; None if all are there."""
        name, post = self._post_of(communicator)
        self._waiting[name] = asked = time.monotonic()
        post.look().places.clear()
        self._send_all(name, "ask", post.place())
        while time.monotonic() < asked + LAST_WORDS and len(post.places) < len(post.others()):
            self._news.wait(self.pace)
            self._news.clear()
            departed = post.departed(self._gone, time.monotonic(), patience=0)
            if departed:
                return post.departure(departed)
        silent = self._silent(name, time.monotonic(), silence=LAST_WORDS / 2)
        return post.failure(silent) if silent else None

    def may_speak(self, communicator):
        """Whether this rank is the first that fails, so that what it says is said once."""
        name, post = self._post_of(communicator)
        mine, begun = post.members[post.mine].rank, time.monotonic()
        self._send_all(name, "failing", None)
        threading.Event().wait(SECONDS_TO_SPEAK)
        return not any(heard < begun or rank < mine for rank, heard in self._failing.items())

    def _post_of(self, communicator):
        return next((name, post) for name, post in self._posts.items() if post.communicator() is communicator)


_watchdog, _limit = None, None


def set_limit(seconds):
    """How long ranks may wait for others in an operation; None leaves it as it is, 0 turns the watchdog off."""
    global _limit
    if seconds is None:
        return
    LIMIT.check("the watchdog's limit", seconds)
    _limit = seconds
    if _watchdog is not None:
        _watchdog.limit = seconds


def limit():
    if _limit is not None:
        return _limit
    try:
        return LIMIT.read(os.environ.get(VARIABLE) or str(USUAL_LIMIT))
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None


def record(rank):
    """Bytes, as many on all ranks, that say where the watchdog of this one is to be found."""
    global _watchdog
    if _watchdog is None and limit():
        _watchdog = Watchdog(limit())
        threading.Thread(target=_watchdog.run, name="oktopk watchdog", daemon=True).start()
        atexit.register(_watchdog.leave)
    member = _watchdog.member(rank) if _watchdog else Member(rank, socket.gethostname())
    return json.dumps(member).encode().ljust(RECORD)


def watch(communicator, records):
    """The watchdog of this communicator, given the records of its ranks; None where one of them has none."""
    members = [Member(*json.loads(each)) for each in records]
    return _watchdog.add(communicator, members) if all(member.port for member in members) else None


def _own_address():
    """At which other hosts can reach this one."""
    with suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
        if not address.startswith("127."):
            return address
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ.get("MASTER_ADDR") or "10.255.255.255", 1))  # which sends nothing
        return probe.getsockname()[0]
    return "127.0.0.1"
