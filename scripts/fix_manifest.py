"""Make a manifest usable here: somebody else's absolute paths become paths relative to the manifest.

    python scripts/fix_manifest.py MANIFEST [--root FOLDER] [--out FILE]
    python scripts/fix_manifest.py --from FOLDER --out FILE

The first form finds, for each path, the files below --root (default: the manifest's folder) that share the longest
tail with it: `/home/ann/an4/train/wav/x.wav` is `an4/train/wav/x.wav` here, if that exists, or else `train/wav/x.wav`,
and so on to `x.wav` wherever it lies. Two files that match equally well are reported and not chosen between.
The second form pairs FOLDER/wav/x.wav with FOLDER/txt/x.txt. Fields may be in quotes, as pandas writes them.

Lines without a match are listed and left out, and the exit status is then 1; if none is left, nothing is written.
MANIFEST is rewritten in place, and its first form kept beside it as MANIFEST.bak; --out leaves it alone.
"""

import argparse
import os
import sys
from collections import defaultdict
from pathlib import Path, PurePosixPath, PureWindowsPath

import _project  # noqa: F401 - puts LSTM/ on the path
from oktopk_training.errors import UserError, one_line
from oktopk_training.files import atomic_write
from oktopk_training.inputs import MOST_OF_A_MANIFEST, comma_separated, quoted, read_lines, shown, with_commas
from oktopk_training.job import program

LINES_LEFT_OUT_STATUS = 1


@program
def main():
    options = parse_command_line()
    if options.pairs:
        pairs, problems = pairs_of_folder(options.pairs)
        source, target = options.pairs, options.out
    else:
        pairs, problems = pairs_of_manifest(options.manifest, options.root or options.manifest.parent)
        source, target = options.manifest, options.out or options.manifest
    for problem in problems:
        sys.stderr.write(f"left out: {one_line(problem)}\n")
    if not pairs:
        raise UserError(f"{source}: no line could be matched, so nothing is written; is --root the folder of the data?")
    keep_first_form(target, options.manifest)
    write_manifest(target, pairs)
    print(f"{target}: {len(pairs)} lines written, {len(problems)} left out.")
    sys.exit(LINES_LEFT_OUT_STATUS if problems else 0)


def parse_command_line():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", nargs="?", type=Path, metavar="MANIFEST", help="the manifest to rewrite")
    parser.add_argument("--root", type=Path, metavar="FOLDER", help="where the data is; default: the manifest's folder")
    parser.add_argument("--from", dest="pairs", type=Path, metavar="FOLDER", help="make a manifest of wav/ and txt/")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write here; default: the manifest itself")
    options = parser.parse_args()
    if (options.manifest is None) == (options.pairs is None):
        parser.error("give either a MANIFEST or --from FOLDER")
    if options.pairs and (options.out is None or options.root):
        parser.error("--from needs --out, and takes no --root")
    return options


def pairs_of_folder(folder):
    """(audio, transcript) paths by equal stem, and what has no partner, or more than one."""
    audio, texts = (files_by_stem(folder / kind, f".{kind}") for kind in ("wav", "txt"))
    pairs = [(audio[stem][0], texts[stem][0]) for stem in audio if len(audio[stem]) == len(texts[stem]) == 1]
    problems = [f"{path} has no transcript" for stem in audio if not texts[stem] for path in audio[stem]]
    problems += [f"{path} has no audio" for stem in texts if not audio[stem] for path in texts[stem]]
    for found in (audio, texts):
        problems += [
            f"{paths[0]} and {paths[1]} differ in their endings alone" for paths in found.values() if paths[1:]
        ]
    return pairs, problems


def files_by_stem(folder, ending):
    """Stem -> files of this ending, in small letters or large."""
    found = defaultdict(list)
    for path in sorted(folder.glob("*")):
        if path.suffix.lower() == ending and path.is_file():
            found[path.stem].append(path)
    if not found:
        raise UserError(f"{folder} holds no {ending} files; {folder.parent} should have wav/ and txt/.")
    return found


def pairs_of_manifest(manifest, root):
    """(audio, transcript) paths that exist, and what could not be matched."""
    if not os.path.isdir(root):
        raise UserError(f"the folder {root} does not exist; give the folder of the data with --root.")
    files = FilesBelow(root)
    pairs, problems = [], []
    for number, line in enumerate(lines_of(manifest), start=1):
        if not line.strip():
            continue
        try:
            pairs.append(matched_line(line, files, manifest.parent))
        except NoMatch as error:
            problems.append(f"{manifest}:{number}: {error}")
    return pairs, problems


def lines_of(manifest):
    try:
        yield from read_lines(manifest, MOST_OF_A_MANIFEST)
    except OSError as error:
        raise UserError(f"cannot read the manifest {manifest}: {error.strerror}.") from error


class NoMatch(Exception):
    """No file, or more than one, fits a path; the message says which."""


def matched_line(line, files, home):
    fields = comma_separated(line)
    if len(fields) != 2 or not all(fields):
        raise NoMatch(f"expected `audio path,transcript path`, found {quoted(line.strip())}")
    return tuple(files.match(field, home) for field in fields)


class FilesBelow:
    """The files below a folder, looked up by the tail of a path."""

    def __init__(self, root):
        self.root = root
        self.by_name = defaultdict(list)
        for folder, _, names in os.walk(root):
            for name in names:
                self.by_name[name].append(Path(folder, name))

    def match(self, text, home):
        """The file that `text` means: itself if it is right as it stands, else the one that shares the longest tail."""
        wanted = parts_of(text)
        if not wanted:
            raise NoMatch(f"{quoted(text)} names no file")
        if not Path(text).is_absolute() and os.path.isfile(home / text):  # of names too long, too
            return home / text
        candidates = [path for path in self.by_name.get(wanted[-1], []) if path.is_file()]
        if not candidates:
            raise NoMatch(f"no file called {shown(wanted[-1])} below {self.root}")
        shared = [shared_tail(wanted, path.relative_to(self.root).parts) for path in candidates]
        best = [path for path, length in zip(candidates, shared, strict=True) if length == max(shared)]
        if len(best) > 1:
            raise NoMatch(f"{shown(text)} fits {len(best)} files equally well, among them {best[0]} and {best[1]}")
        return best[0]


def parts_of(text):
    return (PureWindowsPath(text) if "\\" in text else PurePosixPath(text)).parts


def shared_tail(wanted, there):
    length = 0
    for a, b in zip(reversed(wanted), reversed(there), strict=False):
        if a != b:
            break
        length += 1
    return length


def keep_first_form(target, manifest):
    """A copy of what is about to be replaced, unless an earlier run has kept one: that is the first form."""
    backup = target.with_name(target.name + ".bak")
    if manifest and target.resolve() == manifest.resolve() and not backup.exists():
        with atomic_write(backup, "wb") as file:
            file.write(manifest.read_bytes())


def write_manifest(target, pairs):
    with atomic_write(target) as file:
        for pair in pairs:
            paths = [os.path.relpath(path, target.parent) for path in pair]
            for path in paths:
                refuse_unwritable(path)
            file.write(with_commas(paths))


def refuse_unwritable(path):
    """A manifest is UTF-8, with a pair of paths on each line."""
    whole = path.strip() == path and path.splitlines() == [path]
    if not whole or any(0xD800 <= ord(character) < 0xE000 for character in path):
        raise UserError(
            f"{path!r}: a path in a manifest must be UTF-8 text without a line break or a space at its ends; "
            "rename the file."
        )


if __name__ == "__main__":
    main()
