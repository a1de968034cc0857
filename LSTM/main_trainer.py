"""Train a model over one or many ranks: command line -> options -> broadcast -> loop.

python LSTM/main_trainer.py --hidden-size 256 --hidden-layers 3 --max-epochs 12
mpirun -np 2 python LSTM/main_trainer.py --nworkers 2 --compression True --compressor oktopk --density 0.02
python LSTM/main_trainer.py --dnn lstm --dataset ptb --data-dir ptb_data

Validation and saved models use batch-norm statistics that are averaged over the ranks: each has its own batches.
"""

if __name__ == "__main__":
    import signal

    from oktopk_training.job import begin

    begin()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until there is something to save

import logging
import math
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

import torch

from distributed_optimizer import DistributedOptimizer, compressors
from dl_trainer import DLTrainer
from oktopk.averager import fastest_for
from oktopk.watchdog import set_limit
from oktopk.wire import AUTO
from oktopk_training import reports
from oktopk_training.errors import SharedError, UserError
from oktopk_training.inspecting import NoInspector, inspector_of
from oktopk_training.job import program
from oktopk_training.options import parse_options, transport_of
from oktopk_training.ranks import connect
from oktopk_training.recorded import Recorder
from oktopk_training.resuming import Keeper, Progress, Signals, check_found, size_of, start_of, with_choice_of
from oktopk_training.run_layout import CHECKPOINTS
from oktopk_training.run_log import NoRunLog, RunLog, config_of, run_folder, runs_of, set_aside, start_logging
from oktopk_training.run_models import best_that_is_left, report_best, save_models
from oktopk_training.step import step_of
from oktopk_training.tracing import NoTracer, tracing

log = logging.getLogger("oktopk")

LINES_PER_EPOCH = 5  # of progress, where there is no terminal for a bar


@program
def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    run(connect(transport_of(arguments)), arguments)


def run(ranks, arguments):
    options = ranks.from_first(lambda: check(parse_options(arguments, __doc__.splitlines()[0]), ranks))
    set_limit(options.watchdog)
    options = replace(options, device=own_device(options.device, ranks))
    start_logging(speaks=ranks.is_first)
    with ExitStack() as stack:
        name = name_of(options, ranks)
        start = ranks.from_first(lambda: start_of(options, runs_of(name)))
        folder = ranks.from_first(lambda: stack.enter_context(run_folder(start.folder, name, start.resumes)))
        trainer = ranks.together(lambda: DLTrainer(options, ranks.rank, ranks.size, ranks.add_up))
        stack.enter_context(closing(trainer))
        ranks.insist_on_the_same("training or validation data", trainer.task.fingerprint)
        options = replace(options, run_dir=folder)
        keeper = stack.enter_context(closing(Keeper(folder, options, ranks)))
        found = keeper.find(start.step) if start.resumes else None
        options, reason = settle(options, trainer, ranks, found)
        plan = reports.plan(trainer.steps_per_epoch, options)
        changes = ranks.together(lambda: found and check_found(found, trainer, options, ranks.size))
        run_log = ranks.together(lambda: open_log(trainer, options, plan, ranks, found, start.resumes))
        signals = stack.enter_context(Signals())
        run = stack.enter_context(run_log)
        if reason:
            log.info("--compressor %s: %s", AUTO, reason)
        train(Job(trainer, options, ranks, run, keeper, signals), plan, found, changes)


def check(options, ranks):
    if options.nworkers not in (None, ranks.size):
        raise UserError(
            f"--nworkers {options.nworkers}, but this run has {reports.so_many_ranks(ranks.size)}: start "
            f"{options.nworkers} with mpirun -np {options.nworkers}, or leave --nworkers out"
        )
    return options


def own_device(device, ranks):
    """Of the CUDA devices that are visible, the one of this rank's place on its node. `device` is rank 0's choice."""

    def choose():
        if device != "cuda":
            return device
        if not torch.cuda.device_count():
            raise UserError("torch finds no CUDA device here, as it does on rank 0; give each rank one or --device cpu")
        index = ranks.local_rank % torch.cuda.device_count()
        torch.cuda.set_device(index)
        return f"cuda:{index}"

    return ranks.together(choose)


