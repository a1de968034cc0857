"""What communicators are made over, which is scarce: MPI's communicators and torch's groups.

Ranks give one back together, when its communicator is closed. Where it was only dropped, each rank forgets it in its
own time, and others may still use theirs: so ranks that make another one compare, now and then, what they have dropped.
"""

import weakref
from collections import defaultdict

EVERY = 32  # that are made, ranks compare


class Lent:
    """Handles by the ranks that they are for, and by number. All ranks of one call everything but `note` alike."""

    def __init__(self):
        self._made, self._lent = defaultdict(int), defaultdict(dict)

    def note(self, members, handle, communicator):
        """The communicator was made over the handle, and lives as long as this rank uses it."""
        self._made[members] += 1
        self._lent[members][self._made[members]] = handle, weakref.ref(communicator)

    def forget(self, members, handle):
        """It was given back."""
        lent = self._lent[members]
        for number in [number for number, (each, _) in lent.items() if each is handle]:
            del lent[number]

    def unused(self, members, everyones):
        """Handles that no rank needs any more; they are forgotten. `everyones` gives each rank's value on all."""
        if self._made[members] % EVERY or not self._made[members]:
            return []
        lent = self._lent[members]
        dropped = sorted(number for number, (_, communicator) in lent.items() if communicator() is None)
        by_all = set(dropped).intersection(*everyones(dropped))
        return [lent.pop(number)[0] for number in sorted(by_all)]
