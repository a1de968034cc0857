"""Saved models: the weights with all that is needed to build the model again."""

import os

import torch

from oktopk.tensor_files import DamagedFile, read, sealed

from .errors import UserError
from .files import atomic_write
from .inputs import check_file, printable, shown
from .options import MOST_LAYERS, MOST_UNITS
from .tasks import TASKS

_MOST = {"hidden_size": MOST_UNITS, "hidden_layers": MOST_LAYERS}


def save_model(path, net, dnn, epoch, figures):
    content = {"dnn": dnn, "sizes": net.sizes, "epoch": epoch, "figures": figures, "model": net.state_dict()}
    whole = sealed(content)  # in memory first: torch reports a disk that is full in its own way
    with atomic_write(path, "wb") as file:
        file.write(whole)


def read_model(path):
    """The saved dictionary: tensors and plain values. Its sizes can be, and its weights are finite."""
    try:
        check_file(path)
        content = read(path)
    except FileNotFoundError:
        raise _missing(path) from None
    except OSError as error:
        if not os.path.lexists(path):  # its name is too long
            raise _missing(path) from None
        raise UserError(f"{path} is not a saved model, or it is damaged: {error.strerror}; choose another") from None
    except DamagedFile:
        raise UserError(f"{path} is not a saved model, or it is damaged; choose another") from None
    wanted = {"dnn": str, "sizes": dict, "model": dict}
    if not isinstance(content, dict) or not all(isinstance(content.get(key), kind) for key, kind in wanted.items()):
        raise UserError(f"{path} is not a model that this program saved; choose one from a run's checkpoints/")
    for name, size in content["sizes"].items():
        if type(size) is not int or not 0 < size <= _MOST.get(name, size):
            raise _inconsistent(path)
    _refuse_what_is_not_finite(content["model"], path)
    return content


def _missing(path):
    return UserError(f"{shown(path)}: there is no such model; a run leaves its models in its folder checkpoints/")


def _refuse_what_is_not_finite(weights, path):
    for name, tensor in weights.items():
        if isinstance(tensor, torch.Tensor) and not tensor.isfinite().all():
            raise UserError(
                f"{path}: {printable(name)} has weights that are infinite or not numbers; choose another model"
            )


def build_model(content, path):
    """The model that `read_model` found in `path`. It takes no memory before its sizes are known to fit the weights."""
    try:
        with torch.device("meta"):
            net = TASKS[content["dnn"]].model(**content["sizes"])
    except (LookupError, TypeError, ValueError, RuntimeError):
        raise _inconsistent(path) from None
    _fill(net, content, path, assign=True)
    return net


def _fill(net, content, path, assign=False):
    described = {name: (tensor.shape, tensor.dtype) for name, tensor in net.state_dict().items()}
    weights = content["model"]
    if not all(isinstance(each, torch.Tensor) for each in weights.values()) or described != {
        name: (tensor.shape, tensor.dtype) for name, tensor in weights.items()
    }:
        raise _inconsistent(path)
    net.load_state_dict(weights, assign=assign)


def _inconsistent(path):
    return UserError(f"{path}: the weights of this model are not those that its sizes ask for; choose another")


def load_weights(net, dnn, path):
    """Put the weights of a saved model into `net`, which must have the same kind and sizes."""
    content = read_model(path)
    if (content["dnn"], content["sizes"]) != (dnn, net.sizes):
        raise UserError(
            f"--pretrain {path} holds {printable(content['dnn'])} with {_listed(content['sizes'])}, "
            f"but this run trains {dnn} with {_listed(net.sizes)}; give the same sizes"
        )
    _fill(net, content, path)


def _listed(sizes):
    return printable(", ".join(f"{name} {size}" for name, size in sizes.items()))
