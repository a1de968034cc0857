"""What reads files that others wrote, each as a function of a file's bytes, and honest files to begin from.

A target may raise what its programs show as one sentence, and nothing else.
"""

import io
import json
import math
import struct
import tarfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import soundfile
import torch

import report
from corpora import tone
from corpus.archive import An4Archive
from corpus.layout import Corpus, Utterance
from drawing.plot import draw as draw_plot
from experiments import outcomes, tables
from experiments.plan import Planned
from fix_manifest import pairs_of_folder, pairs_of_manifest, write_manifest
from oktopk.checkpoints import COMMON, WHOLE, CheckpointError, Checkpoints
from oktopk.tensor_files import DamagedFile, read, sealed
from oktopk.transports.alone import Alone
from oktopk_training.errors import UserError
from oktopk_training.inputs import parse_json
from oktopk_training.options import Options
from oktopk_training.runs import Run
from oktopk_training.saved_models import build_model, load_weights, read_model
from oktopk_training.tasks.language.text import load_ptb
from oktopk_training.tasks.speech.batches import read_batch
from oktopk_training.tasks.speech.manifest import load_manifest
from oktopk_training.tasks.speech.model import LSTMAN4
from oktopk_training.tasks.speech.noise import load_noises
from plot_run import draw, figures_of, read_config, read_metrics, title_of
from single.an4_archives import members

LONGEST_MESSAGE = 2000  # characters


class Target(NamedTuple):
    read: Callable  # of an empty folder and the bytes
    seeds: Callable  # honest files


def attempt(name, content):
    """Whether the file was taken. What a reader says of one that was not is one line."""
    with TemporaryDirectory() as folder:
        try:
            TARGETS[name].read(Path(folder), content)
            return True
        except (UserError, DamagedFile, CheckpointError) as error:
            said = str(error)
    assert len(said.splitlines()) == 1, said
    assert len(said) < LONGEST_MESSAGE, said
    return False


# ---- models and checkpoints


def read_tensors(folder, content):
    (folder / "file.pt").write_bytes(content)
    read(folder / "file.pt")


def read_saved_model(folder, content):
    path = folder / "model.pt"
    path.write_bytes(content)
    build_model(read_model(path), path)
    load_weights(small_model(), "lstman4", path)


def read_described(folder, content):
    """The description of the tensors alone, in an archive that is whole: check sums hide it from chance."""
    whole = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(few_tensors()[0])) as honest, zipfile.ZipFile(whole, "w") as archive:
        for name in honest.namelist():
            archive.writestr(name, content if name.endswith("/data.pkl") else honest.read(name))
    read_tensors(folder, whole.getvalue())


def read_other_model(folder, content):
    """A model of JSON's making: for each weight a shape, or what is none."""
    try:
        described = parse_json(content.decode())
    except ValueError:
        return
    weights = described.get("model") if isinstance(described, dict) else None
    if isinstance(weights, dict):
        described["model"] = {name: of_shape(shape) for name, shape in weights.items()}
    whole = io.BytesIO()
    torch.save(described, whole)
    read_saved_model(folder, whole.getvalue())


def of_shape(shape):
    if not isinstance(shape, list) or any(type(size) is not int or not 0 <= size < 2000 for size in shape):
        return shape
    return torch.zeros(shape if math.prod(shape) < 1e6 else [], dtype=torch.float32 if shape else torch.int64)


def other_model():
    weights = {name: list(tensor.shape) for name, tensor in small_model().state_dict().items()}
    return json.dumps({"dnn": "lstman4", "sizes": small_model().sizes, "model": weights}).encode()


def read_checkpoint(folder, content):
    place = folder / "step-00000001"
    place.mkdir()
    for name in ("rank-0.pt", COMMON):
        (place / name).write_bytes(sealed({"value": torch.ones(3)}))
    (place / WHOLE).write_bytes(content)
    Checkpoints(folder, Alone()).load()


@cache
def small_model():
    torch.manual_seed(0)
    return LSTMAN4(4, 1)


@cache
def model_file():
    net = small_model()
    content = {"dnn": "lstman4", "sizes": net.sizes, "epoch": 0, "figures": {"wer": 1.0}, "model": net.state_dict()}
    whole = io.BytesIO()
    torch.save(content, whole)
    return whole.getvalue()


def description():
    with zipfile.ZipFile(io.BytesIO(few_tensors()[0])) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))


@cache
def few_tensors():
    content = {"a": torch.arange(5), "b": [torch.ones(2, 3), None, True, 1.5, -3, "text"], "c": {1: ()}}
    whole = io.BytesIO()
    torch.save(content, whole)
    return [whole.getvalue(), bytes(sealed(content))]


