"""The tables of a report: what came of the runs, where their time went, how they were made, what happened."""

import json
import shlex

from drawing.markup import breakable, element, joined
from drawing.page import table
from drawing.styles import line_key
from oktopk_training.inputs import printable
from oktopk_training.runs import number

from .shown import in_units, mean

LONGEST = 400  # characters of a value of the configuration
MOST_EVENTS = 30  # of a run
OF_ONE_RUN = ("run_dir", "command")  # they differ, and say nothing that the options do not
PHASES = ("dense", "sparse")
LONG = 60  # characters of a value that gets a line of its own
NOT_KNOWN = "–"
EVENTS = {
    "sparse_phase_started": "the sparse phase starts",
    "resumed": "goes on from a checkpoint",
    "skipped_steps": "steps were skipped: their gradients were not finite",
    "infinite_losses": "losses were infinite and counted as 0",
}


# ---- what came of it


def results(every):
    labels = list(dict.fromkeys(item for each in every for item in each.run.figures.items()))
    head = ["run", "steps", *(label for _, label in labels), "training loss", "sparsity", "sent per step"]
    head += [f"{phase} step" for phase in PHASES]
    rows = [
        [
            name_of(each),
            _steps(each.run),
            *(_digits(_last(each.run.of_validations(key))) for key, _ in labels),
            _digits(_last_loss(each.run)),
            _digits(mean(record["sparsity"] for record in each.run.phase("sparse")), 4),
            _sent(each.run),
            *(_time(each.run, phase) for phase in PHASES),
        ]
        for each in every
    ]
    return table(head, rows, cards=True, kinds="results")


def name_of(each):
    said = element("span", breakable(each.name))
    return element("span", line_key(each.style), said, class_="run", data_run=each.number)


def _steps(run):
    if run.summary:
        return f"{len(run.steps):,}"
    return joined(f"{len(run.steps):,}", element("small", " not finished"))


def _last(points):
    return next((y for _, y in reversed(points) if y is not None), None)


def _last_loss(run):
    """The mean over ranks and steps of the last epoch that ended; before the first, of the steps there are."""
    ended = [loss for record in run.epochs if (loss := number(record.get("loss"))) is not None]
    return ended[-1] if ended else mean(record["loss"] for record in run.steps)


def _sent(run):
    """Of the run's last phase, and as a part of what is dense."""
    steps = run.phase("sparse") or run.phase("dense")
    sent = mean(record["bytes_sent"] for record in steps)
    if not sent:
        return NOT_KNOWN if sent is None else "nothing: one rank"
    if not run.phase("sparse") or not run.dense_bytes:
        return in_units(sent)
    return joined(in_units(sent), element("small", f" {100 * sent / run.dense_bytes:.2g}% of dense"))


def _time(run, phase):
    seconds = mean(record["t_iter"] for record in run.phase(phase))
    return NOT_KNOWN if seconds is None else f"{1e3 * seconds:,.0f} ms"


def _digits(value, digits=None):
    if value is None:
        return NOT_KNOWN
    return f"{value:.{digits}f}" if digits else f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"


# ---- the summary of each run


def summaries(every):
    """A run's own last words, as it logged them: means over all steps of a phase."""
    columns = [
        (f"{each.name}, {phase}", each.run.summary, phase)
        for each in every
        for phase in PHASES
        if each.run.summary and number(each.run.summary.get(f"steps_{phase}"))
    ]
    stages = list(dict.fromkeys(name for column in columns for name in _stages(*column[1:])))
    if not columns:
        return None
    rows = [
        ["steps", *(f"{summary[f'steps_{phase}']:,}" for _, summary, phase in columns)],
        ["sent per step, kB", *(_kilo(summary.get(f"bytes_per_step_{phase}")) for _, summary, phase in columns)],
        *([_label(stage), *(_milli(_stages(*column[1:]).get(stage)) for column in columns)] for stage in stages),
    ]
    return table(["", *(name for name, *_ in columns)], rows, kinds="figures")


def _stages(summary, phase):
    stages = summary.get(f"ms_per_step_{phase}")
    return stages if isinstance(stages, dict) else {}


def _label(stage):
    return "whole step, ms" if stage == "total" else f"{printable(stage).replace('_', '-')}, ms"


def _kilo(value):
    return NOT_KNOWN if number(value) is None else f"{value / 1e3:,.1f}"


def _milli(value):
    return NOT_KNOWN if number(value) is None else f"{value:,.2f}"


# ---- how they were made


def differences(every):
    """The options and surroundings that are not the same for all."""
    if len(every) < 2:
        return None
    values = _all_settings(every)
    names = [name for name in dict.fromkeys(name for each in values for name in each) if _differs(name, values)]
    if not names:
        return element("p", "Nothing but their folders.")
    rows = [[name, *(each.get(name) or NOT_KNOWN for each in values)] for name in names]
    return table(["", *map(name_of, every)], rows, kinds="words")


def in_common(every):
    values = _all_settings(every)
    alike = {name: value for name, value in values[0].items() if not _differs(name, values)}
    pairs = [
        element("div", element("dt", name), element("dd", value or NOT_KNOWN), class_=len(value) > LONG and "long")
        for name, value in alike.items()
    ]
    return element("dl", pairs) if pairs else None


def folders(every):
    pairs = [element("div", element("dt", name_of(each)), element("dd", _text(str(each.run.folder)))) for each in every]
    return element("dl", pairs)


def _differs(name, values):
    return len({each.get(name) for each in values}) > 1


def _all_settings(every):
    left_out = OF_ONE_RUN if len(every) > 1 else ()
    return [{key: value for key, value in _settings(each.run).items() if key not in left_out} for each in every]


def _settings(run):
    """Name -> text, of all that the configuration says."""
    config = run.config
    versions = config.get("versions") if isinstance(config.get("versions"), dict) else {}
    around = {key: config[key] for key in ("ranks", "ranks_per_node", "hosts", "git_commit") if key in config}
    every = {**run.options, **around, **{f"{name} version": value for name, value in versions.items()}}
    command = config.get("command")
    if isinstance(command, list):
        every["command"] = shlex.join(map(str, command))
    return {_text(name): _text(value) for name, value in every.items()}


def _text(value):
    if isinstance(value, float):
        value = f"{value:g}"
    elif isinstance(value, list) and all(isinstance(each, str) for each in value):
        value = ", ".join(value)
    elif not isinstance(value, str):
        value = "" if value is None else json.dumps(value)
    shown = value[:LONGEST] + ("…" if len(value) > LONGEST else "")
    return "".join(each if each.isprintable() else "?" for each in shown)


# ---- what happened


def events(every):
    rows = []
    for each in every:
        told = [event for event in each.run.events if event.get("name") != "summary"]
        rows += [[name_of(each), _when(event), _what(event)] for event in told[:MOST_EVENTS]]
        if len(told) > MOST_EVENTS:
            rows.append([name_of(each), "", f"and {len(told) - MOST_EVENTS} more"])
    return table(["run", "when", "what"], rows, kinds="texts") if rows else None


def _when(event):
    if number(event.get("iter")) is not None:
        return f"step {event['iter']:,}"
    return f"epoch {event['epoch']:,}" if number(event.get("epoch")) is not None else ""


def _what(event):
    name = event.get("name")
    told = EVENTS.get(name, _text(name)) if isinstance(name, str) else _text(name)
    others = ((key, value) for key, value in event.items() if key not in ("kind", "name", "iter", "epoch"))
    details = ", ".join(f"{_text(key)} {_text(value)}" for key, value in others if value not in (None, []))
    return f"{told} ({details})" if details else told
