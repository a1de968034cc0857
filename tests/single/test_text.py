"""Labels, greedy decoding, error rates: cases worked by hand."""

import pytest
import torch

from oktopk_training.tasks.speech import text
from oktopk_training.tasks.speech.error_rates import count_errors, rate


def scores_of(path):
    """Scores (time x 1 x labels) whose best labels spell the path."""
    indices = torch.tensor([text.LABELS.index(character) for character in path])
    return torch.nn.functional.one_hot(indices, len(text.LABELS)).float()[:, None]


@pytest.mark.parametrize(
    ("path", "decoded"),
    [
        ("HHEE_LL_LLO", "HELLO"),
        ("____", ""),
        ("A_A", "AA"),
        ("AAA", "A"),
        ("_O'CLOCK_", "O'CLOCK"),
        (" _ GO  _ UP ", "GO UP"),
    ],
)
def test_greedy_decoding_merges_repetitions_then_drops_blanks(path, decoded):
    assert text.greedy_decode(scores_of(path), torch.tensor([len(path)])) == [decoded]


def test_frames_past_the_end_are_not_decoded():
    assert text.greedy_decode(scores_of("GO_NO"), torch.tensor([2])) == ["GO"]


def test_there_are_29_labels_and_encoding_is_their_index():
    assert len(text.LABELS) == 29
    assert text.encode("A Z'") == [2, 28, 27, 1]


def test_a_repeated_label_costs_a_frame_more():
    assert [text.frames_needed(spoken) for spoken in ("", "A", "AB", "AA", "HELLO", "AAA")] == [0, 1, 2, 3, 6, 5]


def test_unknown_characters_are_listed_once_and_the_blank_is_one_of_them():
    assert text.unknown_characters("A1_1É") == ["1", "_", "É"]


@pytest.mark.parametrize(
    ("reference", "hypothesis", "word_errors", "character_errors"),
    [
        ("GO STOP", "GO STOP", 0, 0),
        ("GO STOP", "GO", 1, 5),
        ("GO", "GO STOP NOW", 2, 9),
        ("GO STOP", "NO STOP", 1, 1),
        ("ONE TWO THREE", "TWO THREE FOUR", 2, 9),
        ("GO", "", 1, 2),
        ("", "GO NOW", 2, 6),
        ("", "", 0, 0),
    ],
)
def test_errors_are_edits_from_the_reference(reference, hypothesis, word_errors, character_errors):
    errors = count_errors(reference, hypothesis)
    assert (errors.word_errors, errors.character_errors) == (word_errors, character_errors)
    assert (errors.words, errors.characters) == (len(reference.split()), len(reference))


def test_a_rate_is_over_the_reference_and_may_exceed_one():
    assert rate(3, 2) == 1.5
    assert rate(0, 0) == 0.0
    assert rate(4, 0) == 1.0
