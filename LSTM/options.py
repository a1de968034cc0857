"""The command line: every option, its default and its check, into one frozen `Options`."""

import argparse
import math
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from errors import UserError

PROJECT = Path(__file__).resolve().parent.parent
DATASETS = {"lstman4": "an4", "lstm": "ptb"}  # what each model learns from
DATA_DIRS = {"an4": "audio_data", "ptb": "ptb_data"}
DATA_SOURCES = {
    "an4": "make the data with scripts/prepare_an4.py",
    "ptb": "name the folder that holds ptb.train.txt, ptb.valid.txt and ptb.test.txt",
}
HIDDEN = {"lstman4": (800, 5), "lstm": (1500, 2)}  # size, layers
# No use of an option needs more than this, and torch, which computes in float32 and int64, takes no more than some.
MOST = 10**9
MOST_UNITS, MOST_LAYERS = 2**16, 100
MOST_SEED = 2**62  # each rank adds its number
MAX_GRAD_NORM = {"lstman4": 400.0, "lstm": 0.25}


@dataclass(frozen=True)
class Options:
    dnn: str
    dataset: str
    data_dir: Path
    batch_size: int
    nsteps_update: int
    lr: float
    max_epochs: int
    val_interval: int
    max_grad_norm: float
    hidden_size: int
    hidden_layers: int
    augment: bool
    noise_dir: Path | None
    noise_prob: float
    noise_level: float
    pretrain: Path | None
    device: str  # cpu or cuda, or cuda:N
    seed: int
    run_dir: Path | None
    nworkers: int | None  # None: as many as were started
    nwpernode: int | None
    compression: bool
    compressor: str
    density: float
    sigma_scale: float
    warmup_iters: int
    threshold: str
    norm_clip: float | None
    momentum_correction: bool

    @property
    def is_sparse(self):
        from compression import compressors

        return self.compression and compressors[self.compressor].is_sparse

    @property
    def torch_device(self):
        import torch

        return torch.device(self.device)


def parse_options(arguments, description=None):
    """Command-line words to validated options. Nothing is opened but what must be looked for: folders and devices."""
    given = _parser(description).parse_args([_hyphenated(word) for word in arguments])
    if given.resume or given.checkpoint_interval:
        raise UserError(
            "--resume and --checkpoint-interval are not offered yet, for nothing saves the residuals of a sparse run; "
            "start from a run's last weights with --pretrain RUN/checkpoints/last.pt"
        )
    dataset = given.dataset or DATASETS[given.dnn]
    if dataset != DATASETS[given.dnn]:
        raise UserError(f"--dnn {given.dnn} learns from --dataset {DATASETS[given.dnn]}, not from {dataset}")
    if given.noise_dir and not given.augment:
        raise UserError("--noise-dir has no effect with --no-augment; drop one of them")
    size, layers = HIDDEN[given.dnn]
    return Options(
        dnn=given.dnn,
        dataset=dataset,
        data_dir=find_folder(given.data_dir or DATA_DIRS[dataset], "--data-dir", DATA_SOURCES[dataset]),
        batch_size=given.batch_size,
        nsteps_update=given.nsteps_update,
        lr=given.lr,
        max_epochs=given.max_epochs,
        val_interval=given.val_interval,
        max_grad_norm=given.max_grad_norm or MAX_GRAD_NORM[given.dnn],
        hidden_size=given.hidden_size or size,
        hidden_layers=given.hidden_layers or layers,
        augment=given.augment,
        noise_dir=find_folder(given.noise_dir, "--noise-dir") if given.noise_dir else None,
        noise_prob=given.noise_prob,
        noise_level=given.noise_level,
        pretrain=Path(given.pretrain) if given.pretrain else None,
        device=choose_device(given.device),
        seed=given.seed,
        run_dir=Path(given.run_dir) if given.run_dir else None,
        nworkers=given.nworkers,
        nwpernode=given.nwpernode,
        compression=given.compression,
        compressor=given.compressor,
        density=given.density,
        sigma_scale=given.sigma_scale,
        warmup_iters=given.warmup_iters,
        threshold=given.threshold,
        norm_clip=given.norm_clip,
        momentum_correction=given.momentum_correction,
    )


def find_folder(name, option, remedy="name one that exists"):
    """A relative folder is looked for from the current folder, then from the project's: job scripts start in either."""
    candidates = list(dict.fromkeys([Path.cwd() / name, PROJECT / name]))
    for folder in candidates:
        if os.path.isdir(folder):  # unlike Path.is_dir, it takes a name that is too long
            return folder.resolve()
    looked = " nor ".join(str(folder) for folder in candidates)
    raise UserError(f"{option} {name}: there is no folder {looked}; {remedy}")


def choose_device(name):
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device here; use --device cpu or auto")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Defaults in brackets, but for options without one and flags."""

    def _get_help_string(self, action):
        return action.help if action.default in (None, True, False) else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """Options are never abbreviated, so that a new one cannot change what an old script says."""

    def __init__(self, **settings):
        super().__init__(allow_abbrev=False, formatter_class=_Help, **settings)

    def error(self, message):
        raise UserError(f"{message}; --help lists the options")


