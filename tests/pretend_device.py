"""An accelerator that is none: device code runs on it, and what it would cost there is counted.

    attach()
    gradient = torch.randn(1000).to(NAME)
    with counting() as costs:
        gradient.abs().nonzero()
    costs.launches, costs.synchronisations, costs.bytes, costs.largest

To torch it is a backend like any other, in every thread: `torch.zeros(n, device=NAME)` is a tensor on it, and
parameters may lie there. Its memory is host memory in storages that say they are on the device; operations come to
`_run`, which has the CPU's kernels do them, and counts. As on a GPU, a tensor there has no numpy() and meets no CPU
tensor of one or more dimensions; new memory holds whatever it holds (here NaN); and work that was launched takes its
time (if `slowly` says so) only when somebody waits for it.

Counts are of torch's operations, not of kernels: one that sorts is one launch here and several on a GPU. They say
nothing about time. Needs torch's backends in Python, which 2.13 has.
"""

import time
from collections import Counter
from contextlib import contextmanager

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

NAME = "pretend"
ATTACHABLE = hasattr(backend_registration, "_setup_privateuseone_for_python_backend")
EMPTY = 0xFF  # in every byte: as float32 a NaN, as an index one that is nowhere

aten = torch.ops.aten
_NEW = {aten.empty.memory_format, aten.empty_strided.default}
_ONLY_WRITE = {"zero_", "fill_"}  # of what they change in place, they read nothing
_GATHER = {"index", "index_select", "gather", "take"}
_SCATTER = {"_index_put_impl_", "index_add", "index_copy", "index_fill", "scatter", "scatter_add"}
_HOST_MUST_KNOW = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


class Costs:
    """What was done on the device; counters go by operation.

    A view or new memory is no launch. Bytes are those read and written: of what is gathered from or scattered to, what
    is touched. A synchronisation is a copy between host and device, or a result whose size or value the host must know.
    """

    def __init__(self):
        self.launches, self.views, self.synchronisations, self.bytes_of = Counter(), Counter(), Counter(), Counter()
        self.largest = 0  # bytes of the largest tensor that was made
        self.waits = 0  # calls of the device module's `synchronize`

    @property
    def bytes(self):
        return self.bytes_of.total()


class _Device:
    """What torch asks of a device's module; and the work that is launched, but not waited for."""

    def __init__(self):
        self.listeners, self.seconds_each, self.pending = [], 0.0, 0.0

    def is_available(self):
        return True

    def is_initialized(self):
        return True

    def device_count(self):
        return 1

    def current_device(self):
        return 0

    def set_device(self, device):
        pass

    def manual_seed_all(self, seed):
        pass

    def _is_in_bad_fork(self):
        return False

    def synchronize(self, device=None):
        for costs in self.listeners:
            costs.waits += 1
        self.finish()

    def finish(self):
        time.sleep(self.pending)
        self.pending = 0.0

    def launch(self, name, size):
        self.pending += self.seconds_each
        for costs in self.listeners:
            costs.launches[name] += 1
            costs.bytes_of[name] += size

    def wait(self, name, size=0):
        for costs in self.listeners:
            costs.synchronisations[name] += 1
            costs.bytes_of[name] += size
        self.finish()

    def view(self, name):
        for costs in self.listeners:
            costs.views[name] += 1

    def make(self, size):
        for costs in self.listeners:
            costs.largest = max(costs.largest, size)


_device = _Device()
_libraries = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")


def attach():
    """Once in a process, for good: torch then has this device, and takes it for the accelerator of the machine."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_device)
    _libraries[0].fallback(_run, "PrivateUse1")
    _libraries[1].impl("_to_copy", _to_copy, "PrivateUse1")


@contextmanager
def counting():
    """Costs of what happens within."""
    costs = Costs()
    _device.listeners.append(costs)
    try:
        yield costs
    finally:
        _device.listeners.remove(costs)


@contextmanager
def slowly(seconds):
    """Every launch within takes so many seconds of the device's time."""
    _device.seconds_each = seconds
    try:
        yield
    finally:
        _device.seconds_each = 0.0


def pending():
    """Seconds of work that was launched, and that nobody has waited for."""
    return _device.pending


# ---- memory


def _is_here(value):
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def _host(value):
    """The CPU's tensor over the same memory; anything else as it is."""
    if not _is_here(value):
        return value
    memory = value.untyped_storage().memory
    return torch.empty(0, dtype=value.dtype).set_(memory, value.storage_offset(), value.shape, value.stride())


