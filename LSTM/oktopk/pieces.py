"""A model whose gradients come piece by piece, each reduced on its own while others are still to come."""

import queue
import threading
from functools import reduce

import torch

from .averager import GradientAverager, ReducerError
from .registry import FASTEST
from .report import Report
from .shares import PLACE, insist_on_the_place
from .wire import AUTO


class PiecewiseAverager:
    """An averager for each piece: a bucket of DDP's, or a module that FSDP2 has sharded.

    Pieces may be cut anew: what is kept from step to step follows the parameters, by name.
    """

    def __init__(self, compressor, settings, communicator):
        if compressor is FASTEST:
            raise ValueError(f"{AUTO!r} chooses for a whole model, not for parts of it: name a compressor")
        self.compressor, self.settings, self.communicator = compressor, settings, communicator
        self._averagers = {}  # names of a piece's parameters -> its averager
        self._states = {}  # of parameters that no averager has now
        self._reports = {}
        self._jobs, self._worker, self._closed = queue.Queue(), None, False

    def average(self, gradients, abstains=False, used=None):
        """Make the gradients of a piece, given by (name, parameter), the means over the ranks, in place."""
        averager = self._averager_of([named for named, _ in gradients])
        for (name, _), gradient in gradients:
            averager.hand_in(name, gradient)
        report = averager.average(scale=1, abstains=abstains, used=used)
        self._note(tuple(name for (name, _), _ in gradients), report)
        for (name, _), gradient in gradients:
            gradient.fill_(torch.inf) if report.skipped else gradient.copy_(averager.view(name))

    def average_soon(self, gradients, abstains, used, buffer, future):
        """The same in a thread of its own, one piece after another; the future then has the buffer."""
        if self._closed:
            raise ReducerError("the state was closed: make a new one to go on")
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, daemon=True)
            self._worker.start()
        self._jobs.put((gradients, abstains, used, buffer, future))

    def _work(self):
        failure = None
        while (job := self._jobs.get()) is not None:
            gradients, abstains, used, buffer, future = job
            try:
                if failure is None:
                    self.average(gradients, abstains, used)
            except Exception as error:  # noqa: BLE001 - it is raised where the future is waited for
                failure = error
            future.set_result(buffer) if failure is None else future.set_exception(failure)

    def _averager_of(self, named_parameters):
        names = tuple(name for name, _ in named_parameters)
        if names not in self._averagers:
            for others in [others for others in self._averagers if set(others) & set(names)]:
                self._states.update(self._averagers.pop(others).state_dict()["parameters"])
            averager = GradientAverager(named_parameters, self.compressor, self.settings, self.communicator)
            found = {name: self._states.pop(name) for name in names if name in self._states}
            if found:
                averager.load_state_dict({**averager.state_dict(), "parameters": found})
            self._averagers[names] = averager
        return self._averagers[names]

    def _note(self, piece, report):
        if piece in self._reports:  # a new step has begun
            self._reports = {}
        self._reports[piece] = report

    @property
    def last_step(self):
        return reduce(Report.and_of, self._reports.values()) if self._reports else None

    def state_dict(self):
        parameters = dict(self._states)
        for averager in self._averagers.values():
            parameters.update(averager.state_dict()["parameters"])
        return {"parameters": parameters, "compressors": {}, PLACE: (self.communicator.rank, self.communicator.size)}

    def load_state_dict(self, state):
        insist_on_the_place(state, self.communicator.rank, self.communicator.size)
        self._averagers, self._states = {}, dict(state["parameters"])

    def close(self):
        if self._worker is not None and not self._closed:
            self._jobs.put(None)
            self._worker.join()
        self._closed = True
