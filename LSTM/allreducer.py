"""The reducer: merges gradients, warms up densely, feeds errors back, and lets an algorithm do the rest.

It works in a thread of its own. A training loop hands it gradients and names and takes the means:

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
import math
import queue
import threading
import time
import weakref

import torch

from agreement import insist_on_the_same_settings, warn_of_other_parameters
from algorithms import Accumulated
from algorithms.dense import Dense
from comm import Communicator, MeasuredCommunicator, MPICommunicator
from compression import ReductionOptions, find_compressor
from launch import ranks_that_mpi_does_not_see
from merged import merge, zeros
from sparse import ops_for
from step_report import StepReport

log = logging.getLogger("oktopk.reducer")

WARMUP_ITERS = 128  # early gradients move too fast for a sparse choice to be any good
MAX_SKIPS_IN_A_ROW = 10
BYTES_PER_ENTRY = 8  # an int32 index and a float32 value
STOP, DONE = "STOP", "DONE"
INT32_LIMIT = 2**31 - 1
FLOAT32_LIMIT = torch.finfo(torch.float32).max
EXIT_PATIENCE = 5.0  # seconds that the interpreter's exit waits for a reducer's thread

_running = weakref.WeakKeyDictionary()  # thread -> its queue of names


@atexit.register
def _end_running_threads():
    """A thread that is still at work while the interpreter takes itself apart can crash the process."""
    for thread, names in list(_running.items()):
        names.put(STOP)
        thread.join(EXIT_PATIENCE)


class ReducerError(RuntimeError):
    """A reduction failed in the reducer's thread; the cause, with its traceback, is this error's __cause__."""


class AllReducer:
    """See the module's text for how it is driven.

    `lock`, `key_lock` and `layerwise_times` are taken for the sake of loops that pass them: the queues order the two
    threads, and merging needs no timings. Options beyond `trainer` are keyword-only.

    `momentum` above 0 is Deep Gradient Compression's momentum correction: each rank accumulates its own velocity and
    reduces that in place of the gradient, for an optimizer without momentum. While dense, their mean is what the
    optimizer would have stepped by, `nesterov` or not. What a sparse reduction delivers is cleared from the velocity
    too (DGC, 3.3).
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
        sigma_scale=2.5,
        density=0.001,
        train_epoch=0,
        norm_clip=None,
        msg_queue=None,
        msg_queue2=None,
        writer=None,
        trainer=None,
        *,
        warmup_iters=WARMUP_ITERS,
        threshold="exact",
        threshold_period=32,
        region_period=64,
        merge_size=None,
        momentum=0.0,
        nesterov=False,
        communicator=None,
    ):
        self._options = ReductionOptions(density, sigma_scale, threshold, threshold_period, region_period)
        _check_settings(warmup_iters, norm_clip, merge_size, momentum)
        self.msg_queue = msg_queue if msg_queue is not None else queue.Queue()
        self.msg_queue2 = msg_queue2 if msg_queue2 is not None else queue.Queue()
        self.train_epoch = train_epoch
        self.trainer = trainer
        self.skipped_steps = 0
        self.last_step = StepReport()
        self._compressor = find_compressor(compression)
        self._sparse = sparse and self._compressor.is_sparse
        self._warmup_iters = warmup_iters
        self._norm_clip = norm_clip
        self._momentum, self._nesterov = momentum, nesterov
        self._err_callback = err_callback
        self._writer = writer
        trainable = [(name, p) for name, p in named_parameters if p.requires_grad]
        self._merged = merge(trainable, merge_size)
        self._unchecked = [parameter for _, parameter in trainable]
        self._dtypes = {name: parameter.dtype for name, parameter in trainable}
        self._owns_communicator = not isinstance(communicator, Communicator)
        self.communicator = MeasuredCommunicator(
            MPICommunicator(communicator) if self._owns_communicator else communicator
        )
        unseen = ranks_that_mpi_does_not_see(self.communicator.size) if communicator is None else None
        if unseen:
            log.warning(unseen)
        self._views = {name: view for merged in self._merged for name, view in merged.views.items()}
        self._allreduce_counter = {merged.name: 0 for merged in self._merged}
        self._arrived = set()
        self._report = StepReport()
        self._error = None
        self._stopped = False
        self._skips_in_a_row = 0
        self._said = set()
        shapes = [(name, tuple(parameter.shape)) for name, parameter in trainable]
        settings = (self._compressor.name, self._sparse, warmup_iters, norm_clip, merge_size, momentum, nesterov)
        insist_on_the_same_settings(self.communicator, (shapes, self._options, settings))

    # The contract's names: what a training loop calls.

    def rank(self):
        return self.communicator.rank

    def size(self):
        return self.communicator.size

    @property
    def has_momentum(self):
        return self._momentum > 0

    def get_current_density(self):
        """The share of the gradient that the next reduction lets through: 1 as long as it is dense."""
        dense = all(not self._is_sparse_now(merged) for merged in self._merged)
        return 1.0 if dense else self._options.density

    def add_tensor(self, name, tensor):
        """Hand in a gradient. One that lies in the merged buffer already (see `view`) is not copied."""
        self._raise_error()
        start = time.perf_counter()
        view = self.view(name)
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"the gradient of {name} is {tensor!r}: hand in a tensor, of zeros if there is none")
        if tensor.data_ptr() != view.data_ptr():
            view.copy_(tensor.reshape(view.shape))
        elif tensor.stride() != view.stride():  # a transposed view, say, of the place itself
            view.copy_(tensor.clone().reshape(view.shape))
        self._report.t_merge += time.perf_counter() - start

    def get_result(self, name):
        """The mean over the ranks, in the parameter's shape, until the next `add_tensor` overwrites it."""
        self._raise_error()
        return self.view(name).to(self._dtypes[name])

    def view(self, name):
        """The place of a parameter's gradient in the merged buffer."""
        if name not in self._views:
            raise KeyError(f"no parameter named {name!r} was given to the reducer")
        return self._views[name]

    def zero_gradients(self):
        for merged in self._merged:
            merged.gradient.zero_()

    def run(self):
        """Take names until 'STOP'; whenever every parameter has come, reduce them all and answer 'DONE'."""
        if threading.current_thread() is not threading.main_thread():
            _running[threading.current_thread()] = self.msg_queue
        try:
            while (name := self.msg_queue.get()) != STOP:
                self.view(name)
                self._arrived.add(name)
                if len(self._arrived) == len(self._views):
                    self._arrived.clear()
                    self._step()
                    self.msg_queue2.put(DONE)
            if self._owns_communicator:
                self.communicator.close()
        except BaseException as error:  # noqa: BLE001 - it is raised again where somebody waits for the result
            self._error = error
            self.msg_queue2.put(DONE)  # whoever waits wakes up, and meets the error in `get_result`
            self._call_back(error)

    def stop(self):
        """End `run`; whoever hands in gradients after that is told so."""
        self._stopped = True
        self.msg_queue.put(STOP)

    # One step.

    def _raise_error(self):
        if self._error is not None:
            raise ReducerError(f"the reducer's thread failed: {self._error}") from self._error
        if self._stopped:
            raise ReducerError("the reducer was stopped: make a new one to go on")

    def _call_back(self, error):
        """Tell `err_callback`, which may take the error, or (number of ranks, rank), or nothing."""
        if self._err_callback is None:
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

    def _step(self):
        if self._unchecked:  # before the first step, for a loop may share them after it has made its reducer
            warn_of_other_parameters(self.communicator, self._unchecked)
            self._unchecked = None
        report, self._report = self._report, StepReport()
        traffic_before, staging_before = self.communicator.total(), self.communicator.staging
        with torch.no_grad():
            if self._agree_that_gradients_are_finite(report):
                for merged in self._merged:
                    self._reduce(merged, report)
        traffic = self.communicator.total()
        report.bytes_sent = traffic.sent - traffic_before.sent
        report.bytes_received = traffic.received - traffic_before.received
        staging = self.communicator.staging
        report.t_to_host = staging.to_host - staging_before.to_host
        report.t_to_device = staging.to_device - staging_before.to_device
        self.last_step = report

    def _agree_that_gradients_are_finite(self, report):
        """Inspect and clip this rank's gradient; False if any rank's is not finite: then nobody's counts.

        One that is so long that the sum over the ranks could leave float32 is as good as not finite.
        """
        start = time.perf_counter()
        squares = sum(ops_for(merged.gradient.device).moments(merged.gradient)[1] for merged in self._merged)
        report.grad_norm = norm = math.sqrt(squares)
        if self._norm_clip is not None and math.isfinite(norm):
            norm = self._clip(norm)
        report.t_inspect = time.perf_counter() - start
        broken = torch.tensor([0 if norm * self.size() < FLOAT32_LIMIT else 1])  # NaN is below nothing
        self._timed_allreduce(broken, report)
        if not broken.item():
            self._skips_in_a_row = 0
            return True
        self._skip(report)
        return False

    def _timed_allreduce(self, flag, report):
        start = time.perf_counter()
        self.communicator.allreduce(flag, op="max")
        report.t_comm += time.perf_counter() - start

    def _clip(self, norm):
        """To norm_clip / sqrt(P), so that the sum of P independent gradients keeps within norm_clip (DGC, 3.2)."""
        limit = self._norm_clip / math.sqrt(self.size())
        if norm > limit:
            for merged in self._merged:
                merged.gradient.mul_(limit / norm)
        return min(norm, limit)

    def _skip(self, report):
        report.skipped = True
        report.phase = "sparse" if any(map(self._is_sparse_now, self._merged)) else "dense"
        self.zero_gradients()
        self.skipped_steps += 1
        self._skips_in_a_row += 1
        self._say_once(
            ("skip", self.train_epoch),
            f"epoch {self.train_epoch}: a gradient was not finite; this step is skipped on all ranks",
        )
        if self._skips_in_a_row >= MAX_SKIPS_IN_A_ROW:
            raise FloatingPointError(
                f"gradients were not finite in {MAX_SKIPS_IN_A_ROW} steps in a row: "
                "lower the learning rate, or look for infinite values in the input"
            )

    def _is_sparse_now(self, merged):
        return self._sparse and self._allreduce_counter[merged.name] >= self._warmup_iters

    def _reduce(self, merged, report):
        report.elements += merged.size
        if self._momentum:
            start = time.perf_counter()
            merged.gather_momentum(self._momentum, self._nesterov)
            report.t_inspect += time.perf_counter() - start
        if self._is_sparse_now(merged):
            self._reduce_sparse(merged, report)
        else:
            start = time.perf_counter()
            self._dense().reduce(Accumulated(merged.gradient))
            report.t_comm += time.perf_counter() - start
        self._allreduce_counter[merged.name] += 1

    def _dense(self):
        return Dense(self.communicator, None, None, None, None, None)

    def _reduce_sparse(self, merged, report):
        ops = ops_for(merged.gradient.device)
        if merged.algorithm is None:
            _check_indices_fit(merged)
            merged.residual = zeros(merged.size, merged.gradient.device)
            merged.algorithm = self._compressor.make(self.communicator, ops, merged.size, self._options)
        start, comm_before = time.perf_counter(), self.communicator.total().seconds
        chooser = merged.algorithm.chooser
        candidates = ops.accumulate(merged.residual, merged.gradient, chooser.bound, chooser.room)
        reduction = merged.algorithm.reduce(Accumulated(merged.residual, candidates))
        reduced, comm_seconds = time.perf_counter(), self.communicator.total().seconds - comm_before
        feed_back(ops, merged.residual, reduction)
        if merged.velocity is not None:
            ops.put_zero(merged.velocity, reduction.delivered)
        deliver(ops, merged.gradient, reduction)
        report.t_comm += comm_seconds
        report.t_select += reduced - start - comm_seconds
        report.t_apply += time.perf_counter() - reduced
        report.phase = "sparse"
        report.target_k = (report.target_k or 0) + merged.algorithm.k
        report.selected_local = (report.selected_local or 0) + reduction.selected_local
        report.selected_global = (report.selected_global or 0) + reduction.selected_global
        self._tell_trainer(merged, reduction.selected_global)

    # What others hear.

    def _tell_trainer(self, merged, count):
        sparsity, ratio, size = 1 - count / merged.size, merged.size / max(1, count), count * BYTES_PER_ENTRY
        if self._writer is not None:
            step = self._allreduce_counter[merged.name]
            for tag, value in (("sparsity", sparsity), ("compression_ratio", ratio), ("communication_size", size)):
                self._writer.add_scalar(f"reducer/{merged.name}/{tag}", value, step)
        if self.trainer is None:
            return
        try:
            lists = self.trainer.sparsities, self.trainer.compression_ratios, self.trainer.communication_sizes
        except AttributeError as error:
            self._say_once("trainer", f"the trainer takes no sparse metrics: {error}")
            return
        for values, value in zip(lists, (sparsity, ratio, size), strict=True):
            values.append(value)

    def _say_once(self, key, message):
        if key not in self._said:
            self._said.add(key)
            log.warning(message)


