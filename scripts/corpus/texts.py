"""What is said in the synthetic corpora: AN4's kinds of text, drawn by chance over one vocabulary or another."""

from typing import NamedTuple


class Vocabulary(NamedTuple):
    """The words that differ between the corpora."""

    commands: list
    names: list
    places: list


def _words(text):
    return text.split()


# Few words that return often, said fast: a model of 256 x 3 is to learn them in 12 epochs.
FEW = Vocabulary(
    commands=_words("YES NO GO STOP START HELP ERASE RUBOUT REPEAT ENTER"),
    names=_words("RANDY DAVID SUSAN PETER JACK BRIAN FRANK QUINN MAX VICTOR"),
    places=["PITTSBURGH", "OAKLAND", "FIFTH AVENUE", "O'HARA STREET"],
)
MANY = Vocabulary(
    commands=[*FEW.commands, *_words("HELLO GOODBYE CANCEL DELETE FINISH BEGIN CONTINUE SAVE PRINT OPEN CLOSE SEND")],
    names=[
        *FEW.names,
        *_words("ALICE BARBARA CHARLES DOROTHY EDWARD FIONA GEORGE HELEN IAN JENNIFER KEVIN LAURA MARTIN NANCY OLIVER"),
        *_words("PATRICIA RICHARD SANDRA THOMAS URSULA VINCENT WALTER XAVIER YVONNE ZOE"),
    ],
    places=[
        *FEW.places,
        *("SHADYSIDE", "SQUIRREL HILL", "FORBES AVENUE", "GRANT STREET", "CLEVELAND", "NEW YORK", "BALTIMORE"),
        *("PENN AVENUE", "MONROEVILLE", "HARRISBURG", "SCHENLEY PARK", "WASHINGTON", "BEECHWOOD BOULEVARD", "ERIE"),
    ],
)
TAKES_CODE = _words("ENTER ERASE RUBOUT")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = _words("ZERO ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE")
TENS = _words("TWENTY THIRTY FORTY FIFTY SIXTY SEVENTY EIGHTY NINETY")
MONTHS = _words("JANUARY FEBRUARY MARCH APRIL MAY JUNE JULY AUGUST SEPTEMBER OCTOBER NOVEMBER DECEMBER")
ORDINALS = [
    *_words("FIRST SECOND THIRD FOURTH FIFTH SIXTH SEVENTH EIGHTH NINTH TENTH TWELFTH FIFTEENTH TWENTIETH"),
    *("TWENTY FIRST", "TWENTY SECOND", "TWENTY THIRD", "TWENTY FIFTH", "TWENTY SEVENTH"),
]

# What espeak-ng must be given where it would not say the word as meant: an article, "roo-bout".
SAID_AS = {"A": "ay", "RUBOUT": "rub out"}


def draw(rng, vocabulary):
    return pick(rng, KINDS_OF_TEXT)(rng, vocabulary)


def said(transcript):
    """For the synthesiser: letters in capitals are spelled."""
    return " ".join(SAID_AS.get(word, word if len(word) == 1 else word.lower()) for word in transcript.split())


def pick(rng, choices):
    """Only random() promises the same numbers in every version of Python, so nothing else of Random is used."""
    return choices[int(rng.random() * len(choices))]


def _command(rng, vocabulary):
    return pick(rng, vocabulary.commands)


def _code(rng, _):
    """ENTER SIX; RUBOUT G M E F THREE NINE."""
    letters = _several(rng, LETTERS, 0, 3)
    return " ".join([pick(rng, TAKES_CODE), *letters, *_several(rng, DIGITS, 1, 3)])


def _digits(rng, _):
    """A telephone number, or part of one."""
    return " ".join(_several(rng, DIGITS, 3, 7))


def _number(rng, _):
    """FORTY TWO; SIX HUNDRED FORTY TWO."""
    words = [pick(rng, TENS), pick(rng, DIGITS[1:])]
    return " ".join(words if rng.random() < 0.3 else [pick(rng, DIGITS[1:]), "HUNDRED", *words])


def _spelled(rng, vocabulary):
    return " ".join(pick(rng, vocabulary.names))


def _name(rng, vocabulary):
    return pick(rng, vocabulary.names + vocabulary.places)


def _date(rng, _):
    """MAY FIRST; JUNE TWENTY SEVENTH NINETEEN SIXTY ONE."""
    date = f"{pick(rng, MONTHS)} {pick(rng, ORDINALS)}"
    return date if rng.random() < 0.4 else f"{date} NINETEEN {pick(rng, TENS)} {pick(rng, DIGITS[1:])}"


def _several(rng, choices, least, most):
    return [pick(rng, choices) for _ in range(least + int((most + 1 - least) * rng.random()))]


# Kind of text -> how many of 12.
SHARES = {_command: 2, _code: 2, _digits: 3, _number: 1, _spelled: 2, _name: 1, _date: 1}
KINDS_OF_TEXT = [kind for kind, share in SHARES.items() for _ in range(share)]
