"""What allocators raise when there is no more memory, each something else; and the sentence for it."""

from contextlib import contextmanager

REMEDY = "start fewer ranks on a host, or train a smaller model or batch"
OF_TORCH = "can't allocate memory"  # a RuntimeError like any other, on CPUs


def is_out_of_memory(error):
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or OF_TORCH in str(error)


def sentence(error, what="what a step needs"):
    if type(error) is MemoryError and str(error):
        return str(error)  # one of ours
    return f"{what} did not fit into memory ({_reason(error)}); {REMEDY}"


def _reason(error):
    """The allocator's words, without the place in its source."""
    first = (str(error).splitlines() or [""])[0]
    return first.rpartition("Allocator: ")[2].partition(" Error code")[0].rstrip(".") or "the system gives no more"


@contextmanager
def enough_for(what):
    """The block allocates `what`: where that fails, a MemoryError says so in a sentence."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryError(sentence(error, what)) from None
