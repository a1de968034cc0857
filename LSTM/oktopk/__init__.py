"""Sparse allreduce for training with PyTorch: Ok-Topk and the compressors that it is compared with.

    optimizer = oktopk.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
                                            model.named_parameters(), compression="oktopk", density=0.02)

From the outside in: `optimizer` wraps any torch optimizer; `averager` turns a model's gradients into their means;
`reducer` does that for one flat gradient, with `choosers` that say what is sent and `algorithms` that say how it is
summed; `exchange`, `wire` and `communicator` carry it; `operations` computes.
Nothing is loaded before it is asked for.
"""

import importlib

_HOMES = {
    "Checkpoints": "checkpoints",
    "Communicator": "communicator",
    "DistributedOptimizer": "optimizer",
    "GradientAverager": "averager",
    "ReducerError": "averager",
    "Report": "report",
    "Settings": "registry",
    "SparseState": "hooks",
    "compressors": "registry",
    "connect": "transports",
    "shard_sparsely": "hooks",
    "sparse_hook": "hooks",
}
__all__ = sorted(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'oktopk' has no {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__():
    return __all__
