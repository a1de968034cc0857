"""What ranks must have alike before they reduce together: compared by digests, so that only a few bytes travel."""

import hashlib
import logging

import torch

log = logging.getLogger("oktopk.reducer")

DIGEST_BYTES = 7  # fits an int64


def insist_on_the_same_settings(communicator, settings):
    """Ranks that would reduce different things must not begin."""
    other = _rank_with_another(communicator, hashlib.sha256(repr(settings).encode()))
    if other is not None:
        raise ValueError(
            f"rank {other} and rank 0 have different parameters (names, shapes, dtypes or their order) or different "
            "options for the reducer: give all ranks the same"
        )


def warn_of_other_parameters(communicator, parameters):
    """Other values are allowed, for a loop may mean them, but seldom meant."""
    if communicator.size == 1:
        return
    digest = hashlib.sha256()
    for parameter in parameters:
        digest.update(parameter.detach().reshape(-1).contiguous().view(torch.uint8).cpu().numpy())
    other = _rank_with_another(communicator, digest)
    if other is not None and communicator.rank == 0:
        log.warning(
            f"rank {other} starts with other values of the parameters than rank 0, and they will never agree: "
            "give all ranks the same seed, or broadcast rank 0's parameters before the first step"
        )


def _rank_with_another(communicator, digest):
    """The first rank whose digest is not rank 0's; None if all have the same."""
    mine = torch.tensor([int.from_bytes(digest.digest()[:DIGEST_BYTES], "big")])
    digests = communicator.allgather(mine)[:, 0].tolist()
    return next((rank for rank, theirs in enumerate(digests) if theirs != digests[0]), None)
