"""torch.distributed: Gloo between CPUs, NCCL between devices, by the same calls; no MPI needed.

Under torchrun, in a program that has initialised a process group itself, and under any other launcher that tells ranks
apart once MASTER_ADDR and MASTER_PORT say where rank 0 is.
"""

import atexit
import os
import sys
import weakref
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist

from .. import starting
from ..communicator import Communicator, connected
from ..launchers import LostRanks, launched, rendezvous_is_known
from ..lent import Lent

FAILURE = "oktopk/failure"  # the store's key under which a rank that fails says why
_THROUGH_THE_HOST = ("gloo", "mpi", "fake")  # backends that are given host memory, whatever devices they say they take


class ProcessGroupCommunicator(Communicator):
    """Over a group of its own with the ranks of `group`. All that is not summed travels as bytes, in uneven parts."""

    def __init__(self, group, is_part=False):
        """A part is a group that was made for it alone."""
        by_device = _backends_of(group)
        self._members, self._is_part = dist.get_process_group_ranks(group), is_part
        self._group = group if is_part else _own_group(group, tuple(self._members))
        _open.add(self)
        if not is_part:
            _lent.note(tuple(self._members), self._group, self)
        super().__init__(dist.get_rank(group), dist.get_world_size(group))
        self._direct = {device for device, backend in by_device.items() if backend not in _THROUGH_THE_HOST} | {"cpu"}
        if by_device.get("cpu", "nccl") == "nccl":
            self._direct.remove("cpu")
        self._begin(dist.get_rank())

    def home(self, device):
        if device.type in self._direct:
            return device
        return torch.device("cpu" if "cpu" in self._direct else next(iter(self._direct)))

    def versions(self):
        return {"torch.distributed": dist.get_backend_config(self._group)}

    def duplicate(self):
        with self._noted("duplicate"):
            return ProcessGroupCommunicator(self._group)

    @property
    def has_parts(self):
        """All ranks of the program make a group, whoever is in it: to have some of them make it alone has hung."""
        return self.size == dist.get_world_size()

    def _part(self, groups, mine):
        if not self.has_parts:
            raise ValueError(
                "hierarchical reductions go over all ranks of torch.distributed, and here is a process group of some: "
                "leave that out, or the group"
            )
        made = [_new_group([self._members[rank] for rank in group], self._group) for group in groups]
        return None if mine is None else ProcessGroupCommunicator(made[groups.index(mine)], is_part=True)

    def close(self):
        group, self._group = self._group, None
        spare = _spare_groups()
        if group is None:
            return
        if not self._is_part:
            spare.setdefault(tuple(self._members), []).append(group)
            _lent.forget(tuple(self._members), group)
        elif group in _made:  # or the program has taken down all groups itself
            _made.remove(group)
            dist.destroy_process_group(group)

    def tell_failure(self, cause):
        super().tell_failure(cause)
        _tell_failure(f"rank {dist.get_rank()}: {cause}")

    def abort(self, status):
        """The others' next operation meets a closed connection, and their launcher ends them."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    @contextmanager
    def _others(self):
        """What torch raises when other ranks are gone says nothing of why."""
        try:
            yield
        except RuntimeError as error:
            found = None if _failure_elsewhere() else self.watchdog and self.watchdog.account(self)
            said = _failure_elsewhere()
            if said:
                raise LostRanks(said, told=True) from None
            raise LostRanks(found or "another rank is gone, or does not answer") from error

    def _allreduce(self, buffer, op):
        if buffer.numel():
            with self._others():
                dist.all_reduce(buffer, dist.ReduceOp.MAX if op == "max" else dist.ReduceOp.SUM, self._group)

    def _bcast(self, buffer, root):
        if buffer.numel():
            with self._others():
                dist.broadcast(buffer, self._members[root], self._group)

    def _allgatherv(self, buffer, counts):
        return self._alltoallv(buffer.repeat(self.size), [buffer.numel()] * self.size, counts)

    def _alltoallv(self, buffer, send_counts, receive_counts):
        arriving, item = buffer.new_empty(sum(receive_counts)), buffer.element_size()
        leave, arrive = ([item * count for count in counts] for counts in (send_counts, receive_counts))
        incoming, outgoing = _bytes_of(arriving), _bytes_of(buffer)
        with self._others():
            dist.all_to_all_single(incoming, outgoing, arrive, leave, self._group)
        return arriving

    def _send(self, buffer, destination):
        outgoing = _bytes_of(buffer)
        if buffer.numel():
            with self._others():
                dist.send(outgoing, self._members[destination], self._group)

    def _receive(self, buffer, source):
        incoming = _bytes_of(buffer)
        if buffer.numel():
            with self._others():
                dist.recv(incoming, self._members[source], self._group)


# Torch names a group that its ranks make alone by them and by how many groups there are, and a new one by the name of
# one that was destroyed meets what that left in the store: so a group that nobody needs any more waits for the next who
# needs one of these ranks. All ranks do it alike.
_spare, _spare_in = {}, None
_open = weakref.WeakSet()  # communicators
_made, _made_the_world = [], []
_lent = Lent()


def _spare_groups():
    global _spare, _spare_in, _lent
    world = dist.group.WORLD if dist.is_initialized() else None
    if world is not _spare_in:  # the program has taken down all groups itself
        _spare, _spare_in, _lent = {}, world, Lent()
        _made.clear()
    return _spare


def _time_limit(group, device):
    """How long the program lets a group's operations take; None where torch does not tell, for its usual half hour."""
    with suppress(AttributeError, RuntimeError):
        return group._get_backend(torch.device(device)).options._timeout
    return None


