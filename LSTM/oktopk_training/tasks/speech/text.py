"""Transcripts as label indices and back: the alphabet, what CTC needs of it, greedy decoding."""

from itertools import pairwise

import torch

BLANK = 0
LABELS = "_'ABCDEFGHIJKLMNOPQRSTUVWXYZ "  # the first is CTC's blank, which no transcript may contain
_INDEX = {character: index for index, character in enumerate(LABELS) if index != BLANK}


def normalise(text):
    """Upper case, with single spaces between words."""
    return " ".join(text.upper().split())


def unknown_characters(text):
    return sorted(set(text) - _INDEX.keys())


def encode(text):
    return [_INDEX[character] for character in text]


def frames_needed(text):
    """CTC puts a blank between two equal labels, so each repetition costs a frame of its own."""
    return len(text) + sum(a == b for a, b in pairwise(text))


def greedy_decode(scores, lengths):
    """One text per utterance from time x batch x labels: each frame's best, repetitions merged, blanks dropped."""
    best = scores.argmax(dim=-1).t().cpu()
    return [_collapse(labels[:length]) for labels, length in zip(best, lengths.tolist(), strict=True)]


def _collapse(labels):
    merged = torch.unique_consecutive(labels).tolist()
    return normalise("".join(LABELS[label] for label in merged if label != BLANK))
