"""Train a model: command line -> options -> loop.

python LSTM/main_trainer.py --hidden-size 256 --hidden-layers 3 --max-epochs 12
python LSTM/main_trainer.py --dnn lstm --dataset ptb --data-dir ptb_data
"""

import logging
import os
import resource
import sys
import time
from contextlib import closing
from dataclasses import replace

import torch

from checkpoint import save_model
from dl_trainer import DLTrainer
from errors import UserError, ends_with_user_error
from options import parse_options
from run_layout import CHECKPOINTS
from run_log import RunLog, run_folder, start_logging

log = logging.getLogger("oktopk")

LINES_PER_EPOCH = 5  # of progress, where there is no terminal for a bar
KIB_PER_MIB = 1024  # Linux gives a process's memory in KiB
LAUNCHERS = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PALS_SIZE")


@ends_with_user_error
def main(arguments=None):
    refuse_several_ranks()
    options = parse_options(sys.argv[1:] if arguments is None else arguments, __doc__.splitlines()[0])
    start_logging()
    name = f"{options.dnn}-{options.dataset}-{options.hidden_size}x{options.hidden_layers}-lr{options.lr:g}"
    with run_folder(options.run_dir, name) as folder:
        trainer = DLTrainer(options)
        steps = trainer.steps_per_epoch * options.max_epochs
        with closing(trainer), RunLog(folder, replace(options, run_dir=folder), steps) as run:
            train(trainer, options, run)


def refuse_several_ranks():
    for variable in LAUNCHERS:
        ranks = os.environ.get(variable, "1")
        if ranks != "1":
            raise UserError(
                f"the launcher started {ranks} ranks ({variable}), but training over several ranks is not there yet; "
                "run without mpirun"
            )


def train(trainer, options, run):
    announce(trainer, options, run)
    best, judge = None, trainer.task.describe
    for epoch in range(options.max_epochs):
        train_epoch(trainer, options, run, epoch)
        if is_validated(epoch, options):
            figures = trainer.test(epoch)
            run.validation(**figures)
            run.histograms(trainer.net, epoch)
            log.info("validation after epoch %d: %s", epoch, judge(figures))
            best = save(trainer, run, figures, best)
    log.info("best model: %s, after epoch %d: %s", run.folder / CHECKPOINTS / "best.pt", best["epoch"], judge(best))


def train_epoch(trainer, options, run, epoch):
    started, skipped, infinite = time.perf_counter(), trainer.skipped_steps, trainer.infinite_losses
    records = []
    for step in range(trainer.steps_per_epoch):
        record = train_step(trainer, options)
        run.iteration(iter=epoch * trainer.steps_per_epoch + step, epoch=epoch, **record)
        records.append(record)
        if not run.has_bar and (step + 1) % max(1, trainer.steps_per_epoch // LINES_PER_EPOCH) == 0:
            log.info("epoch %d step %d/%d: loss %.3f", epoch, step + 1, trainer.steps_per_epoch, record["loss"])
    run.epoch(
        epoch=epoch,
        loss=mean(records, "loss"),
        skipped_steps=trainer.skipped_steps - skipped,
        time=time.perf_counter() - started,
    )
    report_epoch(trainer, epoch, records, time.perf_counter() - started)
    report_losses_of_steps(run, epoch, trainer.skipped_steps - skipped, trainer.infinite_losses - infinite)


def train_step(trainer, options):
    began = time.perf_counter()
    trainer.seconds.clear()
    loss = trainer.train(options.nsteps_update)
    trainer.update_model()
    stages = {f"t_{stage}": seconds for stage, seconds in trainer.seconds.items()}
    return {
        "loss": loss,
        "lr": trainer.lr,
        "grad_norm": trainer.grad_norm,
        "t_iter": time.perf_counter() - began,
        **stages,
    }


def is_validated(epoch, options):
    """After the first epoch, after every --val-interval epochs, and at the end."""
    return epoch == 0 or (epoch + 1) % options.val_interval == 0 or epoch == options.max_epochs - 1


def save(trainer, run, figures, best):
    """Save the model as last.pt, and as best.pt if it is; return the figures of the best."""

    def merit(figures):
        return figures[trainer.task.headline], figures["loss"]  # early on, WER is often 1 for all

    folder, dnn = run.folder / CHECKPOINTS, trainer.options.dnn
    save_model(folder / "last.pt", trainer.net, dnn, figures["epoch"], figures)
    if best is not None and not merit(figures) < merit(best):
        return best
    save_model(folder / "best.pt", trainer.net, dnn, figures["epoch"], figures)
    return figures


def announce(trainer, options, run):
    parameters = sum(parameter.numel() for parameter in trainer.net.parameters())
    steps = trainer.steps_per_epoch
    log.info("run folder: %s", run.folder)
    log.info("%s: %d parameters on %s; %s", options.dnn, parameters, options.device, trainer.task.size_of_data)
    log.info(
        "batches of %d: %d steps an epoch, %d steps in %d epochs",
        options.batch_size * options.nsteps_update,
        steps,
        steps * options.max_epochs,
        options.max_epochs,
    )


def report_epoch(trainer, epoch, records, seconds):
    stages = ", ".join(f"{stage} {sum(r[f't_{stage}'] for r in records):.1f}" for stage in ("data", "compute", "apply"))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_PER_MIB
    device = ""
    if trainer.options.device == "cuda":
        device = f", device memory {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB"
    log.info(
        "epoch %d: loss %.3f, lr %.5f, %.1f s (%s), peak memory %.0f MiB%s",
        epoch,
        mean(records, "loss"),
        trainer.lr,
        seconds,
        stages,
        memory,
        device,
    )


def report_losses_of_steps(run, epoch, skipped, infinite):
    if skipped:
        log.warning("epoch %d: %d steps were skipped, because their gradients were not finite", epoch, skipped)
        run.event("skipped_steps", epoch=epoch, count=skipped)
    if infinite:
        log.warning(
            "epoch %d: %d utterances had fewer frames than their transcript needs; their loss counted as 0",
            epoch,
            infinite,
        )
        run.event("infinite_losses", epoch=epoch, count=infinite)


def mean(records, key):
    return sum(record[key] for record in records) / len(records)


if __name__ == "__main__":
    main()