def _own_group(group, members):
    spare = _spare_groups().setdefault(members, [])
    if not spare:
        spare.extend(_lent.unused(members, lambda value: _everyones(value, group)))
    if spare:
        return spare.pop(spare.index(min(spare, key=_made.index)))  # ranks may have given them back in another order
    if len(members) == dist.get_world_size():
        return _new_group(members, group)
    _insist_on_one_name(group)
    return _new_group(members, group, use_local_synchronization=True)


def _insist_on_one_name(group):
    """Torch makes a name of how many groups a rank knows; ranks that know other names would wait for ever."""
    counts = _everyones(len(dist.distributed_c10d._world.pg_names), group)
    if len(set(counts)) > 1:
        raise ValueError(
            f"the ranks of this process group are in {', '.join(map(str, counts))} groups, and torch connects another "
            "one only where that is the same number: make this reducer before the groups that only some of them are in"
        )


def _new_group(members, like, **how):
    by_device = _backends_of(like)
    backends = set(by_device.values())
    backend = backends.pop() if len(backends) == 1 else ",".join(map(":".join, by_device.items()))
    new = dist.new_group(members, _time_limit(like, next(iter(by_device))), backend, **how)
    if new is not dist.GroupMember.NON_GROUP_MEMBER:
        _made.append(new)
    return new


def _backends_of(group):
    """By kind of device."""
    return dict(each.split(":") for each in dist.get_backend_config(group).split(","))


def _everyones(value, group):
    values = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group)
    return values


@atexit.register
def _take_down():
    """Groups that live on while the interpreter takes itself apart abort it now and then ("terminate called")."""
    global _spare_in, _lent
    if not dist.is_available():
        return
    ours = [] if dist.group.WORLD is not _spare_in else _made[:]
    _spare.clear()
    _made.clear()
    _spare_in, _lent = None, Lent()  # what holds a group holds its threads
    for communicator in _open:
        communicator._group = None
    if not dist.is_initialized():
        return
    if _made_the_world:
        dist.destroy_process_group()
    else:
        while ours:
            dist.destroy_process_group(ours.pop())


def is_there():
    """Whether ranks were started for it: there is a process group, or torchrun has said where they meet."""
    return dist.is_available() and (dist.is_initialized() or rendezvous_is_known())


def connect(group=None):
    """A communicator over all ranks, or over those of a process group."""
    if not dist.is_available():
        raise RuntimeError("this torch was built without torch.distributed; use another transport")
    if not dist.is_initialized():
        _initialise()
        _made_the_world.append(True)
    if group is None:
        group = dist.group.WORLD
    if dist.get_rank(group) < 0:
        raise ValueError("this rank is not one of the process group's: only those make a reducer over it")
    _tell_what_ends_this_rank()
    return connected(lambda: ProcessGroupCommunicator(group), dist.get_world_size(group))


def _initialise():
    rank, size = launched()
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    if size == 1 and not rendezvous_is_known():
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        return
    if not rendezvous_is_known(of_all_ranks=False):
        raise RuntimeError(
            f"the launcher started {size} ranks, but torch.distributed is not told where they meet: set MASTER_ADDR to "
            "the host of rank 0 and MASTER_PORT to a free port of it, or start them by torchrun"
        )
    with starting.waited_for("the start of torch.distributed"):
        dist.init_process_group(backend, rank=rank, world_size=size)


_watched = []


def _tell_what_ends_this_rank():
    """An uncaught error ends the others too, once this process is gone: they can say why."""

    def tell():
        error = getattr(sys, "last_value", None)
        if error is not None and not isinstance(error, LostRanks) and not hasattr(sys, "ps1"):
            _tell_failure(f"rank {os.environ.get('RANK', '?')}: {type(error).__name__}: {error}")

    if not _watched:
        _watched.append(atexit.register(tell))


def _tell_failure(cause):
    with suppress(RuntimeError, AttributeError, ValueError):  # the store goes down with the rank that holds it
        _store().compare_set(FAILURE, "", cause)


def _failure():
    try:
        return _store().get(FAILURE).decode() if _store().check([FAILURE]) else ""
    except (RuntimeError, AttributeError, ValueError):
        return ""


def _failure_elsewhere():
    """Not one that this rank has outlived."""
    said = _failure()
    return "" if said.startswith(f"rank {dist.get_rank()}:") else said


def _store():
    return dist.distributed_c10d._get_default_store()


def _bytes_of(tensor):
    """A single element may have any stride, but torch sees bytes only where it is 1."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
