"""Word and character error rates: edits from hypothesis to reference over the length of the reference."""

from dataclasses import dataclass

import Levenshtein


@dataclass(frozen=True)
class Errors:
    """What one utterance adds to the totals."""

    word_errors: int
    words: int
    character_errors: int
    characters: int

    @property
    def wer(self):
        return rate(self.word_errors, self.words)


def count_errors(reference, hypothesis):
    reference_words, hypothesis_words = reference.split(), hypothesis.split()
    return Errors(
        Levenshtein.distance(reference_words, hypothesis_words),
        len(reference_words),
        Levenshtein.distance(reference, hypothesis),
        len(reference),
    )


def rate(errors, length):
    """Errors per unit of reference; over an empty reference, 0 without errors and 1 with any."""
    if length == 0:
        return float(errors > 0)
    return errors / length
