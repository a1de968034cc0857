"""One compressor on the bench: cases of gradients go through it on all ranks, and its laws are looked at."""

import io
import logging
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
import torch

from ..averager import GradientAverager
from ..launchers import LostRanks
from ..registry import Settings
from .gradients import MAKERS, gradient
from .laws import EXACT, IN_EVERY_STEP, Step, difference, first_broken
from .meeting import END, FAILED, Meeting, Parted, patience, text_of_first, texts_of_all

SECONDS = 120  # that a step may take: after that somebody waits for what nobody sends
DENSITY, DENSER = 0.02, 0.3
MOMENTUM = 0.9
UNEVEN = ("one_rank_zero", "negative_zeros")  # gradients of which ranks have different numbers of entries
AT_A_TIME = 10  # steps that are judged together, to save messages
SEPARATOR = "\0"  # between the iteration, the law and what was found, when they travel


class LawBroken(AssertionError):
    """Says which law, on which gradients, and by how much."""


@dataclass(frozen=True)
class Case:
    """What goes through a compressor. `event` is what happens in between: nothing, a "resume" or an "overflow"."""

    kind: str
    n: int
    density: float = DENSITY
    iterations: int = 6
    event: str | None = None
    settings: dict = field(default_factory=dict)

    def gradient(self, ranks, rank, iteration):
        """As float32; any rank can compute any other's."""
        return gradient(self.kind, self.n, ranks, rank, iteration)

    def __str__(self):
        more = [f"{name} = {value}" for name, value in self.settings.items()]
        return ", ".join([f"{self.kind} gradients, n = {self.n}, density {self.density}", *more])


def cases(sizes=(1, 3, 1000), iterations=6, **settings):
    """All nasty gradients, several sizes and densities, a resume and an overflow, without and with momentum."""
    most = max(sizes)
    for kind in MAKERS:
        yield Case(kind, most, DENSITY, iterations, settings=settings)
    for n in sizes:
        if n != most:
            yield Case("normal", n, DENSITY, iterations, settings=settings)
        yield Case("ties_and_cancellation", n, 1.0, iterations, settings=settings)
    for kind in UNEVEN:
        yield Case(kind, most, 1.0, iterations, settings=settings)
    yield Case("layered", most, DENSER, iterations, settings=settings)
    for event in ("resume", "overflow"):
        yield Case("moving", most, DENSITY, iterations, event, settings)
        yield Case("normal", most, DENSITY, iterations, event, settings | {"momentum": MOMENTUM})


