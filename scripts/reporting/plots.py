"""The plots of runs: how they learn, what they send, where the time goes. Runs lie over one another."""

from drawing.plot import Bars, Curve, Plot, Stack
from drawing.styles import BLACK, FILLS, Style
from drawing.thinning import binned, running_mean

from .shown import in_units, mean, unit_of

SMOOTHING = 25  # steps that a running mean covers
SEEN = 0.99  # part of the losses that lies within the frame: the first can be so high that nothing else would be seen
DRAWN = 2  # of the figures of a validation; the table has them all
BINS = 80  # stretches of a run whose steps' times are averaged
STAGES = {
    "t_data": "data",
    "t_compute": "forward and backward",
    "t_select": "choosing entries",
    "t_comm": "communication",
    "t_apply": "update",
    "rest": "merge and the rest",
}
LAYERS = list(zip(STAGES.values(), FILLS, strict=False))


def learning(every):
    figures = list(dict.fromkeys(item for each in every for item in each.run.figures.items()))
    plots = [_loss(every), *(_validation(every, key, label) for key, label in figures[:DRAWN])]
    return [*filter(None, (*plots, _rate(every)))]


def traffic(every):
    if not any(record["bytes_sent"] for each in every for record in each.run.steps):
        return []
    return [*filter(None, (_sent(every), _sparsity(every), *_selected(every)))]


def times(every):
    phases = [
        (f"{each.name}, {phase} steps", [mean(column) or 0 for column in zip(*rows, strict=True)])
        for each in every
        for phase in ("dense", "sparse")
        if (rows := [_stages(record) for record in each.run.phase(phase)])
    ]
    if not phases:
        return []
    note = "Mean over the steps of a phase, on rank 0. Communication includes the wait for the slowest rank."
    stacks = [_stack(each) for each in every]
    high = max((sum(value or 0 for value in row) for stack in stacks for row in stack.rows), default=1)
    bars = Bars("Time per step", phases, LAYERS, note, "ms")
    return [bars, *(Stack(**{**vars(stack), "high": high}) for stack in stacks)]


def shaded(every):
    return tuple(sorted({phase for each in every for phase in each.run.sparse_phases}))


# ---- one plot each


def _loss(every):
    curves = []
    for each in every:
        points = each.run.of_steps("loss")
        many = len(points) > SMOOTHING
        if many:
            curves.append(Curve(f"{each.name}, each step", points, each.style, each.number, faint=True))
        curves.append(Curve(each.name, running_mean(points, SMOOTHING) if many else points, each.style, each.number))
    known = sorted(y for curve in curves for _, y in curve.points if y is not None)
    if not known:
        return None
    top = known[int(SEEN * (len(known) - 1))] * 1.05
    above = sum(y > top for each in every for _, y in each.run.of_steps("loss") if y is not None)
    note = f"Rank 0: each step pale, mean of {SMOOTHING} steps bold."
    if above:
        note += f" {above} step{'s' if above > 1 else ''} above the frame, up to {known[-1]:.4g}."
    return Plot("Training loss", curves, note, zero=known[0] >= 0, top=top if top > 0 else None, shaded=shaded(every))


def _validation(every, key, label):
    curves = _curves(every, lambda run: run.of_validations(key), marked=True)
    return Plot(f"{label} on validation", curves, shaded=shaded(every)) if curves else None


def _rate(every):
    curves = _curves(every, lambda run: run.of_steps("lr"))
    return Plot("Learning rate", curves, shaded=shaded(every)) if curves else None


def _sent(every):
    factor, unit = unit_of(max(record["bytes_sent"] or 0 for each in every for record in each.run.steps))

    def sent(record):
        return None if record["skipped"] else (record["bytes_sent"] or 0) / factor or None

    curves = _curves(every, lambda run: run.of_steps(sent))
    known = sorted({each.run.dense_bytes for each in every} - {None, 0})
    levels = tuple((each / factor, f"dense: {in_units(each)}", Style(BLACK)) for each in known[-1:])
    note = f"{unit}, on a logarithmic scale; of rank 0."
    return Plot(f"Sent per step, {unit}", curves, note, log=True, shaded=shaded(every), levels=levels)


def _sparsity(every):
    curves = _curves(every, lambda run: run.of_steps("sparsity"))
    note = "Part of the gradient that the result leaves out."
    return Plot("Sparsity", curves, note, zero=False, top=1.0, shaded=shaded(every)) if curves else None


def _selected(every):
    for key, title, note in (
        ("selected_global", "Entries of the result / k", "k is what the density asks for."),
        ("selected_local", "Entries chosen by rank 0 / k", None),
    ):

        def share(record, key=key):
            return record[key] / record["target_k"] if record[key] is not None and record["target_k"] else None

        if curves := _curves(every, lambda run, share=share: run.of_steps(share)):
            yield Plot(title, curves, note, shaded=shaded(every))


def _curves(every, points_of, marked=False):
    """Of the runs that know any point of it."""
    curves = [Curve(each.name, points_of(each.run), each.style, each.number, marked=marked) for each in every]
    return [curve for curve in curves if any(y is not None for _, y in curve.points)]


def _stages(record):
    """Milliseconds of a step's stages; what they leave of it is the last."""
    known = [record[key] for key in STAGES if key != "rest"]
    rest = max(0.0, (record["t_iter"] or 0) - sum(value or 0 for value in known))
    return [None if value is None else 1e3 * value for value in (*known, rest)]


def _stack(each):
    rows = [(moment, *_stages(record)) for moment, record in each.run.of_steps(lambda record: record)]
    means = binned(rows, BINS)
    about = max(1, round(len(rows) / len(means)))
    note = f"ms, means of {about} steps" if about > 1 else "ms"
    return Stack(
        f"Time per step: {each.name}",
        [0.0, *(row[0] for row in means[1:-1]), each.run.moments[-1]][: len(means)],  # at the ends, to the ends
        [row[1:] for row in means],
        LAYERS,
        note,
        shaded=tuple(each.run.sparse_phases),
    )