def feed_back(ops, residual, reduction):
    """Error feedback: what was delivered leaves the residual, what was dropped on the way comes back."""
    ops.put_zero(residual, reduction.delivered)
    for part in reduction.returned or ():
        ops.add(residual, part)


def deliver(ops, gradient, reduction):
    """Write the mean into the gradient's buffer, which `accumulate` has left all zero."""
    if reduction.dense_mean is not None:
        gradient.copy_(reduction.dense_mean)
    else:
        if not bool(torch.isfinite(reduction.mean.values).all()):
            raise FloatingPointError("the sum of finite gradients is beyond float32: lower the loss's scale")
        ops.put(gradient, reduction.mean)


def _check_settings(warmup_iters, norm_clip, merge_size, momentum):
    if not warmup_iters >= 0:
        raise ValueError(f"warmup_iters is 0 or more, not {warmup_iters}")
    if norm_clip is not None and not norm_clip > 0:
        raise ValueError(f"norm_clip is above 0, or None, not {norm_clip}")
    if merge_size is not None and not merge_size > 0:
        raise ValueError(f"merge_size is above 0, or None, not {merge_size}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum is from 0 to below 1, not {momentum}")


def _check_indices_fit(merged):
    if merged.size > INT32_LIMIT:
        raise OverflowError(
            f"the merged gradient {merged.name} has {merged.size} elements, and indices are int32 (at most "
            f"{INT32_LIMIT}): set merge_size, so that parameters are merged into several smaller gradients"
        )
