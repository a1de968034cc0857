"""The Penn Treebank text: `ptb.{train,valid,test}.txt` as word indices, cut into parallel streams."""

from array import array
from pathlib import Path

import torch

from ...errors import UserError
from ...inputs import quoted, read_lines

END_OF_SENTENCE = "<eos>"
_MOST_BYTES = 1 << 30  # of a text
_MOST_WORDS = 300_000  # of the vocabulary: WikiText-103 has 267,735, and a row of the model for each
STEPS = 35  # words that one batch covers of each stream


def load_ptb(folder):
    """The vocabulary (word -> index, from the training text) and the three texts as one long tensor each."""
    paths = {part: Path(folder) / f"ptb.{part}.txt" for part in ("train", "valid", "test")}
    vocabulary = {}
    indexed = {"train": _numbers(paths["train"], lambda word: vocabulary.setdefault(word, len(vocabulary)), vocabulary)}
    for part in ("valid", "test"):
        indexed[part] = _known_words(paths[part], vocabulary)
    return vocabulary, indexed


def _known_words(path, vocabulary):
    strange = {}

    def number(word):
        index = vocabulary.get(word, -1)
        if index < 0:
            strange[word] = None
        return index

    numbers = _numbers(path, number, strange)
    if strange:
        raise UserError(
            f"{path}: {len(strange)} words do not occur in ptb.train.txt "
            f"({', '.join(map(quoted, sorted(strange)[:3]))}, ...); write rare words as <unk>"
        )
    return numbers


def _numbers(path, number, seen):
    """A text by `number` of each word, line by line: words take ten times the memory. `seen` fills meanwhile."""
    numbers = array("q")
    for words in _sentences(path):
        numbers.extend(map(number, words))
        if len(seen) > _MOST_WORDS:
            raise UserError(
                f"{path}: more than {_MOST_WORDS} different words cannot be learnt; write rare words as <unk>"
            )
    if not numbers:
        raise UserError(f"{path}: the file is empty; fetch it again")
    return torch.frombuffer(numbers, dtype=torch.int64)


def _sentences(path):
    try:
        for line in read_lines(path, _MOST_BYTES):
            if line.strip():
                yield [*line.split(), END_OF_SENTENCE]
    except FileNotFoundError:
        raise UserError(
            f"{path}: there is no such file; --data-dir must hold ptb.train.txt, ptb.valid.txt and ptb.test.txt"
        ) from None
    except OSError as error:
        raise UserError(
            f"{path}: the file cannot be read ({error.strerror}); put each sentence on a line, as UTF-8"
        ) from None


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
