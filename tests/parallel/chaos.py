"""Runs whose ranks are killed again and again, and that are taken up each time, beside one that nobody disturbs.

python tests/parallel/chaos.py DATA [--kills 20] [--ranks 4] [--torchrun] [--seed 0] [-- OPTIONS OF main_trainer.py]

DATA is what --data-dir takes. The last line says whether both ended alike: all figures of metrics.jsonl, the saved
models, and every rank's part of the last checkpoint, bit for bit.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "LSTM"), str(ROOT / "tests")]

from ranks import WORKERS, run_ranks, run_torch_ranks  # noqa: E402

from runs import differences_of  # noqa: E402

SMALL = ("--hidden-size", "16", "--hidden-layers", "1", "--batch-size", "2", "--device", "cpu", "--warmup-iters", "5")
OFTEN = ("--checkpoint-interval", "3", "--val-interval", "1", "--resume", "auto")
# Where a start is killed: at the latest in this step, reduction, checkpoint, validation.
LATEST = {"compute": 9, "exchange": 9, "checkpoint": 3, "validation": 1}


def start(plan, run, options, ranks, launch=run_ranks, seconds=300):
    """Start a run, or go on with it; `plan` says when a rank is to be killed (see workers/killed.py), if any."""
    return launch(ranks, WORKERS / "killed.py", json.dumps(plan), "--run-dir", run, *options, seconds=seconds)


def killed_and_resumed(run, options, kills, ranks, launch, dice):
    """Start it until it comes to its end; yields the plan and the duration of each start that was killed."""
    for number in range(kills):
        moment = list(LATEST)[number % len(LATEST)]
        plan = {"rank": dice.randrange(ranks), "moment": moment, "call": dice.randint(1, LATEST[moment])}
        plan["part"] = round(dice.random(), 2)
        began = time.monotonic()
        done = start(plan, run, options, ranks, launch)
        assert done.returncode != 0, f"it came to its end before {plan}: give it more epochs"
        yield plan, time.monotonic() - began
    done = start(None, run, options, ranks, launch)
    assert done.returncode == 0, done.stderr


def main(arguments):
    arguments, more = (arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--torchrun", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    launch = run_torch_ranks if given.torchrun else run_ranks
    options = [*SMALL, *OFTEN, "--data-dir", given.data.absolute(), "--compression", *more]
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir=os.environ.get("TMPDIR")))
    done = start(None, folder / "whole", options, given.ranks, launch, seconds=1000)
    assert done.returncode == 0, done.stderr
    moments, dice = Counter(), random.Random(given.seed)
    for plan, seconds in killed_and_resumed(folder / "killed", options, given.kills, given.ranks, launch, dice):
        moments[plan["moment"]] += 1
        sys.stdout.write(f"{plan}: {seconds:.1f} s\n")
        sys.stdout.flush()
    found = sorted(differences_of(folder / "whole", folder / "killed"))
    sys.stdout.write(f"{folder}: {moments.total()} kills {dict(moments)}, {len(found)} differences {found[:5]}\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main(sys.argv[1:] if "--" in sys.argv else [*sys.argv[1:], "--"])