def settle(options, trainer, ranks, found):
    """The options with what --compressor auto stands for, and why; a run that goes on keeps what it has begun with."""
    if not options.compression or options.compressor != AUTO:
        return options, None
    if found is not None:
        return with_choice_of(found, options), "as in the run that goes on"
    parameters = [(name, each) for name, each in trainer.net.named_parameters() if each.requires_grad]
    choice = fastest_for(parameters, options.settings, ranks.new_communicator("probing"))
    return replace(options, compressor=choice.compression, settings=choice.settings), choice.reason


def open_log(trainer, options, plan, ranks, found, resumes):
    if not ranks.is_first:
        return NoRunLog()
    if options.resume and found is None:
        log.warning("--resume %s: there is no whole checkpoint yet, so the run begins anew", options.resume)
    if resumes and found is None:
        set_aside(options.run_dir)
    went_on_at = found and (found.step, found.common["metrics"])
    return RunLog(options.run_dir, config_of(options, trainer.task.figures, ranks), plan.steps, went_on_at)


def name_of(options, ranks):
    name = f"{options.dnn}-{options.dataset}-{options.hidden_size}x{options.hidden_layers}-lr{options.lr:g}"
    if options.compression:
        name += f"-{options.compressor}" + (f"-density{options.settings.density:g}" if options.is_sparse else "")
    return name + (f"-{ranks.size}ranks" if ranks.size > 1 else "")


@dataclass
class Job:
    """A run on this rank, with all that its loop speaks to."""

    trainer: DLTrainer
    options: object
    ranks: object
    run: object
    keeper: Keeper
    signals: Signals
    optimizer: object = None
    progress: Progress = None
    tracer: object = field(default_factory=NoTracer)
    recorder: Recorder = None
    inspector: object = field(default_factory=NoInspector)


def train(job, plan, found, changes):
    trainer, options, ranks, run = job.trainer, job.options, job.ranks, job.run
    announce(trainer, options, ranks, plan, run, goes_on=found is not None)
    job.optimizer = distribute(trainer, options, ranks)
    job.recorder = Recorder(options.run_dir, options.record_gradients, ranks.rank)
    job.progress = progress = Progress(reports.Summary(trainer.task.figures))
    job.keeper.watch(options, trainer, job.optimizer, progress, run, job.signals)
    with tracing(options.trace, ranks, options.run_dir) as job.tracer:
        ranks.share_model(trainer.net)
        if found is not None:
            go_on(job, found, changes)
        job.inspector = inspector_of(options.inspect, ranks, job.optimizer.averager, run)  # it is not traced
        train_epochs(job)
    job.optimizer.stop()
    run.event("summary", **progress.summary.record())
    for line in progress.summary.table():
        log.info("%s", line)
    log.info("%d checkpoints took %.1f s", job.keeper.saved, job.keeper.seconds)
    report_best(trainer.task, ranks, run, progress.best)


def train_epochs(job):
    progress, options = job.progress, job.options
    while progress.epoch < options.max_epochs:
        train_epoch(job)
        validates = is_validated(progress.epoch, options)
        if validates:
            validate(job)
        progress.end_epoch()
        if validates:
            job.keeper.model_is_validated()


def go_on(job, found, changes):
    """Everything as it was when the checkpoint was made."""
    job.ranks.together(lambda: job.keeper.restore(found))
    progress, options = job.progress, job.options
    progress.best = job.ranks.from_first(lambda: best_that_is_left(progress.best, job.run.folder / CHECKPOINTS))
    left = max(0, (options.max_epochs - progress.epoch) * job.trainer.steps_per_epoch - progress.place)
    log.info(
        "goes on from the checkpoint of step %d (epoch %d): %d steps are left", progress.step, progress.epoch, left
    )
    for change in changes:
        log.warning("not the steps of a run that never ended: %s", change)
    if progress.epoch >= options.max_epochs:
        log.info("all %d epochs are done: nothing is left to train", progress.epoch)
    job.run.resumed(iter=progress.step, ranks=job.ranks.size, ranks_before=found.ranks, changes=changes)


