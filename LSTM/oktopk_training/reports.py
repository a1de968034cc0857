"""What a run says about itself: the plan at its start, the stages of an epoch's steps, the summary at its end."""

import resource
from dataclasses import dataclass

import torch

from oktopk.reducer import RAMP_BEGINS

from .step import REDUCTION, STAGES, Tally

KIB_PER_MIB = 1024  # Linux gives a process's memory in KiB


# ---- the plan


@dataclass(frozen=True)
class Plan:
    """How the steps of a run divide into dense and sparse ones, if none is skipped."""

    steps_per_epoch: int
    epochs: int
    dense: int

    @property
    def steps(self):
        return self.steps_per_epoch * self.epochs

    @property
    def sparse(self):
        return self.steps - self.dense

    @property
    def start(self):
        """(epoch, step within it) of the first sparse step, counted from 0."""
        return divmod(self.dense, self.steps_per_epoch)


def plan(steps_per_epoch, options):
    steps = steps_per_epoch * options.max_epochs
    dense = min(steps, options.settings.warmup_iters) if options.is_sparse else steps
    return Plan(steps_per_epoch, options.max_epochs, dense)


def so_many_ranks(count):
    return "1 rank" if count == 1 else f"{count} ranks"


def announce_plan(log, plan, options, ranks, goes_on=False):
    """Of a run that goes on, what is left is said once that is known."""
    log.info(
        "%s x batch %d%s = %d a step: %d steps an epoch%s",
        so_many_ranks(ranks.size),
        options.batch_size,
        f" x {options.nsteps_update} batches" if options.nsteps_update > 1 else "",
        options.batch_size * options.nsteps_update * ranks.size,
        plan.steps_per_epoch,
        "" if goes_on else f", {plan.steps} steps in {plan.epochs} epochs",
    )
    if not goes_on:
        _announce_phases(log, plan, options)
    clip = options.settings.norm_clip
    before = "no clipping before" if clip is None else f"clipping to {clip:g}/sqrt(P) before"
    after = "before they enter the velocity" if options.corrects_momentum else "after it"
    log.info("gradients: %s the reduction, to %g %s", before, options.max_grad_norm, after)


def _announce_phases(log, plan, options):
    compressor, density, warm_up = options.compressor, options.settings.density, options.settings.warmup_iters
    if not options.compression:
        log.info("every step is dense: --compressor %s needs --compression beside it", compressor)
    elif not options.is_sparse:
        log.info("every step is dense: --compressor %s sends everything", compressor)
    elif not plan.dense:
        log.info("every step is sparse: %s at density %g, without a warm-up", compressor, density)
    elif plan.sparse:
        epoch, step = plan.start
        log.info(
            "the first %d steps are dense; %s at density %g takes over at step %d, which is step %d of epoch %d: "
            "the last %d steps are sparse",
            *(plan.dense, compressor, density, plan.dense, step, epoch, plan.sparse),
        )
        if options.settings.ramp_iters:
            log.info("the density comes down from %g within %d sparse steps", RAMP_BEGINS, options.settings.ramp_iters)
    else:
        log.warning(
            "this run is too short to become sparse: it has %d steps, and the first %d are dense (--warmup-iters); "
            "give it more --max-epochs than %d, or a shorter warm-up",
            *(plan.steps, warm_up, warm_up // plan.steps_per_epoch),
        )


# ---- an epoch


def take(values):
    """Take what a list holds by now out of it. Another thread may append meanwhile; that stays for the next time."""
    count = len(values)
    taken = values[:count]
    del values[:count]
    return taken


def take_sparse_metrics(trainer):
    return {
        "sparsity": take(trainer.sparsities),
        "compression_ratio": take(trainer.compression_ratios),
        "communication_size": take(trainer.communication_sizes),
    }


def mean(values):
    """None if there are none. A value that is not finite makes the mean so: it is not averaged away."""
    return sum(values) / len(values) if values else None


def breakdown(tally):
    """Two lines: the reduction's stages, and the mean milliseconds a step that each took."""
    figures = {stage: tally.milliseconds(stage) for stage in REDUCTION}
    figures["total"] = sum(figures.values())
    columns = {stage.replace("_", "-"): figure for stage, figure in figures.items()}
    header = "  ".join(f"{column:>9}" for column in columns)
    row = "  ".join(f"{figure:{max(9, len(column))}.2f}" for column, figure in columns.items())
    return f"ms/step  {header}", f"         {row}"


def memory(device):
    text = f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_PER_MIB:.0f} MiB"
    if device.type == "cuda":
        text += f", of the device {torch.cuda.max_memory_allocated(device) / 2**20:.0f} MiB"
    return text


