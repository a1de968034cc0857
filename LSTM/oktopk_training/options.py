"""The command line: every option, its default and its check, into one frozen `Options`."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from .command_line import (
    Parser,
    boolean,
    compressor_name,
    hyphenated,
    natural,
    non_negative_float,
    positive_float,
    positive_int,
    probability,
    share,
    up_to,
)
from .errors import UserError
from .places import find_folder
from .tasks import DEFAULT, TASKS

MOST_UNITS, MOST_LAYERS = 2**16, 100
MOST_SEED = 2**62  # each rank adds its number


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
    given = _parser(description).parse_args([hyphenated(word) for word in arguments])
    if given.resume or given.checkpoint_interval:
        raise UserError(
            "--resume and --checkpoint-interval are not offered yet, for nothing saves the residuals of a sparse run; "
            "start from a run's last weights with --pretrain RUN/checkpoints/last.pt"
        )
    task = TASKS[given.dnn]
    if given.dataset not in (None, task.dataset):
        raise UserError(f"--dnn {given.dnn} learns from --dataset {task.dataset}, not from {given.dataset}")
    if given.noise_dir and not given.augment:
        raise UserError("--noise-dir has no effect with --no-augment; drop one of them")
    return Options(
        dnn=given.dnn,
        dataset=task.dataset,
        data_dir=find_folder(given.data_dir or task.data_dir, "--data-dir", task.data_source),
        batch_size=given.batch_size,
        nsteps_update=given.nsteps_update,
        lr=given.lr,
        max_epochs=given.max_epochs,
        val_interval=given.val_interval,
        max_grad_norm=given.max_grad_norm or task.max_grad_norm,
        hidden_size=given.hidden_size or task.hidden_size,
        hidden_layers=given.hidden_layers or task.hidden_layers,
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


def choose_device(name):
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device here; use --device cpu or auto")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


def _parser(description):
    parser = Parser(description=description)
    add = parser.add_argument
    what = parser.add_argument_group("what is trained").add_argument
    what("--dnn", choices=sorted(TASKS), default=DEFAULT, help="the model")
    what("--dataset", choices=sorted(task.dataset for task in TASKS.values()), help="what it learns from")
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
