"""What a run says about itself: the plan at its start, the stages of an epoch's steps, the summary at its end."""

import resource
from collections import Counter
from dataclasses import dataclass, field

import torch

KIB_PER_MIB = 1024  # Linux gives a process's memory in KiB
BYTES_PER_ENTRY = 8  # an int32 index and a float32 value
REDUCTION = ("backward", "merge", "compression", "communication", "demerge", "device_to_host", "host_to_device")
STAGES = ("data", "forward", *REDUCTION, "update")  # of a step


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
    dense = min(steps, options.warmup_iters) if options.is_sparse else steps
    return Plan(steps_per_epoch, options.max_epochs, dense)


def so_many_ranks(count):
    return "1 rank" if count == 1 else f"{count} ranks"


def announce_plan(log, plan, options, ranks):
    log.info(
        "%s x batch %d%s = %d a step: %d steps an epoch, %d steps in %d epochs",
        so_many_ranks(ranks.size),
        options.batch_size,
        f" x {options.nsteps_update} batches" if options.nsteps_update > 1 else "",
        options.batch_size * options.nsteps_update * ranks.size,
        plan.steps_per_epoch,
        plan.steps,
        plan.epochs,
    )
    if not options.compression:
        log.info("every step is dense; --compression lets a compressor choose what is sent")
    elif not options.is_sparse:
        log.info("every step is dense: --compressor %s sends everything", options.compressor)
    elif not plan.dense:
        log.info("every step is sparse: %s at density %g, without a warm-up", options.compressor, options.density)
    elif plan.sparse:
        epoch, step = plan.start
        log.info(
            "the first %d steps are dense; %s at density %g takes over at step %d, which is step %d of epoch %d: "
            "the last %d steps are sparse",
            *(plan.dense, options.compressor, options.density, plan.dense, step, epoch, plan.sparse),
        )
    else:
        log.warning(
            "this run is too short to become sparse: it has %d steps, and the first %d are dense (--warmup-iters); "
            "give it more --max-epochs than %d, or a shorter warm-up",
            *(plan.steps, options.warmup_iters, options.warmup_iters // plan.steps_per_epoch),
        )
    clip = "no clipping before" if options.norm_clip is None else f"clipping to {options.norm_clip:g}/sqrt(P) before"
    log.info("gradients: %s the reduction, to %g after it", clip, options.max_grad_norm)


# ---- a step


def step_record(loss, trainer, report, seconds):
    """The figures of a step as metrics.jsonl has them: loss and traffic are of this rank."""
    return {
        "phase": report.phase,
        "skipped": trainer.grad_norm is None,
        "loss": loss,
        "lr": trainer.lr,
        "grad_norm": trainer.grad_norm,
        **_selection(report),
        "bytes_sent": report.bytes_sent,
        "bytes_received": report.bytes_received,
        "t_iter": seconds,
        "t_data": trainer.seconds["data"],
        "t_compute": trainer.seconds["compute"],
        "t_select": report.t_select,
        "t_comm": report.t_comm,
        "t_apply": report.t_apply + trainer.seconds["apply"],
    }


def _selection(report):
    """Over all merged gradients at once; while dense, and where the ranks skipped the step, none of it exists."""
    if report.phase != "sparse" or report.skipped:
        return {}
    count = report.selected_global
    return {
        "sparsity": 1 - count / report.elements,
        "compression_ratio": report.elements / max(1, count),
        "communication_size": count * BYTES_PER_ENTRY,
        "target_k": report.target_k,
        "selected_local": report.selected_local,
        "selected_global": count,
    }


def stage_seconds(seconds, report):
    """The seconds of a step by stage; they do not overlap."""
    staged = report.t_to_host + report.t_to_device
    return {
        "data": seconds["data"],
        "forward": seconds["compute"] - seconds["backward"],
        "backward": seconds["backward"],
        "merge": report.t_merge + report.t_inspect,
        "compression": report.t_select,
        "communication": report.t_comm - staged,
        "demerge": report.t_apply,
        "device_to_host": report.t_to_host,
        "host_to_device": report.t_to_device,
        "update": seconds["apply"],
    }


@dataclass
class Tally:
    """Sums over steps."""

    steps: int = 0
    loss: float = 0.0
    bytes_sent: int = 0
    seconds: float = 0.0
    stages: Counter = field(default_factory=Counter)

    def add(self, record, stages):
        self.steps += 1
        self.loss += record["loss"]
        self.bytes_sent += record["bytes_sent"]
        self.seconds += record["t_iter"]
        self.stages.update(stages)

    def milliseconds(self, stage):
        return 1e3 * self.stages[stage] / max(1, self.steps)


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

    def step(self, record, stages):
        """Those that were skipped are counted apart, by `epoch`: they sent nothing to speak of."""
        if not record["skipped"]:
            self.phases[record["phase"]].add(record, stages)

    def epoch(self, loss, sparse_metrics, skipped):
        self.losses.append(loss)
        self.sparsities += sparse_metrics["sparsity"]
        self.ratios += sparse_metrics["compression_ratio"]
        self.skipped += skipped

    def validation(self, figures):
        self.figures = figures

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