class Bench:
    """One case of one compressor. Whatever comes of it, ranks end it together."""

    def __init__(self, compressor, case, communicator, exact=False, also=None, in_step=True):
        self.compressor, self.case, self.communicator = compressor, case, communicator
        self.laws = IN_EVERY_STEP | (EXACT if exact else {}) | ({"also": also} if also else {})
        self._meeting, self.iteration = Meeting(communicator) if in_step else None, 0

    def broken_law(self):
        try:
            {None: self._steps, "resume": self._resume, "overflow": self._overflow}[self.case.event]()
        except LawBroken as broken:
            return broken
        return None

    # What happens.

    def _steps(self):
        averager, iterations = self._together(self._averager), range(self.case.iterations)
        before = [np.zeros(self.case.n, np.float32)] * self.communicator.size
        for some in (iterations[first : first + AT_A_TIME] for first in iterations[::AT_A_TIME]):
            held = self._together(lambda some=some: [self._held(averager, iteration) for iteration in some])
            everyone = self.communicator.allgather(torch.cat(held)).view(self.communicator.size, len(some), -1)
            verdict = ""
            if self.communicator.rank == 0:
                verdict, before = self._judged(everyone.numpy(), some, before, averager)
            verdict = text_of_first(self.communicator, verdict)
            if verdict:
                raise self._broken(*verdict.split(SEPARATOR))

    def _judged(self, everyone, iterations, before, averager):
        """The first broken law of these steps (none: an empty text), and the residuals after them."""
        n, size = self.case.n, self.communicator.size
        for place, iteration in enumerate(iterations):
            mine = everyone[:, place]
            gradients = [self.case.gradient(size, rank, iteration) for rank in range(size)]
            step = Step(
                k=averager.k,
                is_dense=averager.is_dense,
                gradients=gradients,
                before=before,
                means=[each[:n].view(np.float32) for each in mine],
                residuals=[each[n : 2 * n].view(np.float32) for each in mine],
                selected=[None if each[-2] < 0 else int(each[-2]) for each in mine],
                skipped=[bool(each[-1]) for each in mine],
                precision=averager.precision,
            )
            found = first_broken(step, self.laws)
            if found:
                return SEPARATOR.join([str(iteration), *found]), before
            before = step.residuals
        return "", before

    def _resume(self):
        self._agree("resume equals no resume", self._together(self._resumed))

    def _resumed(self):
        """At two places: what goes round in as many steps as there are before one of them would be missed there."""
        middle = self.case.iterations // 2
        return self._resumed_after(middle) + self._resumed_after(max(1, middle - 1))

    def _resumed_after(self, middle):
        end = self.case.iterations
        first = self._averager()
        self._states(first, range(middle))
        saved = _through_a_file(first.state_dict())
        went_on = self._states(first, range(middle, end))
        second = self._averager()
        second.load_state_dict(saved)
        return self._differences(went_on, self._states(second, range(middle, end)), "after a resume")

    def _overflow(self):
        self._agree("overflow leaves all state as it was", self._together(self._overflown))

    def _overflown(self):
        """One rank's gradient is not finite in two steps; another averager takes the same steps without those."""
        middle, last = self.case.iterations // 2, self.communicator.size - 1
        averager, findings, states = self._averager(), [], {}
        for iteration in range(self.case.iterations):
            if iteration == middle:
                findings.append(self._spoilt(averager, iteration, np.nan, 0))
            elif iteration == 0:
                findings.append(self._spoilt(averager, iteration, np.inf, last))
            states |= self._states(averager, [iteration])
        clean = self._states(self._averager(), range(self.case.iterations))
        return findings + self._differences(clean, states, "in a run that saw an overflow")

    def _spoilt(self, averager, iteration, value, rank):
        """A step with that value in that rank's gradient; what it changed."""
        before = _without_skips(averager.state_dict())
        own = self.case.gradient(self.communicator.size, self.communicator.rank, iteration)
        if self.communicator.rank == rank:
            own[self.case.n // 2] = value
        with _quiet():
            report = self._step(averager, iteration, own)
        said = f"with {value} in rank {rank}'s gradient"
        if not report.skipped:
            return self._finding(f"{said} the step was not skipped")
        if averager.mean().any():
            return self._finding(f"{said} the step delivered a mean that is not zero")
        return self._unless_same(before, _without_skips(averager.state_dict()), f"{said} the skipped step changed")

    # How it happens on all ranks.

    def _averager(self):
        return OnTheBench(self.compressor, self.case, self._meeting or self.communicator)

    def _step(self, averager, iteration, own=None):
        self.iteration = iteration
        if own is None:
            own = self.case.gradient(self.communicator.size, self.communicator.rank, iteration)
        return averager.reduce(own)

    def _held(self, averager, iteration):
        """What this rank holds after a step, as int32: mean, residual, and two figures of the report."""
        report = self._step(averager, iteration)
        figures = [-1 if report.selected_local is None else report.selected_local, report.skipped]
        floats = [each.view(torch.int32) for each in (averager.mean(), averager.residual())]
        return torch.cat([*floats, torch.tensor(figures, dtype=torch.int32)])

    def _states(self, averager, iterations):
        """What the averager holds after each of these steps."""
        states = {}
        for iteration in iterations:
            self._step(averager, iteration)
            states[iteration] = {"mean": averager.mean(), **averager.state_dict()["parameters"]["p"]}
        return states

    def _together(self, action):
        """Act on all ranks; if it fails on any, all are told that a law is broken."""
        if self._meeting is None:
            return action()
        with patience(self.communicator, SECONDS, f"{self.compressor.name} on {self.case}"):
            try:
                result = action()
                self._meeting.meet(END)
            except LostRanks:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, all ranks are to hear of it
                broken = self._failure(error)
            else:
                return result
        raise broken

    def _failure(self, error):
        parted = self._meeting.parted
        mine = f"came to {parted}" if parted else f"raised {type(error).__name__}: {error}"
        with suppress(Parted):
            self._meeting.meet(FAILED)
        everyone = [
            each.split(SEPARATOR)
            for each in texts_of_all(self.communicator, SEPARATOR.join([str(self.iteration), mine]))
        ]
        first = {text: rank for rank, (_, text) in reversed(list(enumerate(everyone)))}
        said = "; ".join(f"rank {rank} {text}" for text, rank in sorted(first.items(), key=lambda pair: pair[1]))
        if len(first) == 1:
            said = f"every rank {mine}"
        raised = [iteration for iteration, text in everyone if text.startswith("raised")]
        law = "no exceptions" if raised else "all ranks in step"
        broken = self._broken(min(raised or [each[0] for each in everyone], key=int), law, said)
        broken.__cause__ = None if isinstance(error, Parted) else error
        return broken

    def _agree(self, law, findings):
        """Each rank has looked at its own state: the first that found something says it for all."""
        mine = next((each for each in findings if each), "")
        found = next((each for each in texts_of_all(self.communicator, mine) if each), None)
        if found:
            iteration, finding = found.split(SEPARATOR)
            raise self._broken(iteration, law, finding)

    def _finding(self, text):
        return f"{self.iteration}{SEPARATOR}rank {self.communicator.rank}: {text}"

    def _differences(self, expected, found, when):
        """For each iteration what a rank finds, or None."""
        findings = []
        for iteration, state in expected.items():
            self.iteration = iteration
            findings.append(self._unless_same(state, found[iteration], f"{when}, other values in"))
        return findings

    def _unless_same(self, one, other, text):
        where = difference(one, other)
        if where is None:
            return None
        return self._finding(f"{text} {where or 'what is kept'}{_figures(one, other, where)}")

    def _broken(self, iteration, law, finding):
        return LawBroken(
            f"the law “{law}” is broken by {self.compressor.name} on {self.case}, P = {self.communicator.size}, "
            f"iteration {iteration}: {finding}"
        )


class OnTheBench:
    """An averager of one parameter of n elements, without a warm-up."""

    def __init__(self, compressor, case, communicator):
        settings = Settings(density=case.density, warmup_iters=0, **case.settings)
        self.k = max(1, int(case.n * case.density))
        self.is_dense = not compressor.is_sparse or self.k >= case.n
        parameter = torch.nn.Parameter(torch.zeros(case.n))
        self._averager = GradientAverager([("p", parameter)], compressor, settings, communicator)
        wire = compressor.wire_of(settings, parameter.device, communicator) if compressor.is_sparse else None
        self.precision = wire.precision if wire else 0.0
        self.state_dict, self.load_state_dict = self._averager.state_dict, self._averager.load_state_dict

    def reduce(self, own):
        self._averager.hand_in("p", torch.from_numpy(own))
        return self._averager.average()

    def mean(self):
        return self._averager.result("p").clone()

    def residual(self):
        return self.state_dict()["parameters"]["p"].get("residual", torch.zeros_like(self.mean()))


def _figures(one, other, where):
    """Of two tensors that differ: how many elements, and the first."""
    for key in filter(None, where.split("/")):
        one, other = (each[key] if isinstance(each, dict) and key in each else None for each in (one, other))
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.shape == other.shape):
        return ""
    places = (one.view(torch.int32) != other.view(torch.int32)).nonzero()[:, 0].tolist()
    at = places[0]
    return f": {len(places)} elements, first at {at}, {float(other[at]):.9g} instead of {float(one[at]):.9g}"


def _through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def _without_skips(state):
    return {key: value for key, value in state.items() if "skip" not in key}


@contextmanager
def _quiet():
    """The warning that a step is skipped is of no use where it was meant to be."""
    log, errors_only = logging.getLogger("oktopk.reducer"), lambda record: record.levelno >= logging.ERROR
    log.addFilter(errors_only)
    try:
        yield
    finally:
        log.removeFilter(errors_only)
