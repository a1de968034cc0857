"""The reducer that existing training loops drive: `oktopk.GradientAverager` with the contract's names.

It may work in a thread of its own. A loop hands it gradients and names and takes the means:

    reducer = AllReducer(model.named_parameters(), lock, key_lock, compressors["oktopk"], sparse=True,
                         density=0.02, msg_queue=names, msg_queue2=done)
    threading.Thread(target=reducer.run, daemon=True).start()
    ...
    for name, parameter in model.named_parameters():
        reducer.add_tensor(name, parameter.grad)
        names.put(name)
    done.get()                                   # 'DONE': every parameter has been reduced once
    for name, parameter in model.named_parameters():
        parameter.grad = reducer.get_result(name)
"""

import atexit
import inspect
import logging
import queue
import threading
import time
import weakref

from oktopk import GradientAverager, ReducerError, Settings, compressors
from oktopk.devices import use
from oktopk.registry import find_compressor

__all__ = ["AllReducer", "ReducerError", "compressors"]

log = logging.getLogger("oktopk.reducer")

STOP, DONE = "STOP", "DONE"
EXIT_PATIENCE = 5.0  # seconds that the interpreter's exit waits for a reducer's thread

_running = weakref.WeakKeyDictionary()  # thread -> its queue of names


@atexit.register
def _end_running_threads():
    """A thread that is still at work while the interpreter takes itself apart can crash the process."""
    for thread, names in list(_running.items()):
        names.put(STOP)
        thread.join(EXIT_PATIENCE)


class AllReducer(GradientAverager):
    """See the module's text for how it is driven; `DistributedOptimizer` calls `average` instead, without a thread.

    `lock`, `key_lock` and `layerwise_times` are taken for the sake of loops that pass them: the queues order the two
    threads, and merging needs no timings. Options beyond `trainer` are keyword-only: those of `Settings`, or `settings`
    whole in their place.
    """

    def __init__(
        self,
        named_parameters,
        lock,
        key_lock,
        compression,
        sparse=False,
        err_callback=None,
        layerwise_times=None,
        sigma_scale=Settings.sigma_scale,
        density=0.001,
        train_epoch=0,
        norm_clip=None,
        msg_queue=None,
        msg_queue2=None,
        writer=None,
        trainer=None,
        *,
        communicator=None,
        settings=None,
        **options,
    ):
        if settings is None:
            settings = Settings(density=density, sigma_scale=sigma_scale, norm_clip=norm_clip, **options)
        compressor = find_compressor(compression)
        super().__init__(named_parameters, compressor if sparse else compressors["none"], settings, communicator)
        if compressor.is_sparse and not sparse and self.rank() == 0:
            log.warning(
                f"every step will be dense: {compressor.name} was given, but sparse (of DistributedOptimizer: "
                "is_sparse) is False; set it to True, or give compressors['none']"
            )
        self.msg_queue = msg_queue if msg_queue is not None else queue.Queue()
        self.msg_queue2 = msg_queue2 if msg_queue2 is not None else queue.Queue()
        self.train_epoch, self.trainer = train_epoch, trainer
        self._err_callback, self._writer = err_callback, writer
        self._arrived, self._error, self._stopped, self._merging = set(), None, False, 0.0

    # The contract's names.

    @property
    def _allreduce_counter(self):
        """Merged name -> reductions done."""
        return {reducer.merged.name: reducer.reductions for reducer in self._reducers}

    def add_tensor(self, name, tensor):
        """Hand in a gradient. One that lies in the merged buffer already (see `view`) is not copied."""
        self._raise_error()
        start = time.perf_counter()
        self.hand_in(name, tensor)
        self._merging += time.perf_counter() - start

    def get_result(self, name):
        """The mean over the ranks, in the parameter's shape, until the next `add_tensor` overwrites it."""
        self._raise_error()
        return self.result(name)

    def run(self):
        """Take names until 'STOP'; whenever every parameter has come, reduce them all and answer 'DONE'."""
        if threading.current_thread() is not threading.main_thread():
            _running[threading.current_thread()] = self.msg_queue
        use(self.device)  # a new thread's current device is the first one, wherever the gradients are
        try:
            while (name := self.msg_queue.get()) != STOP:
                self.view(name)
                self._arrived.add(name)
                if len(self._arrived) == len(self._views):
                    self._arrived.clear()
                    merging, self._merging = self._merging, 0.0
                    self.average(merging)
                    self.msg_queue2.put(DONE)
            self._stopped = True
            self.close()
        except BaseException as error:  # noqa: BLE001 - it is raised again where somebody waits for the result
            self._call_back(error)
            self.msg_queue2.put(DONE)  # whoever waits wakes up, and meets the error in `get_result`

    def stop(self):
        """End `run`; whoever hands in gradients after that is told so."""
        self._stopped = True
        self.msg_queue.put(STOP)

    def average(self, *arguments, **options):
        try:
            report = super().average(*arguments, **options)
        except BaseException as error:
            self._call_back(error)
            raise
        for name, selection in report.selections.items():
            self._tell(name, selection)
        return report

    def _raise_error(self):
        if self._error is not None:
            raise ReducerError(f"the reducer failed: {self._error}") from self._error
        if self._stopped:
            raise ReducerError("the reducer was stopped: make a new one to go on")

    def _call_back(self, error):
        """Remember the error and tell `err_callback`, which may take it, or (number of ranks, rank), or nothing."""
        told, self._error = self._error is error, error
        if self._err_callback is None or told:
            return
        signature = inspect.signature(self._err_callback)
        for arguments in ((error,), (self.size(), self.rank()), ()):
            try:
                signature.bind(*arguments)
            except TypeError:
                continue
            try:
                self._err_callback(*arguments)
            except BaseException:  # whatever it does, the error that it was told of is the one that counts
                log.exception("err_callback failed")
            return
        log.error("err_callback was not called: it takes neither an error, nor (ranks, rank), nor nothing")

    def _tell(self, name, selection):
        """What a sparse reduction put into its result, to the trainer's lists and to the writer."""
        figures = (selection.sparsity, selection.compression_ratio, selection.communication_size)
        if self._writer is not None:
            step = self._allreduce_counter[name]
            for tag, value in zip(("sparsity", "compression_ratio", "communication_size"), figures, strict=True):
                self._writer.add_scalar(f"reducer/{name}/{tag}", value, step)
        if self.trainer is None:
            return
        try:
            lists = self.trainer.sparsities, self.trainer.compression_ratios, self.trainer.communication_sizes
        except AttributeError as error:
            self._say_once("trainer", f"the trainer takes no sparse metrics: {error}")
            return
        for values, value in zip(lists, figures, strict=True):
            values.append(value)
