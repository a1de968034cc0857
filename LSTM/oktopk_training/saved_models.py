"""Saved models: the weights with all that is needed to build the model again."""

import io
import os
import pickle
import struct
import zipfile
from pathlib import Path

import torch

from .errors import UserError
from .files import atomic_write
from .tasks import TASKS

# torch's reader was not written for damaged files: it can end with any of these.
_OF_DAMAGED_FILES = (
    *(OSError, RuntimeError, EOFError, LookupError, ValueError, AttributeError, TypeError, MemoryError),
    *(AssertionError, struct.error, pickle.UnpicklingError, zipfile.BadZipFile),
)


def save_model(path, net, dnn, epoch, figures):
    content = {"dnn": dnn, "sizes": net.sizes, "epoch": epoch, "figures": figures, "model": net.state_dict()}
    whole = io.BytesIO()  # torch reports a disk that is full in its own way; a file of ours gives an OSError
    torch.save(content, whole)
    with atomic_write(path, "wb") as file:
        file.write(whole.getbuffer())


def read_model(path):
    """The saved dictionary; only tensors and plain values are accepted, so that a file cannot run code."""
    path = Path(path)
    if not os.path.isfile(path):
        raise UserError(f"{path}: there is no such model; a run leaves its models in its folder checkpoints/")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except _OF_DAMAGED_FILES as error:
        # Not torch's words: they advise to load the file in a way that lets it run code.
        reason = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
        raise UserError(f"{path} is not a saved model, or it is damaged{reason}; choose another") from None
    wanted = {"dnn": str, "sizes": dict, "model": dict}
    if not isinstance(content, dict) or not all(isinstance(content.get(key), kind) for key, kind in wanted.items()):
        raise UserError(f"{path} is not a model that this program saved; choose one from a run's checkpoints/")
    return content


def build_model(content, path):
    """The model that `read_model` found in `path`."""
    sizes = content["sizes"]
    try:
        net = TASKS[content["dnn"]].model(**sizes)
    except (LookupError, TypeError, ValueError, RuntimeError):
        raise _inconsistent(path) from None
    _fill(net, content, path)
    return net


def _fill(net, content, path):
    try:
        net.load_state_dict(content["model"])
    except (RuntimeError, TypeError, AttributeError):  # keys that are missing, other shapes, no tensors
        raise _inconsistent(path) from None


def _inconsistent(path):
    return UserError(f"{path}: the weights of this model are not those that its sizes ask for; choose another")


def load_weights(net, dnn, path):
    """Put the weights of a saved model into `net`, which must have the same kind and sizes."""
    content = read_model(path)
    if (content["dnn"], content["sizes"]) != (dnn, net.sizes):
        raise UserError(
            f"--pretrain {path} holds {content['dnn']} with {_listed(content['sizes'])}, "
            f"but this run trains {dnn} with {_listed(net.sizes)}; give the same sizes"
        )
    _fill(net, content, path)


def _listed(sizes):
    return ", ".join(f"{name} {size}" for name, size in sizes.items())
