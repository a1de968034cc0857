"""A step of training, in the words that the log, the breakdown, the summary and metrics.jsonl all use."""

from collections import Counter
from dataclasses import dataclass, field, fields

from oktopk import report

REDUCTION = ("backward", *report.STAGES)  # what an epoch's breakdown shows
STAGES = ("data", "forward", *REDUCTION, "update")  # they do not overlap


@dataclass
class Step:
    """Loss, norm and traffic are of this rank; what does not apply is None. Its fields are those of `iter` records."""

    iter: int
    epoch: int
    phase: str = "dense"
    skipped: bool = False
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    sparsity: float | None = None
    compression_ratio: float | None = None
    communication_size: int | None = None
    target_k: int | None = None
    selected_local: int | None = None
    selected_global: int | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    t_iter: float = 0.0
    seconds: dict = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    def record(self):
        """As metrics.jsonl has it, which sums stages up: the contract's t_comm, say, includes copies to the host."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "seconds"}
        seconds = self.seconds
        return {
            **own,
            "t_data": seconds["data"],
            "t_compute": seconds["forward"] + seconds["backward"],
            "t_select": seconds["compression"],
            "t_comm": seconds["communication"] + seconds["device_to_host"] + seconds["host_to_device"],
            "t_apply": seconds["demerge"] + seconds["update"],
        }


def step_of(number, epoch, loss, trainer, done, seconds):
    """From what the trainer has and what the reducer reports to have `done`. A skipped step has selected nothing."""
    selection = None if done.skipped else done.selection
    selected = selection and {
        "sparsity": selection.sparsity,
        "compression_ratio": selection.compression_ratio,
        "communication_size": selection.communication_size,
        "target_k": done.target_k,
        "selected_local": done.selected_local,
        "selected_global": done.selected_global,
    }
    return Step(
        iter=number,
        epoch=epoch,
        phase=done.phase,
        skipped=trainer.grad_norm is None,
        loss=loss,
        lr=trainer.lr,
        grad_norm=trainer.grad_norm,
        bytes_sent=done.bytes_sent,
        bytes_received=done.bytes_received,
        t_iter=seconds,
        seconds={**dict.fromkeys(STAGES, 0.0), **trainer.seconds, **done.seconds},
        **(selected or {}),
    )


@dataclass
class Tally:
    """Sums over steps."""

    steps: int = 0
    loss: float = 0.0
    bytes_sent: int = 0
    seconds: float = 0.0
    stages: Counter = field(default_factory=Counter)

    def add(self, step):
        self.steps += 1
        self.loss += step.loss
        self.bytes_sent += step.bytes_sent
        self.seconds += step.t_iter
        self.stages.update(step.seconds)

    def state_dict(self):
        return {**vars(self), "stages": dict(self.stages)}

    @classmethod
    def of(cls, state):
        return cls(**{**state, "stages": Counter(state["stages"])})

    def milliseconds(self, stage):
        return 1e3 * self.stages[stage] / max(1, self.steps)
