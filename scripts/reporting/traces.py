"""What a report shows of traced runs: how much of a step is communication, what it moves, who waited for whom."""

from drawing.markup import element
from drawing.page import table
from drawing.plot import Bars, Curve, Plot
from drawing.styles import BLUE, FILLS, ORANGE, SKY
from oktopk_training.inputs import printable
from oktopk_training.trace_analysis import Analysis
from oktopk_training.trace_files import read_trace

from .plots import shaded
from .shown import in_units, mean, unit_of

LAYERS = [("own work", SKY), ("waiting for others", ORANGE), ("transfer", BLUE)]
MOST_RANKS = 16  # that are shown one by one
UNKNOWN = "–"


def traced(every):
    """(run as shown, its analysis) of those that have a trace of any step."""
    found = [(each, Analysis.of(read_trace(each.run.folder))) for each in every]
    return [(each, analysis) for each, analysis in found if analysis.steps]


def plots(pairs):
    shares = [_shares(each, analysis) for each, analysis in pairs]
    sent = [plot for each, analysis in pairs for plot in (_times(each, analysis), _sent(each, analysis)) if plot]
    note = "Mean over the ranks, as traced: waiting for the slowest rank included."
    runs = [each for each, _ in pairs]
    return [*sent, Plot("Communication, % of a step", shares, note, shaded=shaded(runs))] if pairs else []


def tables(pairs):
    return [part for pair in pairs for part in (_operations(*pair), _ranks(*pair), _waits(*pair), _dropped(*pair))]


def _times(each, analysis):
    bars = [
        (f"{phase}, rank {rank}", [1e3 * part for part in (share.work, share.waiting, share.transfer)])
        for (phase, rank), share in analysis.shares().items()
        if rank < MOST_RANKS
    ]
    return Bars(f"A step of each rank: {each.name}", bars, LAYERS, "As traced, on one clock; mean over steps.", "ms")


def _sent(each, analysis):
    costs = {key: cost for key, cost in analysis.costs().items() if cost.sent}
    most = max((cost.calls * cost.sent for cost in costs.values()), default=0)
    if not most:
        return None
    factor, unit = unit_of(most)
    operations = sorted({operation for _, operation in costs})
    bars = [
        (phase, [costs[phase, name].calls * costs[phase, name].sent / factor if (phase, name) in costs else 0.0
                 for name in operations])
        for phase in analysis.phases()
    ]  # fmt: skip
    layers = [(printable(name), FILLS[place % len(FILLS)]) for place, name in enumerate(operations, start=1)]
    return Bars(f"Sent in a step by operation: {each.name}", bars, layers, "Mean over ranks and steps.", unit)


def _shares(each, analysis):
    moments = {record["iter"]: moment for moment, record in each.run.of_steps(lambda record: record)}
    shares = {}
    for rank in analysis.ranks:
        for iteration, share in analysis.communication_by_step(rank):
            shares.setdefault(iteration, []).append(share)
    means = ((moments.get(iteration), mean(every)) for iteration, every in sorted(shares.items()))
    points = [(moment, None if share is None else 100 * share) for moment, share in means if moment is not None]
    return Curve(each.name, points, each.style, each.number)


# ---- tables


def _operations(each, analysis):
    head = ["phase, operation", "calls a step", "sent a call", "ms a call", "of it waiting", "bandwidth"]
    rows = [
        [
            f"{phase}, {printable(name)}",
            f"{cost.calls:.3g}",
            in_units(cost.sent),
            f"{1e3 * cost.seconds:.3f}",
            f"{100 * cost.waited / cost.seconds:.0f}%" if cost.seconds else UNKNOWN,
            f"{in_units(cost.bandwidth)}/s" if cost.bandwidth else UNKNOWN,
        ]
        for (phase, name), cost in analysis.costs().items()
    ]
    note = "Bandwidth: bytes of the larger direction over the time that was not waiting."
    return _titled(f"Operations: {each.name}", note, table(head, rows, kinds="figures"))


def _ranks(each, analysis):
    head = ["phase, rank", "step, ms", "communication", "waiting", "sent a step"]
    rows = [
        [
            f"{phase}, {rank}",
            f"{1e3 * share.step:,.1f}",
            f"{100 * share.communication:.1f}%",
            f"{100 * share.waiting / share.step:.1f}%" if share.step else UNKNOWN,
            in_units(share.sent),
        ]
        for (phase, rank), share in analysis.shares().items()
        if rank < MOST_RANKS
    ]
    balance = "; ".join(_balance(analysis, phase) for phase in analysis.phases())
    note = f"The most of a rank over the mean of all: {balance}."
    return _titled(f"Ranks: {each.name}", note, table(head, rows, kinds="figures"))


def _balance(analysis, phase):
    figures = ((name, analysis.imbalance(phase, of)) for name, of in (("sent", "sent"), ("own work", "work")))
    return f"{phase} " + ", ".join(f"{name} {value:.2f}" for name, value in figures if value is not None)


def _waits(each, analysis):
    ranks = [rank for rank in analysis.ranks if rank < MOST_RANKS]
    phases = [(phase, analysis.waited_for(phase)) for phase in analysis.phases()]
    rows = [
        [f"{phase}, {who}", *(f"{1e3 * waits[who, whom]:.2f}" if (who, whom) in waits else UNKNOWN for whom in ranks)]
        for phase, waits in phases
        for who in ranks
    ]
    head = ["phase, who", *(f"for {rank}" for rank in ranks)]
    return _titled(f"Who waited for whom: {each.name}", "Milliseconds of a step.", table(head, rows, kinds="figures"))


def _dropped(each, analysis):
    dropped = {rank: count for rank, count in analysis.dropped.items() if count}
    if not dropped:
        return None
    told = ", ".join(f"rank {rank} {count:,}" for rank, count in sorted(dropped.items()))
    return element("p", f"Records of {each.name} that were dropped, from the middle of the run: {told}.", class_="note")


def _titled(title, note, content):
    return element("div", element("h3", title), element("p", note, class_="note"), content, class_="titled")