# ---- the end


_LABELS = {**{stage: stage.replace("_", "-") for stage in STAGES}, "total": "whole step"}


class Summary:
    """Gathers, step by step and epoch by epoch, what the table at the end holds."""

    def __init__(self, labels):
        """`labels` says what the figures of a validation are called."""
        self.labels = labels
        self.phases = {"dense": Tally(), "sparse": Tally()}
        self.losses, self.sparsities, self.ratios, self.figures = [], [], [], {}
        self.skipped = 0

    def step(self, step):
        """Those that were skipped are counted apart, by `epoch`: they sent nothing to speak of."""
        if not step.skipped:
            self.phases[step.phase].add(step)

    def epoch(self, loss, sparse_metrics, skipped):
        self.losses.append(loss)
        self.sparsities += sparse_metrics["sparsity"]
        self.ratios += sparse_metrics["compression_ratio"]
        self.skipped += skipped

    def validation(self, figures):
        self.figures = figures

    def state_dict(self):
        kept = {name: value for name, value in vars(self).items() if name != "labels"}
        return {**kept, "phases": {phase: tally.state_dict() for phase, tally in self.phases.items()}}

    def load_state_dict(self, state):
        for name in ("losses", "sparsities", "ratios", "figures", "skipped"):
            setattr(self, name, state[name])
        self.phases = {phase: Tally.of(state["phases"][phase]) for phase in self.phases}

    def record(self):
        """What the event `summary` in metrics.jsonl holds."""
        record = {
            "skipped_steps": self.skipped,
            "loss_first": self.losses[0],
            "loss_last": self.losses[-1],
            **{key: self.figures[key] for key in self.labels if self.figures.get(key) is not None},
            "avg_sparsity": mean(self.sparsities),
            "avg_compression_ratio": mean(self.ratios),
        }
        for phase, tally in self.phases.items():
            record[f"steps_{phase}"] = tally.steps
            record[f"bytes_per_step_{phase}"] = tally.bytes_sent / tally.steps if tally.steps else None
            record[f"ms_per_step_{phase}"] = _stages(tally) if tally.steps else None
        return record

    def table(self):
        record = self.record()
        shown = [phase for phase, tally in self.phases.items() if tally.steps]
        lines = shown and [
            ("", *shown),
            ("steps", *(str(record[f"steps_{phase}"]) for phase in shown)),
            ("sent per step, kB", *(f"{record[f'bytes_per_step_{phase}'] / 1e3:.1f}" for phase in shown)),
            *(
                (f"{label}, ms", *(f"{record[f'ms_per_step_{phase}'][stage]:.2f}" for phase in shown))
                for stage, label in _LABELS.items()
            ),
        ]
        head = [f"loss {record['loss_first']:.3f} in the first epoch, {record['loss_last']:.3f} in the last"]
        head += [f"{label} {record[key]:.4f}" for key, label in self.labels.items() if key in record]
        if record["avg_sparsity"] is not None:
            head.append(f"sparsity {record['avg_sparsity']:.4f}, ratio {record['avg_compression_ratio']:.1f}")
        if self.skipped:
            head.append(f"{self.skipped} steps skipped")
        return ["summary: " + "; ".join(head), *map(_row, lines)]


def _row(cells):
    return f"  {cells[0]:<20}" + "".join(f"{cell:>12}" for cell in cells[1:])


def _stages(tally):
    return {**{stage: tally.milliseconds(stage) for stage in STAGES}, "total": 1e3 * tally.seconds / tally.steps}
