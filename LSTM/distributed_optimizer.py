"""The contract's DistributedOptimizer: `oktopk.DistributedOptimizer` over the reducer that trainers know.

optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
                                 model.named_parameters(), compression=compressors["oktopk"],
                                 is_sparse=True, density=0.02)
optimizer.set_trainer(trainer)
loss.backward()
optimizer.step()
"""

from functools import cache

from allreducer import AllReducer
from oktopk import Settings, compressors, connect
from oktopk.optimizer import Distributed, wrap

__all__ = ["DistributedOptimizer", "compressors", "rank", "size"]


@cache
def _world():
    return connect()


def rank():
    """Of this process among all that were started."""
    return _world().rank


def size():
    return _world().size


class _Contract(Distributed):
    """What existing trainers call and set."""

    @property
    def _allreducer(self):
        return self.averager

    reducer = _allreducer

    def set_trainer(self, trainer):
        """Whose lists hear what each sparse reduction selected."""
        self.averager.trainer = trainer

    def add_train_epoch(self):
        self.averager.train_epoch += 1


def DistributedOptimizer(
    optimizer,
    named_parameters=None,
    compression=compressors["none"],
    is_sparse=False,
    err_handler=None,
    layerwise_times=None,
    sigma_scale=Settings.sigma_scale,
    density=0.1,
    norm_clip=None,
    writer=None,
    *,
    momentum_correction=False,
    communicator=None,
    settings=None,
    **options,
):
    """Wrap an optimizer. `options` are further ones of `Settings`, or `settings` is all of them, whole."""
    if settings is None:
        settings = Settings(density=density, sigma_scale=sigma_scale, norm_clip=norm_clip, **options)

    def make(named, settings):
        return AllReducer(
            named,
            None,
            None,
            compression,
            sparse=is_sparse,
            err_callback=err_handler,
            layerwise_times=layerwise_times,
            writer=writer,
            communicator=communicator,
            settings=settings,
        )

    return wrap(optimizer, named_parameters, make, settings, momentum_correction, mixin=_Contract)
