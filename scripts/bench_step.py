"""What our training step costs beside the bare torch work in it, what reading data costs, and how long a start takes.

    python scripts/bench_step.py --data-dir audio_data

Ours: data, forward, loss, backward, clipping, optimizer. Bare torch: forward, CTC loss and backward of the same layers
with ordinary batch norms, on the same batches, which lie in memory. Both take turns in one process.
"""

import _project

if __name__ == "__main__":
    from oktopk_training.job import begin

    begin()

import copy
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from dl_trainer import DLTrainer
from oktopk.fields import COUNT, PATH
from oktopk_training.command_line import Parser, reading
from oktopk_training.errors import UserError
from oktopk_training.job import program
from oktopk_training.options import parse_options
from oktopk_training.tasks.speech.model import FrameNorm

WARM_UP = 3  # steps that are not counted: torch chooses its kernels in them
POLL = 0.02  # seconds between looks at the started program's metrics


class PlainNorm(nn.BatchNorm1d):
    def _check_input_dim(self, _):
        pass

    def forward(self, x, _inside):
        return super().forward(x)


@program
def main():
    given = _parser().parse_args()
    command = ["--batch-size", str(given.batch_size), "--device", "cpu"]
    command += ["--data-dir", str(given.data_dir)] if given.data_dir else []
    trainer = DLTrainer(parse_options(command))
    ours, bare, data = _time_steps(trainer, given.steps)
    trainer.close()
    step = statistics.median(ours)
    print(f"full model, batch {given.batch_size}, {given.steps} steps, {torch.get_num_threads()} threads")
    print(f"our step             {step * 1e3:8.1f} ms  (spread {_spread(ours)})")
    print(f"bare torch           {statistics.median(bare) * 1e3:8.1f} ms  (spread {_spread(bare)})")
    ratios = [mine / theirs for mine, theirs in zip(ours, bare, strict=True)]
    print(f"ratio, step by step  {statistics.median(ratios):8.3f}")
    print(f"reading data         {sum(data) / sum(ours):8.2%} of a step")
    print(f"start to first step  {_start_up(command):8.1f} s")


def _time_steps(trainer, steps):
    """Seconds of each of our steps, of bare torch over the same batch, and of our waiting for data."""
    seen = []
    make = trainer.task.batches
    trainer.task.batches = lambda *place: (seen.append(batch) or batch for batch in make(*place))
    net = _bare(trainer.net)
    ours, bare, data = [], [], []
    for _ in range(WARM_UP + steps):
        trainer.seconds.clear()
        ours.append(_timed(lambda: (trainer.train(1), trainer.update_model())))
        data.append(trainer.seconds["data"])
        bare.append(_timed(lambda: _forward_backward(net, seen[-1])))
    return ours[WARM_UP:], bare[WARM_UP:], data[WARM_UP:]


def _bare(net):
    net = copy.deepcopy(net)
    for module in net.modules():
        if isinstance(module, FrameNorm):
            module.__class__ = PlainNorm
    return net


def _forward_backward(net, batch):
    net.zero_grad()
    scores, frames = net(batch.spectrograms, batch.frames)
    F.ctc_loss(scores.log_softmax(-1), batch.labels, frames, batch.label_counts, reduction="sum").backward()


def _timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _spread(seconds):
    return f"{min(seconds) * 1e3:.0f}-{max(seconds) * 1e3:.0f}"


def _start_up(command):
    """Seconds from the command to the first step's line in metrics.jsonl."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "run" / "metrics.jsonl"
        program = [sys.executable, str(_project.ROOT / "LSTM" / "main_trainer.py"), "--run-dir", str(metrics.parent)]
        start = time.perf_counter()
        with subprocess.Popen([*program, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as run:
            try:
                while not (metrics.exists() and metrics.stat().st_size):
                    try:
                        run.wait(POLL)
                    except subprocess.TimeoutExpired:
                        continue
                    raise UserError(f"main_trainer.py ended before its first step: {run.stderr.read().decode()}")
                return time.perf_counter() - start
            finally:
                run.kill()


def _parser():
    parser = Parser(description="Time a training step against the bare torch work in it.")
    parser.add_argument("--data-dir", type=reading(PATH), metavar="FOLDER", help="prepared data; audio_data")
    parser.add_argument("--batch-size", type=reading(COUNT), default=8, metavar="N")
    parser.add_argument("--steps", type=reading(COUNT), default=20, metavar="N", help="steps that are timed")
    return parser


if __name__ == "__main__":
    main()
