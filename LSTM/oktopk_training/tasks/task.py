"""What every task says and does."""

import abc
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class TaskOptions:
    """Those that only some tasks have: fields made by `option` (oktopk/fields.py), and so on the command line."""

    def settled(self):
        """With the folders that they name looked for. What is wrong with them is a UserError."""
        return self


class Task(abc.ABC):
    """One rank's part of a task: the data that this rank reads, the model and how it is judged.

    `options` are the run's, with `data_dir`, `batch_size`, `hidden_size`, `hidden_layers`, `seed` and `torch_device`;
    `options.task` are its own, of the class `Options`.
    """

    name: ClassVar[str]  # the model, as --dnn calls it
    dataset: ClassVar[str]  # as --dataset calls it
    data_dir: ClassVar[str]  # where it is looked for
    data_source: ClassVar[str]  # what to do where it is not
    hidden_size: ClassVar[int]
    hidden_layers: ClassVar[int]
    max_grad_norm: ClassVar[float]  # longest averaged gradient
    model: ClassVar[type]  # model(**net.sizes) is the net again, without its weights
    figures: ClassVar[dict[str, str]]  # what a validation yields beside the loss, and what people call that
    headline: ClassVar[str]  # the figure that a better model lowers
    Options: ClassVar[type[TaskOptions]] = TaskOptions

    steps_per_epoch: int  # batches of this rank, as many on each
    size_of_data: str  # for the log
    fingerprint: str  # of the data, which must be the same on all ranks

    def __init__(self, options, rank=0, size=1):
        self.options, self.rank, self.size = options, rank, size

    @abc.abstractmethod
    def build(self):
        """The net, with a dictionary `sizes`."""

    @abc.abstractmethod
    def batches(self, epoch, first=0):
        """An iterator over this rank's batches, from the given one on."""

    @abc.abstractmethod
    def loss(self, net, batch):
        """A tensor to call backward on, and how many of the batch had an infinite loss, which counted as 0."""

    @abc.abstractmethod
    def validate(self, net):
        """A Counter of totals over this rank's part of the validation data. Those of all ranks are added up."""

    @abc.abstractmethod
    def summarise(self, totals):
        """The loss and `figures` of the totals of all ranks."""

    def state_dict(self):
        """What runs on from one batch to the next: tensors and plain values."""
        return {}

    def load_state_dict(self, state):  # noqa: B027 - most have none
        """Go on from there, after `batches` was called."""

    def learning_rate(self, base, epoch):
        return base

    def describe(self, figures):
        """One line about a validation."""
        said = [f"{label} {rounded(figures[key])}" for key, label in self.figures.items()]
        return ", ".join([f"loss {figures['loss']:.3f}", *said])


def rounded(figure):
    """As people read it: rates to a thousandth, what is large to a tenth."""
    return f"{figure:.{3 if abs(figure) < 10 else 1}f}"