def _place(tensor, host):
    """Have a tensor on the device lie where a CPU tensor does; its storage keeps that memory."""
    memory = host.untyped_storage()
    here = torch._C._construct_storage_from_data_pointer(memory.data_ptr(), tensor.device, memory.nbytes())
    here.memory = memory
    _as_on_cpu(aten.set_.source_Storage_storage_offset, tensor, here, host.storage_offset(), host.shape, host.stride())
    _device.make(memory.nbytes())
    return tensor


def _here(host):
    return _place(torch._C._acc.create_empty_tensor((0,), host.dtype), host)


def _as_on_cpu(op, *arguments, **options):
    """With the CPU's kernel, on the tensors as they are: for what touches no element."""
    return op.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *arguments, **options)


# ---- operations


def _run(op, *arguments, **options):
    """What torch calls for every operation on the device for which it has no kernel that fits any device."""
    name = op._schema.name.removeprefix("aten::")
    if op.is_view:
        _device.view(name)
        return _as_on_cpu(op, *arguments, **options)
    if op in _NEW:
        host = op(*arguments, **options | {"device": "cpu", "pin_memory": False})
        host.untyped_storage().fill_(EMPTY)
        return _here(host)
    if op is aten._copy_from.default:
        return _copy(*arguments)
    if op is aten._local_scalar_dense.default:
        _device.wait("item", arguments[0].nbytes)
        return op(_host(arguments[0]))
    _refuse_strangers(name, arguments, options)
    return _compute(op, name, arguments, options)


def _to_copy(source, *, dtype=None, device=None, memory_format=None, **_):
    """There is no pinned memory here: a copy that need not block does."""
    copy = torch.empty_like(source, dtype=dtype, device=device, memory_format=memory_format or torch.preserve_format)
    return copy.copy_(source)


def _copy(source, destination, non_blocking=False):
    _host(destination).copy_(_host(source))
    if source.device == destination.device:
        _device.launch("copy", source.nbytes + destination.nbytes)
    elif _is_here(source):
        _device.wait("to host", source.nbytes)
    else:
        _device.wait("to device", destination.nbytes)
    return destination


def _refuse_strangers(name, arguments, options):
    for each in tree_leaves((arguments, options)):
        if isinstance(each, torch.Tensor) and not _is_here(each) and each.dim():
            raise RuntimeError(
                f"{name}: a tensor of shape {tuple(each.shape)} is on the {each.device}, others are here"
            )


def _compute(op, name, arguments, options):
    hosts = {id(each): (each, _host(each)) for each in tree_leaves((arguments, options)) if _is_here(each)}

    def on_host(value):
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return hosts[id(value)][1] if id(value) in hosts else value

    operands = [_as_tensor(each, value) for each, value in zip(op._schema.arguments, arguments, strict=False)]
    results = op(*tree_map(on_host, operands), **tree_map(on_host, options))
    given = {id(host): (each, host) for each, host in hosts.values()}

    def back(value):
        """A result that was given as `out`, or that is changed in place, is the tensor that was given."""
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in given:
            return _here(value)
        each, host = given[id(value)]
        return each if each.shape == host.shape else _place(each, host)

    _device.launch(name, _touched(op, name, arguments, options, tree_leaves(results)))
    if _HOST_MUST_KNOW.intersection(op.tags):
        _device.wait(name)
    return tree_map(back, results)


def _as_tensor(argument, value):
    """Numbers that the dispatcher has made of tensors without dimensions, as such again."""
    if str(argument.type) == "Tensor" and isinstance(value, int | float):
        return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
    return value


def _touched(op, name, arguments, options, results):
    """Bytes that are read and written."""
    values = dict(zip((each.name for each in op._schema.arguments), arguments, strict=False)) | options
    outs = {each.name for each in op._schema.arguments if each.is_out}
    read = {id(t): t.nbytes for key in values.keys() - outs for t in tree_leaves(values[key]) if _is_here(t)}
    written = sum(each.nbytes for each in results if isinstance(each, torch.Tensor))
    others = sum(read.values()) - read.get(id(arguments[0]), 0)
    if name in _GATHER:
        return others + 2 * written
    if name in _SCATTER:
        return 2 * others
    return (0 if name in _ONLY_WRITE else sum(read.values())) + written
