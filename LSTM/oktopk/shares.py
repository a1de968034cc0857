"""A rank's share of a reducer's state: of what, when and whose, and what becomes of it on another number of ranks."""

PLACE = "rank_and_size"  # by which a share is known among other dictionaries


def insist_on_the_place(share, rank, size):
    """A residual that is loaded twice, or not at all, trains something else in silence."""
    place = share.get(PLACE)
    if place is not None and tuple(place) != (rank, size):
        raise ValueError(
            f"the state is that of rank {place[0]} of {place[1]}, and this is rank {rank} of {size}: load on each rank "
            "its own; oktopk.Checkpoints does, and shares residuals out among another number of ranks"
        )


def sources(rank, size, before):
    """Of which of the `before` ranks this one of `size` takes the shares, and how many take them with it."""
    if before >= size:
        return list(range(rank, before, size)), 1
    old = rank % before
    return [old], len(range(old, size, before))


def regrouped(states, rank, size, takers):
    """The first of these states, with every reducer's share in it made of those of all: no residual is lost.

    Velocities belong to means, and are averaged. Thresholds and cuts of another number of ranks are of no use.
    """

    def made_of(parts):
        first = parts[0]
        if isinstance(first, dict) and PLACE in first:
            if len(parts) < len(states):
                raise LookupError("not every rank has a share")
            return _share(parts, (rank, size), takers)
        if isinstance(first, dict):
            return {key: made_of([part[key] for part in parts if key in part]) for key in first}
        if isinstance(first, list | tuple):
            return type(first)(made_of([part[i] for part in parts if i < len(part)]) for i in range(len(first)))
        return first

    return made_of(states)


def _share(shares, place, takers):
    parameters = {
        name: _combined([share["parameters"][name] for share in shares], takers) for name in shares[0]["parameters"]
    }
    return {**shares[0], PLACE: place, "parameters": parameters, "compressors": {}}


def _combined(states, takers):
    """One that leads no node has none of either."""
    combined = dict(states[0])
    for key, divisor in (("residual", takers), ("velocity", len(states))):
        kept = [state[key] for state in states if key in state]
        if kept:
            combined[key] = sum(kept) / divisor
    return combined