def positive_int(word, most=MOST):
    return _number(int, word, lambda value: value > 0, "a whole number above 0", most)


def natural(word, most=MOST):
    return _number(int, word, lambda value: value >= 0, "a whole number, 0 or more", most)


def up_to(most, kind=positive_int):
    return partial(kind, most=most)


def positive_float(word):
    return _number(float, word, lambda value: value > 0, "a number above 0")


def non_negative_float(word):
    return _number(float, word, lambda value: value >= 0, "a number, 0 or more")


def probability(word):
    return _number(float, word, lambda value: 0 <= value <= 1, "a number from 0 to 1")


def share(word):
    return _number(float, word, lambda value: 0 < value <= 1, "a share above 0 and at most 1")


def boolean(word):
    try:
        return {"true": True, "false": False}[word.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"expected True or False, found {word!r}") from None


def compressor_name(word):
    from compression import compressors  # its kernels take a while to import

    if word not in compressors:
        raise argparse.ArgumentTypeError(f"there is no {word!r}; choose from {', '.join(compressors)}")
    return word


def _number(kind, word, holds, wanted, most=MOST):
    try:
        value = kind(word)
    except ValueError:
        value = math.nan
    if not -math.inf < value < math.inf or not holds(value):
        raise argparse.ArgumentTypeError(f"expected {wanted}, found {word!r}")
    if value > most:
        raise argparse.ArgumentTypeError(f"expected at most {most}, found {word!r}")
    return value


def _hyphenated(word):
    """--data_dir=a_b -> --data-dir=a_b."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _parser(description):
    parser = Parser(description=description)
    add = parser.add_argument
    what = parser.add_argument_group("what is trained").add_argument
    what("--dnn", choices=sorted(DATASETS), default="lstman4", help="the model: lstman4 for speech, lstm for text")
    what("--dataset", choices=sorted(DATASETS.values()), help="an4 for lstman4, ptb for lstm")
    what("--data-dir", metavar="FOLDER", help="from here or from the project's folder; audio_data, ptb_data for ptb")
    what(
        "--hidden-size",
        type=up_to(MOST_UNITS),
        metavar="N",
        help="units of a layer; 800, for lstm 1500",
    )
    what("--hidden-layers", type=up_to(MOST_LAYERS), metavar="N", help="LSTM layers; 5, for lstm 2")
    what("--pretrain", metavar="MODEL", help="start from the weights of a saved model")

    how = parser.add_argument_group("how").add_argument
    how("--batch-size", type=positive_int, default=8, metavar="N", help="utterances, or streams of text, of a rank")
    how("--nsteps-update", type=positive_int, default=1, metavar="N", help="batches whose gradients make one step")
    how("--lr", type=positive_float, default=0.01, help="learning rate of the first epoch")
    how("--max-grad-norm", type=positive_float, metavar="X", help="longest averaged gradient; 400, for lstm 0.25")
    how("--max-epochs", type=positive_int, default=10, metavar="N", help="epochs to train")
    how("--val-interval", type=positive_int, default=5, metavar="N", help="epochs from one validation to the next")
    how("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where the model computes")
    how(
        "--seed",
        type=up_to(MOST_SEED, natural),
        default=0,
        metavar="N",
        help="of weights, order and augmentation",
    )
    how("--no-augment", dest="augment", action="store_false", help="train on the recordings as they are")
    how("--noise-dir", metavar="FOLDER", help="recordings of noise to mix into training audio")
    how("--noise-prob", type=probability, default=0.4, metavar="P", help="part of the utterances that get noise")
    how("--noise-level", type=non_negative_float, default=0.5, metavar="X", help="loudest noise, relative to speech")
    _add_reduction(parser.add_argument_group("over several ranks").add_argument)
    for later in ("--resume", "--checkpoint-interval"):  # of the contract; `parse_options` says what to do instead
        add(later, help=argparse.SUPPRESS)
    add("--run-dir", metavar="FOLDER", help="what the run leaves behind; by default runs/<name>/<time>")
    return parser


def _add_reduction(add):
    add("--nworkers", type=positive_int, metavar="P", help="ranks that mpirun was told to start: checked")
    add("--nwpernode", type=positive_int, metavar="N", help="ranks of a node: checked and noted")
    flag = {"nargs": "?", "const": True, "default": False, "type": boolean, "metavar": "True|False"}
    add("--compression", **flag, help="let --compressor choose what is sent; without, everything is")
    add("--compressor", type=compressor_name, default="oktopk", metavar="NAME", help="how sparse gradients are reduced")
    add("--density", type=share, default=0.02, metavar="X", help="share of the gradient that is sent")
    add("--warmup-iters", type=natural, default=128, metavar="N", help="dense steps before the first sparse one")
    add("--threshold", choices=("exact", "reuse"), default="exact", help="found anew in every step, or in every 32nd")
    add("--sigma-scale", type=positive_float, default=2.5, metavar="X", help="of the gaussian compressors")
    add(
        "--norm-clip", type=positive_float, metavar="X", help="clip each rank's gradient to X/sqrt(P) before it is sent"
    )
    add("--momentum-correction", action="store_true", help="accumulate momentum on each rank, before compression")
