"""Whether a compressor keeps the laws, your own too. Needs nothing but torch and NumPy.

    from oktopk.registry import Compressor
    from oktopk.testing import check_compressor

    check_compressor(Compressor("mine", MyAlgorithm, ExactTopK), exact=True)

in a file that is started as one process, by mpiexec or by torchrun, on 1, 2, 3 or 5 ranks. The laws:

- identical on all ranks: the mean, to the bit;
- finite means: and residuals, where gradients are finite;
- nothing lost: over all ranks, what left gradients and residuals is P times the mean;
- dense at density 1: the mean of the gradients, to rounding (and to that of the wire);
- exact choice (if asked for): every rank sends min(k, non-zeros) entries;
- resume equals no resume: a new averager with the saved state goes on to the bit as the old one would have;
- overflow leaves all state as it was: where any rank's gradient is not finite, nobody's counts;
- all ranks in step, and no exceptions.
"""

from ..communicator import Communicator
from ..registry import Settings, find_compressor
from ..transports import connect, over
from .bench import Bench, Case, LawBroken, cases
from .laws import Step

__all__ = ["Case", "LawBroken", "Step", "broken_law", "broken_laws", "cases", "check_compressor"]

OF_THE_KIT = ("density", "warmup_iters", "merge_size", "momentum", "nesterov", "norm_clip", "velocity_clip")


def check_compressor(compressor, communicator=None, *, exact=False, sizes=(1, 3, 1000), iterations=6, **settings):
    """Raise the same `LawBroken` on every rank if the compressor breaks a law; otherwise return how many cases it kept.

    All ranks call it alike. `compressor` is a name or a `Compressor`, in the registry or not; `communicator` is what
    `GradientAverager` takes; `settings` are further fields of `Settings`. An exception on some ranks only, or ranks
    that call different collectives, are a `LawBroken` too. While messages between two ranks (send, receive) are under
    way that cannot be told: then the job is ended after two minutes, with a sentence on stderr.
    """
    own = [name for name in settings if name in OF_THE_KIT]
    if own:
        raise ValueError(f"the kit chooses {', '.join(own)} itself, or needs the default: leave it out")
    compressor, _ = find_compressor(compressor), Settings(**settings)
    ours = connect() if communicator is None else over(communicator)
    every, broken = list(cases(sizes, iterations, **settings)), None
    for case in every:
        broken = broken_law(compressor, case, ours, exact=exact)
        if broken is not None:
            break
    if not isinstance(communicator, Communicator):
        ours.close()
    if broken is not None:
        raise broken
    return len(every)


def broken_laws(compressor, communicator, cases, *, exact=False):
    """For each case (its event and itself, as text) the sentence that says how it broke a law, or None."""
    found = {}
    for case in cases:
        broken = broken_law(compressor, case, communicator, exact=exact)
        found[f"{case.event or 'steps'}: {case}"] = None if broken is None else str(broken)
    return found


def broken_law(compressor, case, communicator, *, exact=False, also=None, in_step=True):
    """The `LawBroken` of one case, the same on every rank, or None.

    `also` is a law of your own for each step: from a `Step` to what breaks it, or None. Rank 0 alone asks it.
    Without `in_step` ranks do not compare what they call: that takes half the messages, and an exception is raised as
    it is, on the rank that fails.
    """
    return Bench(find_compressor(compressor), case, communicator, exact, also, in_step).broken_law()
