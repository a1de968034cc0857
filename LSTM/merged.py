"""A merged gradient: parameters whose gradients lie side by side in one buffer and are reduced as one."""

import numpy as np
import torch


class MergedGradient:
    """One flat float32 buffer, a view of it for each parameter, and what sparse reductions keep for it.

    `gradient` holds this rank's gradient before a reduction and the mean over the ranks after it. `residual` is what
    earlier reductions did not deliver; it exists from the first sparse one on.
    """

    def __init__(self, named_parameters):
        self.names = [name for name, _ in named_parameters]
        self.name = self.names[0] if len(self.names) == 1 else f"{self.names[0]}..{self.names[-1]}"
        device = named_parameters[0][1].device
        sizes = [parameter.numel() for _, parameter in named_parameters]
        self.gradient = zeros(sum(sizes), device)
        self.views = {
            name: part.view(parameter.shape)
            for (name, parameter), part in zip(named_parameters, self.gradient.split(sizes), strict=True)
        }
        self.residual = None
        self.velocity = None
        self.algorithm = None

    @property
    def size(self):
        return self.gradient.numel()

    def gather_momentum(self, momentum, nesterov):
        """velocity = momentum * velocity + gradient; the gradient becomes what an optimizer with momentum steps by."""
        if self.velocity is None:
            self.velocity = zeros(self.size, self.gradient.device)
        self.velocity.mul_(momentum).add_(self.gradient)
        if nesterov:
            self.gradient.add_(self.velocity, alpha=momentum)
        else:
            self.gradient.copy_(self.velocity)


def zeros(count, device):
    """A flat float32 buffer. NumPy asks the system for huge pages, torch does not: a third of a dense allreduce."""
    if torch.device(device).type == "cpu":
        return torch.from_numpy(np.zeros(count, np.float32))
    return torch.zeros(count, device=device)


def merge(named_parameters, merge_size=None):
    """Merge parameters, in their order, into gradients of at most `merge_size` elements each; None: into a single one.

    A parameter that is larger than `merge_size` stands alone.
    """
    names = [name for name, _ in named_parameters]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two parameters are called {twice!r}: give each a name of its own, by a prefix for example")
    complex_one = next((name for name, parameter in named_parameters if parameter.is_complex()), None)
    if complex_one is not None:
        raise ValueError(f"{complex_one} is complex, and gradients are reduced as real: use its view_as_real instead")
    if not any(parameter.numel() for _, parameter in named_parameters):
        raise ValueError("there is nothing to reduce: no parameter with elements requires a gradient")
    groups, size = [[]], 0
    for name, parameter in named_parameters:
        if size and merge_size is not None and size + parameter.numel() > merge_size:
            groups.append([])
            size = 0
        groups[-1].append((name, parameter))
        size += parameter.numel()
    return [MergedGradient(group) for group in groups]
