"""Batches of spectrograms, made ahead of time by one background thread."""

import queue
import threading
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch

from ...errors import UserError
from . import audio, text

_AHEAD = 4  # batches; reading one takes about a hundredth of a step
_PATIENCE = 0.1  # seconds that a full queue is waited for before looking whether anyone still wants it
_END = object()
# Batches are padded to a multiple of this many frames. torch's CPU kernels keep memory for each shape that they meet:
# with every length a shape of its own, a process grows to more than twice the size and saves no time.
_FRAME_MULTIPLE = 16


@dataclass(frozen=True)
class Batch:
    spectrograms: torch.Tensor  # utterances x bins x frames, zero past each utterance's end
    frames: torch.Tensor  # of each utterance
    labels: torch.Tensor  # of all utterances, one after another
    label_counts: torch.Tensor
    texts: tuple[str, ...]

    def to(self, device):
        return Batch(
            self.spectrograms.to(device),
            self.frames.to(device),
            self.labels.to(device),
            self.label_counts.to(device),
            self.texts,
        )


def collate(spectrograms, texts):
    frames = torch.tensor([spectrogram.shape[1] for spectrogram in spectrograms])
    longest = -(-int(frames.max()) // _FRAME_MULTIPLE) * _FRAME_MULTIPLE
    padded = torch.zeros(len(spectrograms), audio.BINS, longest)
    for row, spectrogram in zip(padded, spectrograms, strict=True):
        row[:, : spectrogram.shape[1]] = spectrogram
    encoded = [text.encode(spoken) for spoken in texts]
    labels = torch.tensor([label for labels in encoded for label in labels], dtype=torch.long)
    return Batch(padded, frames, labels, torch.tensor([len(labels) for labels in encoded]), tuple(texts))


def read_batch(utterances, indices, augmentation=None, seed=(0, 0)):
    """Read and collate. Each utterance draws its random numbers from (*seed, index): neither ranks nor order matter."""
    spectrograms = []
    for index in indices:
        samples, hop = _read(utterances[index]), audio.HOP
        if augmentation:
            with np.errstate(over="ignore", invalid="ignore"):  # what comes of that is refused below
                samples, hop = augmentation(samples, np.random.default_rng((*seed, index)))
        spectrogram = audio.spectrogram(samples, hop)
        if not spectrogram.isfinite().all():  # float files can hold anything; headers do not tell
            path = utterances[index].audio
            raise UserError(f"{path} has samples that are huge or not numbers; replace it or remove its line")
        spectrograms.append(spectrogram)
    return collate(spectrograms, [utterances[index].text for index in indices])


def _read(utterance):
    try:
        return audio.read(utterance.audio, utterance.samples)
    except audio.UnfitAudio as error:
        fault = str(error)
    except OSError as error:
        fault = f"cannot be read ({error.strerror})"
    raise UserError(f"{utterance.audio} was in order when the run started and now {fault}; restore it and start again")


def prefetch(make, arguments):
    """Yield make(argument) for each argument; a thread works ahead, and its exceptions are raised here.

    A thread, not worker processes: forking under MPI is unsafe, and NumPy and torch release the lock where it counts.
    """
    made = queue.Queue(maxsize=_AHEAD)
    stopped = threading.Event()
    failures = []

    def put(item):
        while not stopped.is_set():
            with suppress(queue.Full):
                made.put(item, timeout=_PATIENCE)
                return

    def work():
        try:
            for argument in arguments:
                if stopped.is_set():
                    return
                put(make(argument))
        except Exception as error:  # noqa: BLE001 - raised again where the batch is awaited
            failures.append(error)
        put(_END)

    worker = threading.Thread(target=work, name="batches", daemon=True)
    worker.start()
    try:
        while (item := made.get()) is not _END and not failures:
            yield item
        if failures:
            raise failures[0]
    finally:
        stopped.set()
        worker.join()
