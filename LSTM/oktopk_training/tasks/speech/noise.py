"""Recordings of noise to mix into training audio."""

from pathlib import Path

import numpy as np

from ...errors import UserError
from . import audio


def load_noises(folder):
    """Every recording in the folder, in the order of their names."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; --noise-dir names a folder of recordings")
    noises = []
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        try:
            noise = audio.read(path)
        except audio.UnfitAudio as error:
            raise UserError(f"{path} {error}; cut it or remove it from the --noise-dir") from None
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}); remove it from the --noise-dir") from None
        if len(noise) == 0 or not np.any(noise):
            raise UserError(f"{path} is silent; remove it from the --noise-dir")
        if not np.isfinite(audio.spectrogram(noise).numpy()).all():
            raise UserError(f"{path} has samples that are huge or not numbers; remove it from the --noise-dir")
        noises.append(noise)
    if not noises:
        raise UserError(f"{folder}: there are no recordings in this --noise-dir; put some there or drop the option")
    return tuple(noises)
