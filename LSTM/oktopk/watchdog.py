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
import signal
import socket
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress

from .fields import MOST, Kind
from .gate import ALLOWED, SECONDS_TO_BE_HEARD, WARNED_AFTER, process_of
from .places import LAST_WORDS, Member, Place, Post

log = logging.getLogger("oktopk.watchdog")

VARIABLE = "OKTOPK_WATCHDOG"
USUAL_LIMIT = 300.0  # seconds
SLOWEST_PACE = 1.0  # seconds from one look to the next
SILENCE = 2.0  # seconds without an answer, after which a rank does not answer
SECONDS_TO_END = 10.0  # for the transport's own way, before this process just ends
SECONDS_TO_LEAVE = 2.0  # for the thread, when the process ends
SECONDS_TO_SPEAK = 0.3  # that ranks which fail at once wait for each other
LONGEST = 4096  # bytes of a message
LONGEST_SENTENCE = 3000
MOST_EARLY = MOST_PAST = 100  # communicators that others were quicker to make, or that are no more
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
        self._posts, self._members = {}, {}
        self._made = defaultdict(int)  # posts of the same ranks
        self._early = defaultdict(list)  # what came for posts that are not here yet
        self._heard, self._reached = set(), set()  # addresses of hosts; of processes that have answered
        self._gone = {}  # addresses where nobody listens, and since when
        self._failing, self._warned, self._news = {}, None, threading.Event()
        self._token, self._socket = secrets.token_hex(8), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("", 0))
        with suppress(OSError):
            self._socket.setsockopt(socket.IPPROTO_IP, ERRORS_TOO, 1)
        self._thread = threading.Thread(target=self._run, name="oktopk watchdog", daemon=True)

    def start(self):
        self._thread.start()
        return self

    @property
    def pace(self):
        return min(SLOWEST_PACE, self.limit / 20) or SLOWEST_PACE

    @property
    def silence(self):
        return max(SILENCE, 3 * self.pace)

    def member(self, rank):
        """Where this process, which is rank `rank` of all, is to be found."""
        place = socket.gethostname(), self._token, _own_address(), self._socket.getsockname()[1]
        return Member(rank, *place, self._pid, _start_of(self._pid))

    def add(self, communicator, members):
        """Watch over a communicator; all its members do it, and in the same order as for others of the same ranks."""
        ranks = tuple(member.rank for member in members)
        if ranks not in self._members:
            here = members[communicator.rank].host
            near = [each._replace(address="127.0.0.1") if each.host == here else each for each in members]
            self._members[ranks] = near
        self._forget_the_past()
        digest = hashlib.sha256(repr(ranks).encode()).hexdigest()[:8]
        self._made[digest] += 1
        post = Post((digest, self._made[digest]), communicator, self._members[ranks])
        self._posts[post.name] = post
        for message in self._early.pop(post.name, ()):
            self._hear(*message)
        for rank, member in post.others():
            if (member.address, member.port) not in self._reached:
                self._send(post, rank, "ask", post.place())
        return self

    def _forget_the_past(self):
        """Of communicators that are no more here, others may still ask: not of old ones."""
        past = [name for name, post in self._posts.items() if post.communicator() is None]
        for name in past[:-MOST_PAST]:
            del self._posts[name]

    def _run(self):
        """The thread."""
        before = time.monotonic()
        while not self._ended:
            self._listen(self.pace)
            now = time.monotonic()
            awake, before = min(now - before, 2 * self.pace), now
            for post in list(self._posts.values()):
                post.look(awake)
                if self.limit:
                    self._look_after(post, now)

    def leave(self):
        """This process ends; ranks that wait for it have no need to."""
        if self._ended or os.getpid() != self._pid:
            return
        self._ended = True
        if getattr(sys, "last_value", None) is None:  # or it has another cause, and says that
            for post in list(self._posts.values()):
                self._send_all(post, "place", post.look().place(left=True))
        with suppress(OSError):
            self._socket.sendto(b"", ("127.0.0.1", self._socket.getsockname()[1]))  # which wakes the thread
        self._thread.join(SECONDS_TO_LEAVE)
        self._socket.close()

    # Messages.

    def _send_all(self, post, kind, content):
        for rank, _ in post.others():
            self._send(post, rank, kind, content)

    def _send(self, post, rank, kind, content):
        member, message = post.members[rank], json.dumps([kind, post.name, post.mine, content])
        with suppress(OSError):
            try:
                self._socket.sendto((member.token + message).encode(), (member.address, member.port))
            except ConnectionError:  # of an earlier message; this one was not sent
                self._note_gone()
                self._socket.sendto((member.token + message).encode(), (member.address, member.port))

    def _listen(self, seconds):
        until = time.monotonic() + seconds
        with suppress(OSError, ValueError):  # it was closed
            while select.select([self._socket], [], [], max(0.0, until - time.monotonic()))[0] and not self._ended:
                try:
                    message, address = self._socket.recvfrom(LONGEST, socket.MSG_DONTWAIT)
                except (ConnectionError, BlockingIOError):
                    self._note_gone()
                    continue
                if secrets.compare_digest(message[: len(self._token)], self._token.encode()):
                    self._heard.add(address[0])
                    with suppress(ValueError, TypeError, LookupError, RecursionError):
                        kind, name, rank, content = json.loads(message[len(self._token) :])
                        self._hear(kind, tuple(name), rank, content)

    def _note_gone(self):
        """Somebody has answered that nobody listens where a message went."""
        with suppress(OSError, AttributeError):
            while True:
                address = self._socket.recvmsg(LONGEST, LONGEST, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)[3]
                self._gone.setdefault(address, time.monotonic())

    def _hear(self, kind, name, rank, content):
        if name not in self._posts:
            digest, number = name
            if number > self._made[digest] and len(self._early) < MOST_EARLY:
                self._early[name].append((kind, name, rank, content))
            return
        post, now = self._posts[name], time.monotonic()
        if kind == "said":
            log.debug("%s", content)
        elif kind == "failing":
            self._failing[post.members[rank].rank] = now
        else:
            post.note(rank, Place(*content), now)
        if kind == "place":
            self._reached.add((post.members[rank].address, post.members[rank].port))
        self._news.set()
        if kind == "ask":
            if rank < post.mine:
                post.asked = now
            self._send(post, rank, "place", post.look().place(self._elsewhere(post)))

    def _elsewhere(self, post):
        others = (each for each in list(self._posts.values()) if each is not post)
        return next((each.operation() for each in others if each.seconds), "")

    # Judgement.

    def _look_after(self, post, now):
        if post.seconds < self.pace or (post.asked is not None and now - post.asked < 3 * self.pace):
            post.waiting = None
            return
        if post.waiting is None:
            post.waiting = now
            post.places.clear()
        self._send_all(post, "ask", post.place())
        departed, longest = post.departed(self._gone_for_sure(), now), post.longest()
        if departed:
            self._end(post, post.departure(departed))
        elif longest >= self.limit:
            self._end(post, f"{post.absence(self._silent(post, post.waiting), longest)}; {ALLOWED}")
        elif longest >= max(WARNED_AFTER * self.limit, self.silence + self.pace) and not post.is_warned():
            self._warn(post, longest, now)

    def _gone_for_sure(self):
        """A fire wall may say that nobody listens, too: not where somebody has answered before."""
        return {address: since for address, since in self._gone.copy().items() if address in self._reached}

    def _silent(self, post, since, silence=None):
        """Ranks that have not answered for a while, asked since then, and how a sentence has it."""
        now, found = time.monotonic(), {}
        for rank, member in post.others():
            heard = max(since, post.places.get(rank, (None, 0.0))[1])
            if now - heard > (silence or self.silence):
                known = member.address in self._heard
                found[rank] = "{they} {do} not answer" if known else "nothing was ever heard of {their} watchdog"
        return found

    def _warn(self, post, seconds, now):
        """Once for an operation, and for others again once the limit has passed."""
        post.warned = post.at.number
        if self._warned is None or now - self._warned > self.limit:
            self._warned = now
            self._say(post, f"warning: {post.absence(self._silent(post, post.waiting), seconds)}")

    def _say(self, post, sentence):
        """Aloud here, and to the first rank, whose log is that of the run."""
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()
        self._tell_first(post, sentence)

    def _tell_first(self, post, sentence):
        if post.mine == 0:
            log.debug("%s", sentence)
        else:
            self._send(post, 0, "said", sentence[:LONGEST_SENTENCE])

    def _failing_now(self):
        now = time.monotonic()
        return {rank for rank, heard in self._failing.copy().items() if now - heard < SECONDS_TO_END}

    def _end(self, post, sentence):
        communicator = post.communicator()
        if communicator is None or communicator.at is not post.at or not self._fails_first(post, self._listen):
            return
        self._ended = True
        last_resort = threading.Timer(SECONDS_TO_END, os._exit, (1,))
        last_resort.daemon = True
        last_resort.start()
        self._say(post, f"error: {sentence}")
        communicator.tell_failure(sentence)
        threading.Event().wait(SECONDS_TO_BE_HEARD)
        self._kill_silent(post)
        communicator.abort(1)

    def _kill_silent(self, post):
        """Ranks of this host that do not answer: what launchers send first reaches no process that was stopped."""
        here = post.members[post.mine].host
        for member in (post.members[rank] for rank in self._silent(post, post.waiting) if rank not in post.left):
            if member.host == here and member.start == _start_of(member.process) != 0:
                with suppress(OSError):
                    os.kill(member.process, signal.SIGKILL)

    # For the main thread, when something has failed there.

    def account(self, communicator):
        """Why an operation fails here: ranks that have left, are gone or do not answer; None if all are there."""
        post = self._post_of(communicator).look()
        asked = time.monotonic()
        post.places.clear()
        self._send_all(post, "ask", post.place())
        while time.monotonic() < asked + LAST_WORDS and len(post.places) < len(post.others()):
            self._news.wait(self.pace)
            self._news.clear()
            departed = post.departed(self._gone.copy(), time.monotonic(), patience=0)
            if departed:
                return post.departure(departed)
        silent = self._silent(post, asked, silence=LAST_WORDS / 2)
        return post.failure(silent) if silent else None

    def tell_first(self, communicator, cause):
        """What fails here, for the log of the run; what the first rank itself meets is there already."""
        post = self._post_of(communicator)
        if post.mine and not self._ended:
            self._tell_first(post, f"rank {post.members[post.mine].rank}: {cause}")

    def may_speak(self, communicator):
        """Whether this rank is to say why it fails, for all that meet the same."""
        return self._fails_first(self._post_of(communicator), threading.Event().wait)

    def _fails_first(self, post, wait):
        """Whether it is the first that fails, or the lowest of those that do at once."""
        if self._failing_now():
            return False
        self._send_all(post, "failing", None)
        wait(SECONDS_TO_SPEAK)
        return not any(rank < post.members[post.mine].rank for rank in self._failing_now())

    def _post_of(self, communicator):
        return next(post for post in list(self._posts.values()) if post.communicator() is communicator)


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
        _watchdog = Watchdog(limit()).start()
        atexit.register(_watchdog.leave)
    member = _watchdog.member(rank) if _watchdog else Member(rank, socket.gethostname())
    return json.dumps(member).encode().ljust(RECORD)


def watch(communicator, records):
    """The watchdog of this communicator, given the records of its ranks; None where one of them has none."""
    members = [Member(*json.loads(each)) for each in records]
    return _watchdog.add(communicator, members) if all(member.port for member in members) else None


def _start_of(process):
    with suppress(OSError, ValueError, LookupError):
        return process_of(process).start
    return 0


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