def index():
    with TemporaryDirectory() as folder:
        Checkpoints(folder, Alone()).save(1, {"value": torch.ones(3)}, {"value": torch.ones(3)})
        return (Path(folder) / "step-00000001" / WHOLE).read_bytes()


# ---- speech and text


def read_manifest(folder, content):
    put_utterances(folder)
    (folder / "manifest.csv").write_bytes(content)
    read_batch(load_manifest(folder / "manifest.csv"), [0])


def put_utterances(folder):
    for name in ("a", "b"):
        (folder / f"{name}.wav").write_bytes(sound())
        (folder / f"{name}.txt").write_text(name)


def read_transcript(folder, content):
    manifest = one_utterance(folder, "a.wav", sound(), content)
    load_manifest(manifest)


def read_sound(folder, content):
    """What the manifest's reading takes, training takes; and noise is read without a manifest."""
    manifest = one_utterance(folder, "noise/a.wav", content, b"A")
    try:
        utterances = load_manifest(manifest)
    except UserError:
        load_noises(folder / "noise")
    else:
        samples = read_batch(utterances, [0]).frames
        assert samples > 0


def one_utterance(folder, name, content, spoken):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    (folder / "a.txt").write_bytes(spoken)
    (folder / "manifest.csv").write_text(f"{name},a.txt\n")
    return folder / "manifest.csv"


def read_text(folder, content):
    """The text to learn from, and the other two behind the first empty line."""
    train, _, other = content.partition(b"\n\n")
    for part, each in (("train", train), ("valid", other), ("test", other)):
        (folder / f"ptb.{part}.txt").write_bytes(each)
    load_ptb(folder)


@cache
def sound(form="WAV", subtype=None, rate=16_000, channels=1):
    whole = io.BytesIO()
    samples = np.stack([tone(0.06, rate=rate)] * channels, axis=1)
    soundfile.write(whole, samples, rate, format=form, subtype=subtype)
    return whole.getvalue()


def sounds():
    streamed = bytearray(sound())
    struct.pack_into("<I", streamed, 40, 0xFFFFFFFF)
    forms = [("WAV",), ("WAV", "FLOAT"), ("FLAC",), ("OGG",), ("NIST",), ("AIFF",), ("MP3",), ("CAF",), ("W64",)]
    return [*(sound(*form) for form in forms), sound(rate=8_000, channels=2), bytes(streamed)]


# ---- scripts


def fix(folder, content):
    put_utterances(folder)
    manifest = folder / "theirs.csv"
    manifest.write_bytes(content)
    pairs, _ = pairs_of_manifest(manifest, folder)
    write_manifest(folder / "mended.csv", pairs)
    assert [*pairs_of_manifest(folder / "mended.csv", folder)[0]] == pairs


def fix_names(folder, content):
    """Names of files, one a line."""
    for kind in ("wav", "txt"):
        (folder / kind).mkdir()
        for name in content[:400].split(b"\n")[:4]:
            name = name.replace(b"/", b"").replace(b"\0", b"")[:100]
            (folder / kind / name.decode("utf-8", "surrogateescape")).with_suffix(f".{kind}").write_text("x")
    pairs, _ = pairs_of_folder(folder)
    write_manifest(folder / "made.csv", pairs)
    assert [*pairs_of_manifest(folder / "made.csv", folder)[0]] == pairs


def prepare(folder, content):
    (folder / "archive").write_bytes(content)
    archive = An4Archive(folder / "archive")
    contents = archive.scan()
    corpus = Corpus(folder / "out", archive.identity)
    for _ in corpus.write(archive.utterances(contents)):
        pass
    assert {path.name for path in folder.iterdir()} == {"archive", "out"}


def archives():
    train, test = {"an251-fash-b": "YES", "cen1-fash-b": "R A N D Y"}, {"an391-mjwl-b": "NO"}
    files = members(train, test, dict.fromkeys([*train, *test], range(80)))
    for mode in ("w", "w:gz", "w:bz2"):
        for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            whole = io.BytesIO()
            with tarfile.open(fileobj=whole, mode=mode, format=form) as tar:
                for name, each in files.items():
                    info = tarfile.TarInfo(name)
                    info.size, info.mtime = len(each), 1.5  # half seconds need a PAX header
                    tar.addfile(info, io.BytesIO(each))
            yield whole.getvalue()


def know_corpus(folder, content):
    corpus = Corpus(folder, "this one")
    for _ in corpus.write([Utterance("train", "a", "YES", sound)]):
        pass
    (folder / "an4" / "corpus.json").write_bytes(content)
    corpus.is_complete()
    (folder / "an4" / "corpus.json").write_text('{"corpus": "this one"}')
    (folder / "an4_train_manifest.csv").write_bytes(content)
    corpus.is_complete()


