"""The options of a run: each with its default, its help and its check, once, and the command line made of them."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from oktopk import Settings, compressors, transports
from oktopk.fields import COUNT, FLAG, INTERVAL, MOST, NATURAL, PATH, POSITIVE, TEXT, choice, option, up_to
from oktopk.registry import find_compressor
from oktopk.watchdog import LIMIT
from oktopk.wire import AUTO

from .command_line import Parser, add_options, hyphenated, offered
from .errors import UserError
from .places import find_folder
from .tasks import DEFAULT, TASKS
from .tasks.task import TaskOptions

MOST_UNITS, MOST_LAYERS, MOST_THREADS = 2**16, 100, 1024
MOST_SEED = 2**62  # each rank adds its number
OF_THE_TASK = ("dataset", "data_dir", "hidden_size", "hidden_layers", "max_grad_norm")  # it has their defaults
DATASETS = sorted({task.dataset for task in TASKS.values()})
COMPRESSOR = replace(choice(*compressors, AUTO), metavar="NAME")
TRANSPORT = choice(transports.AUTO, *transports.names())
RESUME = replace(TEXT, metavar="auto|PATH")
DEVICE = choice("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Options:
    """Those of the run itself, with those of the reduction and those that only its task has."""

    dnn: str = option(DEFAULT, choice(*sorted(TASKS)), "the model, and with it what is trained")
    dataset: str | None = option(None, choice(*DATASETS), "what it learns from")
    data_dir: Path | None = option(None, PATH, "where that is, seen from here or from the project's folder")
    hidden_size: int | None = option(None, up_to(MOST_UNITS, COUNT), "units of a layer")
    hidden_layers: int | None = option(None, up_to(MOST_LAYERS, COUNT), "LSTM layers")
    pretrain: Path | None = option(None, PATH, "start from the weights of this saved model")
    batch_size: int = option(8, COUNT, "utterances, or streams of text, of a rank")
    nsteps_update: int = option(1, COUNT, "batches whose gradients make one step")
    lr: float = option(0.01, up_to(MOST, POSITIVE), "learning rate of the first epoch")
    max_grad_norm: float | None = option(None, up_to(MOST, POSITIVE), "longest averaged gradient")
    max_epochs: int = option(10, COUNT, "epochs to train")
    val_interval: int = option(5, COUNT, "epochs from one validation to the next")
    device: str = option("auto", DEVICE, "where the model computes")
    seed: int = option(0, up_to(MOST_SEED, NATURAL), "of weights, order and augmentation")
    run_dir: Path | None = option(None, PATH, "what the run leaves behind; by default runs/<name>/<time>")
    resume: str | None = option(None, RESUME, "go on: auto (where this run was ended), a run's folder, or a checkpoint")
    checkpoint_interval: str = option("15m", INTERVAL, "steps or minutes from one checkpoint to the next")
    keep_checkpoints: int = option(3, COUNT, "checkpoints that are kept, the newest")
    watchdog: float | None = option(None, LIMIT, "how long ranks wait for one that does not come; default 5m, 0: ever")
    trace: bool = option(False, FLAG, "write down every communication of every rank: trace.json and trace.csv")
    record_gradients: int | None = option(None, NATURAL, "step from which on each rank writes down three gradients")
    inspect: int | None = option(None, COUNT, "every N steps, write down what is chosen of gradients and what stays")
    transport: str = option(transports.AUTO, TRANSPORT, "how ranks reach each other")
    threads: int | None = option(
        None, up_to(MOST_THREADS, COUNT), "of a rank; by default ranks share their node's cores"
    )
    nworkers: int | None = option(None, COUNT, "ranks that mpirun was told to start: checked")
    nwpernode: int | None = option(None, COUNT, "ranks of a node: checked and noted")
    compression: bool = option(False, FLAG, "let --compressor choose what is sent; without, everything is")
    compressor: str = option(
        "oktopk", COMPRESSOR, f"how gradients are reduced: {', '.join(compressors)}; auto: by what is fastest here"
    )
    momentum_correction: bool | None = option(
        None, FLAG, "accumulate momentum on each rank, before compression; by default where steps are sparse"
    )
    settings: Settings = field(default_factory=Settings)
    task: TaskOptions = field(default_factory=TaskOptions)

    @property
    def is_sparse(self):
        return self.compression and find_compressor(self.compressor).is_sparse

    @property
    def corrects_momentum(self):
        return self.is_sparse if self.momentum_correction is None else self.momentum_correction

    @property
    def torch_device(self):
        return torch.device(self.device)

    def flat(self):
        """All of them by name, as config.json has them."""
        parts = (self, self.settings, self.task)
        values = {each.name: getattr(part, each.name) for part in parts for each in offered(part)}
        values["momentum_correction"] = self.corrects_momentum
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def parse_options(arguments, description=None):
    """Command-line words to validated options. Nothing is opened but what must be looked for: folders and devices."""
    given = vars(_parser(description).parse_args([hyphenated(word) for word in arguments]))
    task = TASKS[given.get("dnn", DEFAULT)]
    if given.get("dataset", task.dataset) != task.dataset:
        raise UserError(f"--dnn {task.name} learns from --dataset {task.dataset}, not from {given['dataset']}")

    def those_of(part):
        return {each.name: given[each.name] for each in offered(part) if each.name in given}

    if given.get("inspect") and given.get("hierarchical"):
        raise UserError(
            "--inspect looks at what every rank chooses, and with --hierarchical only some do: leave one of them out"
        )
    if given.get("overlap") and given.get("record_gradients") is not None:
        raise UserError(
            "--overlap True sums gradients while they are made, and --record-gradients wants those of each rank: leave "
            "one of them out"
        )
    defaults = {name: getattr(task, name) for name in OF_THE_TASK}
    options = Options(**{**defaults, **those_of(Options)})
    return replace(
        options,
        data_dir=find_folder(options.data_dir, "--data-dir", task.data_source),
        device=choose_device(options.device),
        settings=Settings(**those_of(Settings)),
        task=task.Options(**those_of(task.Options)).settled(),
    )


def with_later_ones(earlier):
    """The options of an earlier run, as `flat` gave them, and those that came since: then as by default now."""
    return {**Options().flat(), **earlier}


def transport_of(arguments):
    """What --transport says: ranks must be connected before they can refuse options together, this one included."""
    parser = Parser(add_help=False)
    parser.add_argument("--transport", default=transports.AUTO)
    name = None
    with suppress(UserError):
        name = parser.parse_known_args([hyphenated(word) for word in arguments])[0].transport
    return name if name in transports.names() else transports.AUTO


def choose_device(name):
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device here; use --device cpu or auto")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


def _parser(description):
    parser = Parser(description=description)
    add_options(parser.add_argument_group("the run"), Options, _default)
    add_options(parser.add_argument_group("the reduction"), Settings)
    for own in dict.fromkeys(task.Options for task in TASKS.values()):
        names = ", ".join(task.name for task in TASKS.values() if task.Options is own)
        add_options(parser.add_argument_group(f"{names} alone"), own)
    return parser


def _default(each):
    if each.name not in OF_THE_TASK:
        return each.default
    return ", ".join(f"{getattr(task, each.name)} for {task.name}" for task in TASKS.values())
