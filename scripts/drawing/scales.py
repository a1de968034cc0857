"""Where a value lies in a plot, and which values are written beside its axis."""

import math
from dataclasses import dataclass

ABOUT = 5  # ticks of a scale
STEPS = (1, 2, 5, 10)
MARGIN = 0.06  # of a scale, where no value shall touch its end
LEAST = 1e-100  # what is nearer to 0 is 0
FEW_DECADES = 2.5  # up to here, 2 and 5 are written between the powers of ten


@dataclass(frozen=True)
class Scale:
    """From values between `low` and `high` to places between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value):
        if self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self, about=ABOUT):
        """Round values within the scale, ascending."""
        return _decades(self.low, self.high, about) if self.log else _even(self.low, self.high, about)

    def label(self, tick, about=ABOUT):
        if self.log or tick == 0:
            return _short(tick)
        decimals = max(0, -math.floor(math.log10(_step(self.high - self.low, about)) + 1e-9))
        return f"{tick:,.{decimals}f}" if decimals <= 4 and abs(tick) < 1e6 else _short(tick)


def linear(values, start, end, *, zero=True, high=None):
    """A scale that holds all values (None is none), and 0 unless told not to. `high` cuts off what is above it."""
    known = [value for value in values if value is not None] + ([0] if zero else [])
    low, most = min(known, default=0), max(known, default=1)
    free, high = high is None, most if high is None else max(high, low)
    largest = max(abs(low), abs(high))
    if high - low <= max(1e-9 * largest, LEAST):  # all values are one
        around = largest / 10 if largest > LEAST else 1
        low, high = low if zero and low == 0 else low - around, high + around
    margin = MARGIN * (high - low)
    return Scale(low if low == 0 else low - margin, high + margin if free and high != 0 else high, start, end)


def logarithmic(values, start, end):
    """A scale of whole steps of 1, 2 and 5 that holds all positive values."""
    known = [value for value in values if value is not None and value > LEAST]
    low, high = _below(min(known, default=1)), _above(max(known, default=10))
    return Scale(low, high if high > low else 10 * low, start, end, log=True)


def _step(span, about):
    size = 10.0 ** math.floor(math.log10(span / about))
    return next(size * factor for factor in STEPS if size * factor * about >= span * 0.999)


def _even(low, high, about):
    step = _step(high - low, about)
    first = math.ceil(low / step - 1e-9)
    return [step * number for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low, high, about):
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if math.log10(high / low) <= FEW_DECADES else (1,)
    stride = max(1, round((last - first) / (2 * about)))
    every = [factor * 10.0**power for power in range(first, last + 1, stride) for factor in factors]
    return [tick for tick in every if low * 0.999 <= tick <= high * 1.001]


def _below(value):
    size = 10.0 ** math.floor(math.log10(value))
    return max((size * factor for factor in (1, 2, 5) if size * factor <= value * 1.001), default=size)


def _above(value):
    size = 10.0 ** math.floor(math.log10(value))
    return next(size * factor for factor in (1, 2, 5, 10) if size * factor >= value * 0.999)


def _short(value):
    """1e-06, 0.02, 50, 10,000."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:g}"
