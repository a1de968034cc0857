"""Make a manifest usable here: somebody else's absolute paths become paths relative to the manifest.

    python scripts/fix_manifest.py MANIFEST [--root FOLDER] [--out FILE]
    python scripts/fix_manifest.py --from FOLDER --out FILE

The first form finds, for each path, the files below --root (default: the manifest's folder) that share the longest
tail with it: `/home/ann/an4/train/wav/x.wav` is `an4/train/wav/x.wav` here, if that exists, or else `train/wav/x.wav`,
and so on to `x.wav` wherever it lies. Two files that match equally well are reported and not chosen between.
The second form pairs FOLDER/wav/x.wav with FOLDER/txt/x.txt.

Lines without a match are listed and left out, and the exit status is then 1; if none is left, nothing is written.
MANIFEST is rewritten in place, and its first form kept beside it as MANIFEST.bak; --out leaves it alone.
"""

import argparse
import os
import sys
from collections import defaultdict
from pathlib import Path, PurePosixPath, PureWindowsPath

import _project  # noqa: F401 - puts LSTM/ on the path
from oktopk_training.errors import UserError
from oktopk_training.files import atomic_write
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
        sys.stderr.write(f"left out: {problem}\n")
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
    """(audio, transcript) paths by equal stem, and what has no partner."""
    files = {}
    for kind in ("wav", "txt"):
        found = sorted(path for path in (folder / kind).glob(f"*.{kind}") if path.is_file())
        files[kind] = {path.stem: path for path in found}
        if not found:
            raise UserError(f"{folder / kind} holds no .{kind} files; {folder} should have wav/ and txt/.")
    audio, texts = files["wav"], files["txt"]
    pairs = [(audio[stem], texts[stem]) for stem in audio if stem in texts]
    problems = [f"{audio[stem]} has no transcript" for stem in audio if stem not in texts]
    problems += [f"{texts[stem]} has no audio" for stem in texts if stem not in audio]
    return pairs, problems


def pairs_of_manifest(manifest, root):
    """(audio, transcript) paths that exist, and what could not be matched."""
    if not os.path.isdir(root):
        raise UserError(f"the folder {root} does not exist; give the folder of the data with --root.")
    files = FilesBelow(root)
    pairs, problems = [], []
    for number, line in enumerate(read_lines(manifest), start=1):
        if not line.strip():
            continue
        try:
            pairs.append(matched_line(line, files, manifest.parent))
        except NoMatch as error:
            problems.append(f"{manifest}:{number}: {error}")
    return pairs, problems


def read_lines(manifest):
    try:
        return manifest.read_text(encoding="utf-8-sig").splitlines()  # "sig": Windows begins files with a mark
    except OSError as error:
        raise UserError(f"cannot read the manifest {manifest}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{manifest} is not a manifest: it is not UTF-8 text.") from error


class NoMatch(Exception):
    """No file, or more than one, fits a path; the message says which."""


def matched_line(line, files, home):
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != 2 or not all(fields):
        raise NoMatch(f"expected `audio path,transcript path`, found {line!r}")
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
            raise NoMatch(f"{text!r} names no file")
        if not Path(text).is_absolute() and os.path.isfile(home / text):  # of names too long, too
            return home / text
        candidates = self.by_name.get(wanted[-1], [])
        if not candidates:
            raise NoMatch(f"no file called {wanted[-1]} below {self.root}")
        shared = [shared_tail(wanted, path.relative_to(self.root).parts) for path in candidates]
        best = [path for path, length in zip(candidates, shared, strict=True) if length == max(shared)]
        if len(best) > 1:
            raise NoMatch(f"{text} fits {len(best)} files equally well, among them {best[0]} and {best[1]}")
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
            file.write(",".join(paths) + "\n")


def refuse_unwritable(path):
    """A manifest is UTF-8, with a pair of paths on each line."""
    whole = path.strip() == path and path.splitlines() == [path]
    if not whole or "," in path or any(0xD800 <= ord(character) < 0xE000 for character in path):
        raise UserError(
            f"{path!r}: a path in a manifest must be UTF-8 text without a comma, line break or space at its ends; "
            "rename the file."
        )


if __name__ == "__main__":
    main()
