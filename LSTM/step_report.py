"""What the reducer says about a step."""

from dataclasses import dataclass


@dataclass
class StepReport:
    """What the last step did, summed over the merged gradients. Times are seconds, norms are of this rank alone."""

    phase: str = "dense"
    skipped: bool = False
    elements: int = 0  # of the gradients that were reduced
    grad_norm: float = 0.0  # before clipping
    target_k: int | None = None
    selected_local: int | None = None
    selected_global: int | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    t_merge: float = 0.0  # copying gradients in
    t_inspect: float = 0.0  # norm, finiteness, clipping, momentum
    t_select: float = 0.0  # everything of an algorithm but its communication
    t_comm: float = 0.0  # the next two included
    t_to_host: float = 0.0
    t_to_device: float = 0.0
    t_apply: float = 0.0  # writing the mean, clearing residuals
