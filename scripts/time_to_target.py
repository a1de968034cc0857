"""Minutes of training to a WER, by how gradients are averaged: ours beside PyTorch's DDP and its communication hooks.

    python scripts/lab.py --hosts 2 --rate 100mbit -- python scripts/time_to_target.py --target 0.2 \
        --hidden-size 256 --hidden-layers 3 --json slow.json --out slow.png

Each method trains from the same weights on the same batches, one after the other, until a validation's WER is at most
the target, or for --max-epochs. Validations follow every epoch and count in no time; the target is reached where a line
between two of them comes down to it. All that compress, PowerSGD too, begin after --warmup-iters dense steps.
"""

import _project  # noqa: F401 - puts LSTM on the path

if __name__ == "__main__":
    from oktopk_training.job import begin

    begin()

import json
import logging
import time
from contextlib import closing
from dataclasses import replace

import torch.distributed as dist

from dl_trainer import DLTrainer
from drawing import picture
from experiments.outcomes import reached
from oktopk.fields import PATH, POSITIVE, TEXT
from oktopk_training.command_line import Parser, reading
from oktopk_training.files import atomic_write, refuse_unwritable
from oktopk_training.job import program
from oktopk_training.options import parse_options
from oktopk_training.ranks import connect
from training_methods import EPILOG, METHODS, How, chosen, meet_by_gloo, started

MINUTE = 60.0  # seconds
COLOURS = ("#1f5fa8", "#d68910", "#2e8b57", "#b03a48", "#6b4fa0", "#3a9fbf", "#8a6d3b", "#222222", "#9aa0a6")
DASHES = ("-", "--", ":")  # a round of colours later


@program
def main():
    ranks = connect()
    given, options = ranks.from_first(_parse)
    logging.getLogger("oktopk").setLevel(logging.WARNING)
    ranks.share_cores()
    meet_by_gloo(ranks)
    rows = []
    for name in given.methods:
        rows.append(train(name, options, ranks, given.target))
        if ranks.is_first:
            print(f"{name}: WER {rows[-1]['curve'][-1]['wer']:.3f} after {minutes(rows[-1]):.1f} minutes", flush=True)
            _write(given, rows, ranks)
    dist.destroy_process_group()
    if ranks.is_first:
        print(table(rows, given.target))


def train(name, options, ranks, target):
    """The curve of one method: after each epoch, steps and seconds so far and WER."""
    options = replace(options, momentum_correction=METHODS[name].momentum_correction)
    how = How(options.lr, options.settings.warmup_iters, options.max_grad_norm)
    trainer = ranks.together(lambda: DLTrainer(options, ranks.rank, ranks.size, ranks.add_up))
    ranks.share_model(trainer.net)
    net, called, optimizer = started(name, trainer.net, ranks, how)
    trainer.update_optimizer(optimizer)
    steps, seconds, curve = 0, 0.0, []
    with closing(trainer):
        while len(curve) < options.max_epochs and not (curve and curve[-1]["wer"] <= target):
            ranks.barrier()
            began, trainer.net = time.perf_counter(), called
            for _ in range(trainer.steps_per_epoch):
                _step(trainer, optimizer)
            ranks.barrier()
            steps, seconds = steps + trainer.steps_per_epoch, seconds + time.perf_counter() - began
            trainer.net = net  # DDP would have ranks meet in each batch of a validation, and they have not equally many
            ranks.average_buffers(net)
            figures = trainer.test(len(curve))
            curve.append({"steps": steps, "seconds": seconds, "wer": figures["wer"]})
    if hasattr(optimizer, "stop"):
        optimizer.stop()
    at = reached([(point["seconds"], point["wer"]) for point in curve], target)
    return {"name": name, "seconds_to_target": at, "curve": curve}


def minutes(row):
    return row["curve"][-1]["seconds"] / MINUTE


def _step(trainer, optimizer):
    trainer.train(1)
    if hasattr(optimizer, "synchronize"):
        optimizer.synchronize()
    trainer.update_model()


def table(rows, target):
    lines = [
        f"| | minutes to WER {target:g} | steps until there | steps a minute | WER at the end |",
        "| --- " * 5 + "|",
    ]
    for row in rows:
        curve, at = row["curve"], row["seconds_to_target"]
        steps = reached([(point["steps"], point["wer"]) for point in curve], target)
        cells = ("not reached", f"above {curve[-1]['steps']}") if at is None else (f"{at / MINUTE:.1f}", f"{steps:.0f}")
        pace = curve[-1]["steps"] / minutes(row)
        lines.append(f"| {row['name']} | {' | '.join(cells)} | {pace:.1f} | {curve[-1]['wer']:.3f} |")
    return "\n".join(lines)


def draw(rows, target, title):
    figure, axes = picture.pyplot().subplots(figsize=(8, 4.5), layout="constrained")
    for place, row in enumerate(rows):
        colour, dashes = COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)]
        points = [(point["seconds"] / MINUTE, point["wer"]) for point in row["curve"]]
        axes.plot(
            *zip(*points, strict=True), marker="o", markersize=3, color=colour, linestyle=dashes, label=row["name"]
        )
    axes.axhline(target, color="#9aa0a6", linestyle=":", label="target")
    axes.set(title=title, xlabel="minutes of training", ylabel="WER", xlim=(0, None), ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _write(given, rows, ranks):
    """Once a method is through, for the next may take an hour."""
    if given.json:
        with atomic_write(given.json) as file:
            json.dump({"ranks": ranks.size, "target": given.target, "rows": rows}, file, indent=1)
    if given.out:
        hosts = len(set(ranks.hosts))
        title = f"{ranks.size} ranks" + (f" on {hosts} hosts" if hosts > 1 else "")
        picture.write_picture(draw(rows, given.target, title), given.out, 120)


def _parse():
    """What is ours, and the options of the trainer."""
    parser = Parser(description=__doc__.splitlines()[0], epilog=EPILOG)
    parser.add_argument("--target", type=reading(POSITIVE), required=True, metavar="WER")
    parser.add_argument("--methods", type=reading(TEXT), metavar="NAME|NAME…", help=f"of {' | '.join(METHODS)}; all")
    parser.add_argument("--json", type=reading(PATH), metavar="PATH", help="write every figure there too")
    parser.add_argument("--out", type=reading(PATH), metavar="PNG", help="draw WER over minutes")
    given, words = parser.parse_known_args()
    given.methods = chosen(given.methods)
    for path in filter(None, (given.json, given.out)):
        refuse_unwritable(path)
    return given, parse_options([*words, "--device", "cpu"])


if __name__ == "__main__":
    main()
