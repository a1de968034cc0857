"""The Penn Treebank text: `ptb.{train,valid,test}.txt` as word indices, cut into parallel streams."""

from pathlib import Path

import torch

from ...errors import UserError
from ...inputs import quoted, read_text

END_OF_SENTENCE = "<eos>"
_MOST_BYTES = 1 << 30  # of a text
_MOST_WORDS = 300_000  # of the vocabulary: WikiText-103 has 267,735, and a row of the model for each
STEPS = 35  # words that one batch covers of each stream


def load_ptb(folder):
    """The vocabulary (word -> index, from the training text) and the three texts as one long tensor each."""
    texts = {part: _words(Path(folder) / f"ptb.{part}.txt") for part in ("train", "valid", "test")}
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(texts["train"]))}
    if len(vocabulary) > _MOST_WORDS:
        raise UserError(
            f"{Path(folder) / 'ptb.train.txt'}: {len(vocabulary)} different words are more than the {_MOST_WORDS} that "
            "can be learnt; write rare words as <unk>"
        )
    indexed = {}
    for part, words in texts.items():
        strange = sorted(set(words) - vocabulary.keys())
        if strange:
            raise UserError(
                f"{Path(folder) / f'ptb.{part}.txt'}: {len(strange)} words do not occur in ptb.train.txt "
                f"({', '.join(map(quoted, strange[:3]))}, ...); write rare words as <unk>"
            )
        indexed[part] = torch.tensor([vocabulary[word] for word in words])
    return vocabulary, indexed


def _words(path):
    try:
        lines = read_text(path, _MOST_BYTES).splitlines()
    except FileNotFoundError:
        raise UserError(
            f"{path}: there is no such file; --data-dir must hold ptb.train.txt, ptb.valid.txt and ptb.test.txt"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: the file cannot be read ({error.strerror}); fetch it again") from None
    words = [word for line in lines if line.strip() for word in (*line.split(), END_OF_SENTENCE)]
    if not words:
        raise UserError(f"{path}: the file is empty; fetch it again")
    return words


def streams(words, count, name):
    """`count` parallel streams of consecutive words: words x streams, the remainder dropped."""
    length = len(words) // count
    if length < 2:
        raise UserError(f"{name}: {len(words)} words are too few for {count} parallel streams; lower --batch-size")
    return words[: length * count].reshape(count, length).t().contiguous()


def windows(columns, first=0):
    """(input, target) pairs of up to STEPS words, from the given one on; a target is the word that follows."""
    for start in range(first * STEPS, len(columns) - 1, STEPS):
        end = min(start + STEPS, len(columns) - 1)
        yield columns[start:end], columns[start + 1 : end + 1]