def validate(job):
    trainer, ranks, run, epoch = job.trainer, job.ranks, job.run, job.progress.epoch
    ranks.average_buffers(trainer.net)
    figures = trainer.test(epoch)
    job.progress.summary.validation(figures)
    run.validation(**figures)
    run.histograms(trainer.net, epoch)
    log.info("validation after epoch %d: %s", epoch, trainer.task.describe(figures))
    if not math.isfinite(figures["loss"]):
        log.warning("epoch %d: the validation loss is not finite; this model cannot be the best", epoch)
    job.progress.best = save_models(trainer, ranks, run, figures, job.progress.best)


def distribute(trainer, options, ranks):
    """Put the reducer between the trainer and its optimizer."""
    overlap = ranks.from_first(lambda: sums_early(options, ranks))
    settings = replace(options.settings, timed=True, overlap=overlap)
    if options.corrects_momentum:
        settings = replace(settings, velocity_clip=options.max_grad_norm)
    optimizer = DistributedOptimizer(
        trainer.optimizer,
        trainer.net.named_parameters(),
        compression=compressors[options.compressor if options.compression else "none"],
        is_sparse=options.is_sparse,
        momentum_correction=options.corrects_momentum,
        communicator=ranks.new_communicator("reduction"),
        settings=settings,
    )
    if options.settings.overlap and ranks.size > 1 and not optimizer.averager.can_sum_early:
        log.warning(
            "--overlap: no sum begins in backward; with --norm-clip, --hierarchical, momentum correction "
            "(--no-momentum-correction) or on a device, the whole gradient comes first"
        )
    trainer.update_optimizer(optimizer)
    optimizer.set_trainer(trainer)
    return optimizer


def sums_early(options, ranks):
    """Whether dense gradients are summed while backward goes on. Those that are recorded must be the rank's own."""
    if options.settings.overlap is None:
        a_core_is_free = ranks.cores >= ranks.local_size * (torch.get_num_threads() + 1)
        return a_core_is_free and options.record_gradients is None
    return options.settings.overlap


def train_epoch(job):
    """What is left of the present epoch."""
    trainer, options, run, progress = job.trainer, job.options, job.run, job.progress
    if progress.place == 0:
        progress.skipped, progress.infinite = trainer.skipped_steps, trainer.infinite_losses
    began = time.perf_counter() - progress.seconds
    while progress.place < trainer.steps_per_epoch:
        job.tracer.begin_step()
        job.inspector.begin_step(progress.step)
        density = job.optimizer.get_current_density()
        step = train_step(job)
        job.tracer.end_step(step)
        job.inspector.end_step(step)
        if step.phase == "sparse" and not step.skipped and not progress.summary.phases["sparse"].steps:
            report_sparse_start(run, options, step)
        run.step(step, density)
        progress.take(step, time.perf_counter() - began)
        report_progress(job, step)
        job.keeper.step_is_done()
    job.optimizer.add_train_epoch()
    end_of_epoch(job, time.perf_counter() - began)


