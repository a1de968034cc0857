"""A merged gradient: parameters whose gradients lie side by side in one buffer and are reduced as one."""

import numpy as np
import torch

from .devices import on_cpu


class MergedGradient:
    """One flat float32 buffer, and a view of it for each parameter: this rank's gradient, then the mean."""

    def __init__(self, named_parameters):
        names = [name for name, _ in named_parameters]
        self.name = names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"
        self._shapes = {name: parameter.shape for name, parameter in named_parameters}
        largest = {name: torch.finfo(parameter.dtype).max for name, parameter in named_parameters}
        self.narrow = {name: most for name, most in largest.items() if most < torch.finfo(torch.float32).max}
        self.gradient = zeros(sum(shape.numel() for shape in self._shapes.values()), named_parameters[0][1].device)
        self.views = self.parts(self.gradient)

    @property
    def size(self):
        return self.gradient.numel()

    def parts(self, flat):
        """Views of a buffer of this size, by parameter."""
        pieces = flat.split([shape.numel() for shape in self._shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)}


def zeros(count, device):
    """A flat float32 buffer. NumPy asks the system for huge pages, torch does not: a third of a dense allreduce."""
    if on_cpu(device):
        return torch.from_numpy(np.zeros(count, np.float32))
    return torch.zeros(count, device=device)


def merge(named_parameters, merge_size=None):
    """Merge parameters, in their order, into gradients of at most `merge_size` elements each; None: into a single one.

    A parameter that is larger than `merge_size` stands alone.
    """
    groups, size = [[]], 0
    for name, parameter in named_parameters:
        if size and merge_size is not None and size + parameter.numel() > merge_size:
            groups.append([])
            size = 0
        groups[-1].append((name, parameter))
        size += parameter.numel()
    return [MergedGradient(group) for group in groups if group]


def check_parameters(named_parameters):
    """What cannot be reduced together is refused with a ValueError."""
    names = [name for name, _ in named_parameters]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two parameters are called {twice!r}: give each a name of its own, by a prefix for example")
    complex_one = next((name for name, parameter in named_parameters if parameter.is_complex()), None)
    if complex_one is not None:
        raise ValueError(f"{complex_one} is complex, and gradients are reduced as real: use its view_as_real instead")
    if not any(parameter.numel() for _, parameter in named_parameters):
        raise ValueError("there is nothing to reduce: no parameter with elements requires a gradient")
    devices = sorted({str(parameter.device) for _, parameter in named_parameters})
    if len(devices) > 1:
        raise ValueError(
            f"the parameters lie on {' and '.join(devices)}, and a reducer works on one device: move the model to one, "
            "or give the parameters of each device an optimizer of their own"
        )
