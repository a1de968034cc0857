"""Prepare the AN4 corpus for training: audio, transcripts and manifests in one folder.

    python scripts/prepare_an4.py an4_sphere.tar.gz     CMU's archive, or any part of it
    python scripts/prepare_an4.py --synthetic           948 + 130 utterances by speech synthesis
    python scripts/prepare_an4.py --synthetic --hard    948 + 390, hard enough to tell ways of training apart

Interrupted, it goes on where it stopped when it is run again; run on a whole corpus, it says so and ends.
"""

import argparse
import signal
import sys
import time
from pathlib import Path

from tqdm import tqdm

import _project
from oktopk_training.errors import UserError
from oktopk_training.job import program

INTERRUPTED_STATUS = 128 + signal.SIGINT
PLAIN_PROGRESS_STEP = 200  # utterances, where the output is not a terminal


@program
def main():
    options = parse_command_line()
    prepare = prepare_synthetic if options.synthetic else prepare_archive
    try:
        prepare(options)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; what is written is whole: run the same command again to go on.\n")
        sys.exit(INTERRUPTED_STATUS)


def parse_command_line():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", nargs="?", type=Path, metavar="ARCHIVE", help="CMU's an4_sphere.tar.gz")
    parser.add_argument("--synthetic", action="store_true", help="make a corpus by speech synthesis instead")
    parser.add_argument(
        "--hard", action="store_true", help="voices in validation that training has not, rooms, noise, faster speech"
    )
    parser.add_argument(
        "--out", type=Path, default=_project.AUDIO_DATA, metavar="FOLDER", help="default: audio_data in the project"
    )
    for split in ("train", "test"):
        parser.add_argument(
            f"--{split}-utterances", type=positive, metavar="N", help=f"only the first N synthetic {split} utterances"
        )
    options = parser.parse_args()
    if options.synthetic == (options.archive is not None):
        parser.error("give either an ARCHIVE or --synthetic")
    if options.archive and (options.hard or options.train_utterances or options.test_utterances):
        parser.error("--hard, --train-utterances and --test-utterances belong to --synthetic")
    return options


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def prepare_archive(options):
    from corpus.archive import An4Archive
    from corpus.layout import Corpus

    archive = An4Archive(options.archive)
    corpus = Corpus(options.out, archive.identity)
    if already_there(corpus):
        return
    contents = archive.scan()
    if contents.without_audio or contents.without_transcript:
        print(
            f"{archive.path}: left out {contents.without_audio} transcripts without audio "
            f"and {contents.without_transcript} recordings without transcript."
        )
    write(corpus, archive.utterances(contents), len(contents.transcripts))


def prepare_synthetic(options):
    from corpus import synthetic
    from corpus.layout import Corpus
    from corpus.speech import Speaker, SpeechError

    recipe = synthetic.HARD if options.hard else synthetic.EASY
    asked = options.train_utterances, options.test_utterances
    counts = [count or whole for count, whole in zip(asked, recipe.utterances, strict=True)]
    corpus = Corpus(options.out, recipe.identity(*counts))
    if already_there(corpus):
        return
    try:
        with Speaker() as speaker:
            write(corpus, synthetic.utterances(recipe, speaker, *counts), sum(counts))
    except SpeechError as error:
        raise UserError(str(error)) from error


def already_there(corpus):
    if corpus.is_complete():
        print(f"{corpus.folder}: complete already ({corpus.identity}).")
        return True
    return False


def write(corpus, utterances, count):
    print(f"{corpus.folder}: writing {count} utterances ({corpus.identity}).", flush=True)
    seconds = [corpus.seconds(utterance) for utterance in with_progress(corpus.write(utterances), count)]
    print(
        f"{corpus.folder}: {len(seconds)} utterances, {sum(seconds) / 3600:.2f} h, "
        f"{sum(seconds) / len(seconds):.2f} s on average."
    )


def with_progress(written, count):
    """A bar on a terminal; elsewhere, for log files, a plain line now and then."""
    if sys.stderr.isatty():
        yield from tqdm(written, total=count, unit="utterance", leave=False)
        return
    start = time.monotonic()
    for done, utterance in enumerate(written, start=1):
        if done % PLAIN_PROGRESS_STEP == 0:
            print(f"  {done} of {count} after {time.monotonic() - start:.0f} s", flush=True)
        yield utterance


if __name__ == "__main__":
    main()
