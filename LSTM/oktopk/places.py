"""Where ranks are in a communicator, and the sentences that say which of them others wait for."""

import weakref
from collections import defaultdict
from typing import NamedTuple

BETWEEN_TWO = ("send", "receive")  # operations of two ranks alone, which have no number of their own
LAST_WORDS = 2.0  # seconds from a rank's leaving to the end of the job: it may be about to say why itself
MOST_NAMED = 8  # ranks in a sentence


class At(NamedTuple):
    """In an operation, or behind the last one. Noted anew with each, so that it has identity.

    `number` counts the operations that all ranks take part in.
    """

    number: int = 0
    operation: str = ""
    partner: int | None = None


class Member(NamedTuple):
    """A rank of a communicator: its number among all ranks, where its watchdog listens, and its process there."""

    rank: int
    host: str
    token: str = ""
    address: str = ""
    port: int = 0
    process: int = 0
    start: int = 0


class Place(NamedTuple):
    """What a rank says of itself: how long it has waited in what, and what it waits in elsewhere."""

    number: int
    operation: str = ""
    seconds: float = 0.0
    elsewhere: str = ""
    left: bool = False
    warned: int = 0

    def is_behind(self, at):
        """Whether somebody who is at `at` may be waiting for this rank."""
        return self.number < at.number or (at.operation in BETWEEN_TWO and not self.operation)

    def whereabouts(self):
        if self.operation:
            return f"{self.operation} is where {{they}} {{are}}"
        if self.elsewhere:
            return f"{{they}} {{wait}} in {self.elsewhere} of another communicator"
        after = f"after {self.number}" if self.number else "before the first"
        return f"{{they}} {{were}} last seen between operations, {after}"


class Post:
    """A communicator as one of its ranks sees it; `members` are in the order of ranks."""

    def __init__(self, name, communicator, members):
        self.name, self.communicator, self.members = name, weakref.ref(communicator), members
        self.mine, self.at = communicator.rank, communicator.at
        self.seconds, self.warned = 0.0, 0
        self.waiting = self.asked = None  # since when this rank asks the others; when a lower one last did
        self.places, self.left = {}, {}  # of other ranks, and when they were heard of

    def look(self, seconds=0.0):
        """Where this rank is now; so many seconds have passed since the last look in which this process was awake."""
        communicator = self.communicator()
        at = At(self.at.number) if communicator is None else communicator.at
        if at is not self.at or not at.operation:
            self.seconds = 0.0
        else:
            self.seconds += seconds
        self.at = at
        return self

    def place(self, elsewhere="", left=False):
        return Place(self.at.number, self.operation(), self.seconds, elsewhere, left, self.warned)

    def operation(self):
        """What this rank is in, as sentences have it."""
        number, operation, partner = self.at
        if partner is not None:
            return f"{operation} {'to' if operation == 'send' else 'from'} rank {self.members[partner].rank}"
        return f"{operation} {number}" if operation else ""

    def others(self):
        return [(rank, member) for rank, member in enumerate(self.members) if rank != self.mine]

    def note(self, rank, place, now):
        if place.left:
            self.left.setdefault(rank, (place, now))
        else:
            self.places[rank] = (place, now)

    def longest(self):
        """How long the first of those that wait in this operation has waited."""
        waiting = (place for place, _ in self.places.values() if place.operation and place.number == self.at.number)
        return max([self.seconds, *(place.seconds for place in waiting)])

    def is_warned(self):
        return self.at.number in (self.warned, *(place.warned for place, _ in self.places.values()))

    def departed(self, gone, now, patience=LAST_WORDS):
        """Ranks that will not come any more, and have been away for a moment; `gone` are addresses, since when."""
        said = {
            rank: "left"
            for rank, (place, heard) in self.left.items()
            if place.is_behind(self.at) and now - heard >= patience
        }
        unsaid = {
            rank: "gone"
            for rank, member in self.others()
            if (member.address, member.port) in gone
            and now - gone[member.address, member.port] >= patience
            and rank not in self.left
            and (rank not in self.places or self.places[rank][0].is_behind(self.at))
        }
        return said | unsaid

    def missing(self, silent):
        """What is known of each rank that has not come: a phrase by rank. `silent` are those that do not answer."""
        found = {}
        for rank, _ in self.others():
            place = (self.left.get(rank) or self.places.get(rank) or (None,))[0]
            if rank not in self.left and rank in silent:
                found[rank] = silent[rank]
            elif place is not None and place.is_behind(self.at):
                found[rank] = "{they} {have} left" if place.left else place.whereabouts()
        return found

    # Sentences.

    def departure(self, departed):
        """Why the others wait in vain: those that said that they leave, or else those that are gone without a word."""
        left = [rank for rank, how in departed.items() if how == "left"]
        if left:
            why = "{ranks} {have} left ({their} program ended) while others wait in {operation}: "
            return self._phrase(left, why + "give all ranks the same number of steps")
        why = "{ranks} {are} gone ({their} process ended without a word) while others wait in {operation}"
        return self._phrase(departed, why)

    def absence(self, silent, seconds):
        """Which ranks have not come, and what is known of them."""
        reasons = defaultdict(list)
        for rank, reason in self.missing(silent).items():
            reasons[reason].append(rank)
        if not reasons:
            return f"{self.operation()} has lasted {seconds:.0f} s, and all ranks are in it"
        first = f"{{ranks}} {{have}} not come to {{operation}} for {seconds:.0f} s"
        forms = [first] + ["nor {have} {ranks}"] * (len(reasons) - 1)
        pairs = zip(forms, reasons.items(), strict=True)
        return ", ".join(self._phrase(ranks, f"{form} ({reason})") for form, (reason, ranks) in pairs)

    def failure(self, silent):
        return self._phrase(silent, "{operation} has failed, and {ranks} {do} not answer")

    def _phrase(self, ranks, text):
        one = len(ranks) == 1
        words = {"have": "has", "are": "is", "were": "was", "do": "does", "wait": "waits", "they": "it", "their": "its"}
        chosen = {many: single if one else many for many, single in words.items()}
        return text.format(ranks=self._names(ranks), operation=self.operation(), **chosen)

    def _names(self, ranks):
        """rank 1; ranks 0 and 2; with hosts where there are several."""
        several = len({member.host for member in self.members}) > 1
        members = [self.members[rank] for rank in sorted(ranks)]
        names = [f"{member.rank} on {member.host}" if several else str(member.rank) for member in members]
        if len(names) > MOST_NAMED:
            names[MOST_NAMED:] = [f"{len(names) - MOST_NAMED} others"]
        listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        return f"rank{'s' if len(ranks) > 1 else ''} {listed}"