def report_progress(job, step):
    steps, place = job.trainer.steps_per_epoch, job.progress.place
    if not job.run.has_bar and place % max(1, steps // LINES_PER_EPOCH) == 0:
        log.info("epoch %d step %d/%d: loss %.3f", step.epoch, place, steps, step.loss)


def end_of_epoch(job, seconds):
    trainer, ranks, progress = job.trainer, job.ranks, job.progress
    epoch, tally = progress.epoch, progress.tally
    loss = ranks.mean(tally.loss / max(1, tally.steps))
    skipped = trainer.skipped_steps - progress.skipped
    sparse_metrics = reports.take_sparse_metrics(trainer)
    averages = {f"avg_{key}": reports.mean(values) for key, values in sparse_metrics.items()}
    job.run.epoch(epoch=epoch, loss=loss, **averages, skipped_steps=skipped, time=seconds)
    progress.summary.epoch(loss, sparse_metrics, skipped)
    report_epoch(trainer, epoch, loss, averages, tally, seconds)
    infinite = ranks.add_up({"infinite": trainer.infinite_losses - progress.infinite})["infinite"]
    report_losses_of_steps(job.run, epoch, skipped, infinite)


def train_step(job):
    trainer, optimizer, progress = job.trainer, job.optimizer, job.progress
    began = time.perf_counter()
    trainer.seconds.clear()
    loss = accumulate(trainer, optimizer, job.options.nsteps_update)
    job.recorder.take(progress.step, trainer.net.parameters())
    try:
        optimizer.synchronize()
    except FloatingPointError as error:  # all ranks have agreed on it
        raise SharedError(str(error)) from error
    trainer.update_model()
    seconds = time.perf_counter() - began - job.inspector.seconds
    return step_of(progress.step, progress.epoch, loss, trainer, optimizer.last_step, seconds)


def accumulate(trainer, optimizer, batches):
    """Forward and backward over so many batches; the last one's gradients leave for the reducer with all the others."""
    optimizer.local = True
    loss = trainer.train(batches - 1) * (batches - 1) if batches > 1 else 0.0
    optimizer.local = False
    return (loss + trainer.train(1)) / batches


def is_validated(epoch, options):
    """After the first epoch, after every --val-interval epochs, and at the end."""
    return epoch == 0 or (epoch + 1) % options.val_interval == 0 or epoch == options.max_epochs - 1


def announce(trainer, options, ranks, plan, run, goes_on):
    parameters = sum(parameter.numel() for parameter in trainer.net.parameters())
    threads = ranks.share_cores(options.threads)
    if ranks.is_first:
        log.info("run folder: %s", run.folder)
    log.info("%s: %d parameters on %s; %s", options.dnn, parameters, options.device, trainer.task.size_of_data)
    if threads:
        log.info(
            "%d ranks share this node's %d cores; torch threads of each: %d", ranks.local_size, ranks.cores, threads
        )
    if options.nwpernode not in (None, ranks.local_size):
        log.warning("--nwpernode %d, but this node has %d of the ranks", options.nwpernode, ranks.local_size)
    reports.announce_plan(log, plan, options, ranks, goes_on)
    log.info(
        "a checkpoint every %s%s and at validations, the newest %d kept; each takes about %.1f MB",
        *(options.checkpoint_interval, "" if options.checkpoint_interval.endswith("m") else " steps"),
        *(options.keep_checkpoints, size_of(options, parameters, ranks.size) / 1e6),
    )
    if ranks.size > 1 and any(buffer.is_floating_point() for buffer in trainer.net.buffers()):
        log.info("batch-norm statistics are averaged over the ranks before validation and saving")


def report_sparse_start(run, options, step):
    log.info(
        "the sparse phase starts at step %d (epoch %d): %s chose %d entries, sparsity %.4f, ratio %.1f",
        *(step.iter, step.epoch, options.compressor, step.selected_global, step.sparsity, step.compression_ratio),
    )
    run.event(
        "sparse_phase_started",
        iter=step.iter,
        epoch=step.epoch,
        density=options.settings.density,
        sparsity=step.sparsity,
        compression_ratio=step.compression_ratio,
    )


def report_epoch(trainer, epoch, loss, averages, tally, seconds):
    if averages["avg_sparsity"] is None:
        log.debug("epoch %d: no sparse metrics: they start after the warm-up", epoch)
        sparse = ""
    else:
        sparse = f", sparsity {averages['avg_sparsity']:.4f}, ratio {averages['avg_compression_ratio']:.1f}"
    memory = reports.memory(trainer.options.torch_device)
    log.info("epoch %d: loss %.3f, lr %.5f%s, %.1f s, %s", epoch, loss, trainer.lr, sparse, seconds, memory)
    for line in reports.breakdown(tally):
        log.info("%s", line)


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


if __name__ == "__main__":
    main()
