"""What a step did: the words and figures that everybody who speaks of a step uses."""

import math
from dataclasses import dataclass, field

BYTES_PER_ENTRY = 8  # an int32 index and a float32 value
STAGES = ("merge", "compression", "communication", "demerge", "device_to_host", "host_to_device")


@dataclass(frozen=True)
class Selection:
    """So many chosen entries stand for a gradient of so many elements."""

    elements: int
    count: int

    @property
    def sparsity(self):
        return 1 - self.count / max(1, self.elements)

    @property
    def compression_ratio(self):
        return self.elements / max(1, self.count)

    @property
    def communication_size(self):
        return self.count * BYTES_PER_ENTRY


@dataclass
class Report:
    """The last step, summed over the merged gradients. Norms are of this rank alone.

    `seconds` has the stages of `STAGES`, which do not overlap: copying gradients in, with norms, clipping and
    momentum; choosing and summing; exchanging; writing means and clearing residuals; copies from and to a device. On a
    device the first, second and fourth are known only if `Settings.timed` asks for them (NaN otherwise).
    """

    phase: str = "dense"
    skipped: bool = False
    grad_norm: float = 0.0  # before clipping
    target_k: int | None = None  # None while dense, like the next two
    selected_local: int | None = None
    selected_global: int | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    selections: dict = field(default_factory=dict)  # by merged gradient; of sparse ones alone
    seconds: dict = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    @property
    def selection(self):
        """Over all sparse reductions of the step; None if there was none."""
        every = self.selections.values()
        if not every:
            return None
        return Selection(sum(each.elements for each in every), sum(each.count for each in every))

    def add_sparse(self, name, selection, target_k, selected_local):
        self.phase = "sparse"
        self.selections[name] = selection
        self.target_k = (self.target_k or 0) + target_k
        self.selected_local = (self.selected_local or 0) + selected_local
        self.selected_global = (self.selected_global or 0) + selection.count

    def and_of(self, other):
        """Both as one: of two parts of a model."""
        both = Report("sparse" if "sparse" in (self.phase, other.phase) else "dense", self.skipped or other.skipped)
        both.grad_norm = math.hypot(self.grad_norm, other.grad_norm)
        for name in ("target_k", "selected_local", "selected_global", "bytes_sent", "bytes_received"):
            known = [value for value in (getattr(self, name), getattr(other, name)) if value is not None]
            setattr(both, name, sum(known) if known else None)
        both.selections = {**self.selections, **other.selections}
        both.seconds = {stage: self.seconds[stage] + other.seconds[stage] for stage in STAGES}
        return both
