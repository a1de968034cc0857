"""The Penn Treebank text: `ptb.{train,valid,test}.txt` as word indices, cut into parallel streams."""

from pathlib import Path

import torch

from ...errors import UserError

END_OF_SENTENCE = "<eos>"
STEPS = 35  # words that one batch covers of each stream


def load_ptb(folder):
    """The vocabulary (word -> index, from the training text) and the three texts as one long tensor each."""
    texts = {part: _words(Path(folder) / f"ptb.{part}.txt") for part in ("train", "valid", "test")}
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(texts["train"]))}
    indexed = {}
    for part, words in texts.items():
        strange = sorted(set(words) - vocabulary.keys())
        if strange:
            raise UserError(
                f"{Path(folder) / f'ptb.{part}.txt'}: {len(strange)} words do not occur in ptb.train.txt "
                f"({', '.join(strange[:3])}, ...); write rare words as <unk>"
            )
        indexed[part] = torch.tensor([vocabulary[word] for word in words])
    return vocabulary, indexed


def _words(path):
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UserError(
            f"{path}: there is no such file; --data-dir must hold ptb.train.txt, ptb.valid.txt and ptb.test.txt"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the file cannot be read ({error}); fetch it again") from None
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


def windows(columns):
    """(input, target) pairs of up to STEPS words; a target is the word that follows."""
    for start in range(0, len(columns) - 1, STEPS):
        end = min(start + STEPS, len(columns) - 1)
        yield columns[start:end], columns[start + 1 : end + 1]
