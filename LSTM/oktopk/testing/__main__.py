"""The laws for compressors of the registry, or for all of it:  mpiexec -n 3 python -m oktopk.testing [NAME ...]"""

import sys

from ..choosers import ExactTopK
from ..registry import compressors, find_compressor
from ..transports import connect
from . import LawBroken, check_compressor

BROKEN_STATUS, USAGE_STATUS = 1, 2


def main(names):
    """The exit status. Rank 0 says what came of each."""
    communicator = connect()
    status, say = 0, print if communicator.rank == 0 else lambda *_, **__: None
    for name in names or compressors:
        try:
            compressor = find_compressor(name)
        except ValueError as error:
            say(f"error: {error}", file=sys.stderr)
            return USAGE_STATUS
        try:
            cases = check_compressor(compressor, communicator, exact=compressor.chooser is ExactTopK)
            say(f"{name} keeps every law in {cases} cases on {communicator.size} ranks", flush=True)
        except LawBroken as broken:
            say(f"{name}: {broken}", flush=True)
            status = BROKEN_STATUS
    communicator.close()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