def plot(folder, content):
    """The configuration, and the metrics behind the first empty line."""
    config, _, metrics = content.partition(b"\n\n")
    (folder / "config.json").write_bytes(config)
    (folder / "metrics.jsonl").write_bytes(metrics)
    records = read_metrics(folder)
    config = read_config(folder)
    draw(records, title_of(config) or "run", figures_of(config, records["val"])).savefig(io.BytesIO(), format="png")


def show_inspections(folder, content):
    (folder / "metrics.jsonl").write_bytes(metrics())
    (folder / "inspections.jsonl").write_bytes(content)
    report.report(report.shown([Run.read(folder)]))


def compare(folder, content):
    """The configuration, and the metrics behind the first empty line, of a run that an experiment finds."""
    config, _, metrics = content.partition(b"\n\n")
    (folder / "config.json").write_bytes(config)
    (folder / "metrics.jsonl").write_bytes(metrics)
    found, run = outcomes.read(folder), Planned({"density": "0.02"}, 0, [], wanted())
    outcomes.seconds_of(found)
    if outcomes.is_finished(found, run):
        came = [outcomes.outcome_of(found, run, target=0.3)] * 2
        tables.markdown(*tables.table_of(came, ["density"], 0.3))
        tables.write_csv(io.StringIO(), came, ["density"])
        if tables.curves_of(came):
            draw_plot(tables.curves_of(came))
    outcomes.refuse_another(found, run)


def wanted():
    return Options(max_epochs=2)


def metrics():
    step = {"kind": "iter", "loss": 2.5, "lr": 0.01, "bytes_sent": 80, "phase": "sparse", "skipped": False}
    step |= {"target_k": 10, "selected_global": 11}
    steps = [step | {"iter": number, "epoch": number // 2} for number in range(4)]
    tested = [{"kind": "val", "epoch": epoch, "loss": 2.0, "wer": 0.5, "cer": 0.25} for epoch in (0, 1)]
    return "".join(json.dumps(each) + "\n" for each in (*steps, *tested, {"kind": "event", "name": "x"})).encode()


def inspections():
    counts = {"zeros": 3, "first": -4, "counts": [1, 0, 2]}
    norm, ages = {"norm": 1.5, **counts}, {"steps": 2, "mean": 1.5, **counts}
    line = {"phase": "sparse", "seconds": 0.1, "gradient": norm, "residual": norm, "ages": ages}
    line |= dict.fromkeys(("overlap", "overlap_of_result", "energy", "energy_sent"), 0.5)
    line |= {"selected": {"layers.0.weight_ih_l0": [1, 4], "b": [1, 2]}}
    lines = ({"iter": 0, **line, "phase": "dense"}, {"iter": 1, **line}, {"iter": 3, **line})
    return "".join(json.dumps(each) + "\n" for each in lines).encode()


def configuration():
    content = {"options": wanted().flat(), "ranks": 2, "figures": {"wer": "WER", "cer": "$CER$"}}
    return json.dumps(content).encode()


TARGETS = {
    "tensors": Target(read_tensors, few_tensors),
    "model": Target(read_saved_model, lambda: [model_file()]),
    "description": Target(read_described, lambda: [description()]),
    "other model": Target(read_other_model, lambda: [other_model()]),
    "checkpoint": Target(read_checkpoint, lambda: [index()]),
    "manifest": Target(
        read_manifest,
        lambda: [b"a.wav,a.txt\n", b'"a.wav", "b.txt"\r\n', b"gone.wav,a\n", "é,ü".encode()],
    ),
    "transcript": Target(read_transcript, lambda: [b"YES\n", "\ufeffIT'S".encode(), b"no  it\tis 4"]),
    "sound": Target(read_sound, sounds),
    "text": Target(read_text, lambda: [b"a b <unk>\nb a a\n\na b", "é\n\nü é".encode()]),
    "fix": Target(
        fix,
        lambda: [
            b"/x/a.wav,/y/a.txt\n",
            rb"C:\x\b.wav,a.txt",
            b'"/a/a.wav","b.txt"',
        ],
    ),
    "names": Target(fix_names, lambda: [b"a\nb,c\nUP\n", b'a"b\n d \n', "é\u2028\n\xff".encode()]),
    "archive": Target(prepare, lambda: [*archives()]),
    "corpus": Target(know_corpus, lambda: [b'{"corpus": "this one"}', b"an4/train/wav/a.wav,an4/train/txt/a.txt\n"]),
    "plot": Target(plot, lambda: [configuration() + b"\n\n" + metrics()]),
    "inspections": Target(show_inspections, lambda: [inspections()]),
    "compare": Target(compare, lambda: [configuration() + b"\n\n" + metrics(), b"{}\n\n" + metrics()]),
}
