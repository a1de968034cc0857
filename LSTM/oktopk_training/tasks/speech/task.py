"""The task of AN4: CTC loss, transcripts, error rates."""

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from oktopk.fields import FLAG, MOST, NOT_NEGATIVE, PATH, PROBABILITY, option, up_to

from ...errors import UserError
from ...places import find_folder
from ..task import Task, TaskOptions
from . import audio, text
from .batches import prefetch, read_batch
from .error_rates import count_errors, rate
from .manifest import load_manifest
from .model import LSTMAN4
from .noise import load_noises
from .sampler import BucketSampler

TRAIN_MANIFEST = "an4_train_manifest.csv"
VAL_MANIFEST = "an4_val_manifest.csv"
_ANNEAL = 1.01  # the learning rate is divided by this after each epoch


def ctc_losses(scores, frames, batch):
    """One loss for each utterance, summed over it; 0 where the frames are too few for the transcript."""
    log_probabilities = scores.float().log_softmax(dim=-1)
    return F.ctc_loss(
        log_probabilities,
        batch.labels,
        frames,
        batch.label_counts,
        blank=text.BLANK,
        reduction="none",
        zero_infinity=True,
    )


def count_infeasible(batch):
    """Utterances that no alignment fits, so that their loss was infinite. A fast tempo can make one."""
    needed = torch.tensor([text.frames_needed(spoken) for spoken in batch.texts])
    return int((audio.output_frames(batch.frames) < needed).sum())


@torch.no_grad()
def transcribe(net, batches, device):
    """Yield (loss, reference, hypothesis) of every utterance."""
    net.eval()
    for batch in batches:
        batch = batch.to(device)
        scores, frames = net(batch.spectrograms, batch.frames)
        losses = ctc_losses(scores, frames, batch).tolist()
        yield from zip(losses, batch.texts, text.greedy_decode(scores, frames), strict=True)


def batches_by_length(utterances, batch_size):
    """Unaugmented batches of a whole set, shortest utterances first, so that padding stays small."""
    order = sorted(range(len(utterances)), key=lambda index: utterances[index].samples)
    cuts = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    return prefetch(partial(read_batch, utterances), cuts)


def total_errors(transcribed):
    """Totals over (loss, reference, hypothesis) that may be added across ranks before `error_figures`."""
    totals = Counter()
    for loss, reference, hypothesis in transcribed:
        errors = count_errors(reference, hypothesis)
        totals.update(
            utterances=1,
            loss=loss,
            word_errors=errors.word_errors,
            words=errors.words,
            character_errors=errors.character_errors,
            characters=errors.characters,
            wer_sum=errors.wer,
        )
    return totals


def error_figures(totals):
    return {
        "loss": totals["loss"] / totals["utterances"],
        "wer": rate(totals["word_errors"], totals["words"]),
        "wer_mean": totals["wer_sum"] / totals["utterances"],
        "cer": rate(totals["character_errors"], totals["characters"]),
    }


@dataclass(frozen=True)
class SpeechOptions(TaskOptions):
    augment: bool = option(True, FLAG, "train on the recordings as they are")
    noise_dir: Path | None = option(None, PATH, "recordings of noise to mix into training audio")
    noise_prob: float = option(0.4, PROBABILITY, "part of the utterances that get noise")
    noise_level: float = option(0.5, up_to(MOST, NOT_NEGATIVE), "loudest noise, relative to speech")

    def settled(self):
        if self.noise_dir is None:
            return self
        if not self.augment:
            raise UserError("--noise-dir has no effect with --no-augment; drop one of them")
        return replace(self, noise_dir=find_folder(self.noise_dir, "--noise-dir"))

    def augmentation(self):
        if not self.augment:
            return None
        noises = load_noises(self.noise_dir) if self.noise_dir else ()
        return audio.Augmentation(noises=noises, noise_probability=self.noise_prob, noise_level=self.noise_level)


class SpeechTask(Task):
    name = "lstman4"
    dataset = "an4"
    data_dir = "audio_data"
    data_source = "make the data with scripts/prepare_an4.py"
    hidden_size, hidden_layers = 800, 5
    max_grad_norm = 400.0
    model = LSTMAN4
    figures = {"wer": "WER", "cer": "CER", "wer_mean": "mean WER of utterances"}  # noqa: RUF012 - never changed
    headline = "wer"
    Options = SpeechOptions

    def __init__(self, options, rank=0, size=1):
        super().__init__(options, rank, size)
        self.train_set = load_manifest(options.data_dir / TRAIN_MANIFEST)
        val_set = load_manifest(options.data_dir / VAL_MANIFEST)
        by_length = sorted(val_set, key=lambda utterance: utterance.samples)
        self.val_set = by_length[rank::size]
        lengths = [utterance.samples for utterance in self.train_set]
        self.sampler = BucketSampler(lengths, options.batch_size, rank, size, options.seed)
        self.steps_per_epoch = len(self.sampler)
        self.size_of_data = f"{len(self.train_set)} training and {len(val_set)} validation utterances"
        heard = "\n".join(f"{each.samples} {each.text}" for each in self.train_set + val_set)
        self.fingerprint = hashlib.sha256(heard.encode()).hexdigest()
        self.augmentation = options.task.augmentation()

    def build(self):
        return LSTMAN4(self.options.hidden_size, self.options.hidden_layers)

    def learning_rate(self, base, epoch):
        return base / _ANNEAL**epoch

    def batches(self, epoch, first=0):
        read = partial(read_batch, self.train_set, augmentation=self.augmentation, seed=(self.options.seed, epoch))
        return prefetch(read, self.sampler.batches(epoch)[first:])

    def loss(self, net, batch):
        """The mean over the batch of each utterance's summed loss, and how many of them were infinite."""
        there = batch.to(self.options.torch_device)
        scores, frames = net(there.spectrograms, there.frames)
        return ctc_losses(scores, frames, there).mean(), count_infeasible(batch)

    def validate(self, net):
        batches = batches_by_length(self.val_set, self.options.batch_size)
        return total_errors(transcribe(net, batches, self.options.torch_device))

    def summarise(self, totals):
        return error_figures(totals)

    def describe(self, figures):
        over = " (WER exceeds 1: more errors than reference words)" if figures["wer"] > 1 else ""
        return super().describe(figures) + over
