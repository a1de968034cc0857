"""Device code on a pretend accelerator, under real mpiexec: the results of the CPU, at the costs that were promised.

Costs are per reduction, of one rank: passes, launches and synchronisations are what decides whether sparse wins there.
"""

import math
from functools import cache

import pytest
from ranks import findings_of

import pretend_device
from oktopk import compressors

pytestmark = pytest.mark.skipif(not pretend_device.ATTACHABLE, reason="this torch takes no backend written in Python")

RANKS = (1, 2, 3)
NAMES = list(dict.fromkeys(compressor.name for compressor in compressors.values()))
GAPS = ["oktopk, gaps", "gtopk, gaps16", "oktopk, gaps16"]
CASES = [*NAMES, "oktopk, reuse", "oktopk, momentum", "oktopk, nesterov", *GAPS]

# Buffers of the gradient's size that a step may read and write.
MOST_BUFFERS = dict.fromkeys(CASES, 13.5)
MOST_BUFFERS |= {"none": 5.01, "oktopk": 11.5, "gtopk, gaps16": 15.5, "oktopk, momentum": 19, "oktopk, nesterov": 20}
MOST_LAUNCHES_OF_OKTOPK, MOST_SYNCHRONISATIONS_OF_OKTOPK = 55, 12

MOMENTUM_LAUNCHES = 3  # the velocity's decay, what is added to it, its copy to the gradient
NORM_LAUNCHES = 1
FEEDBACK_LAUNCHES = 6  # a gather and a scatter each for the residual and the velocity, a difference, the mean


@cache
def found(part, ranks=1):
    return findings_of(ranks, "device.py", part)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("case", CASES)
def test_results_on_a_device_are_those_on_the_cpu_bit_for_bit(case, ranks):
    assert found("results", ranks)[case] is None


@pytest.mark.parametrize("case", CASES)
def test_a_step_reads_and_writes_few_buffers_and_makes_none_that_is_larger(case):
    costs = found("costs", 2)[case]
    assert costs["buffers"] <= MOST_BUFFERS[case]
    assert costs["largest"] <= 1


def test_oktopk_launches_little_and_waits_seldom():
    costs = found("costs", 2)["oktopk"]
    assert costs["launches"] <= MOST_LAUNCHES_OF_OKTOPK
    assert costs["synchronisations"] <= MOST_SYNCHRONISATIONS_OF_OKTOPK


@pytest.mark.parametrize("case", ["oktopk, momentum", "none, momentum"])
def test_a_timed_step_waits_after_each_stage_for_what_was_launched_in_it(case):
    step, each = found("stages")[f"{case}, timed"], found("stages")["seconds each"]
    stages = step["stages"]
    assert step["left"] == 0
    assert step["launches"] * each <= sum(stages.values()) <= step["all"]
    assert stages["merge"] >= (NORM_LAUNCHES + MOMENTUM_LAUNCHES) * each
    if case.startswith("oktopk"):
        assert stages["demerge"] >= FEEDBACK_LAUNCHES * each


@pytest.mark.parametrize("case", ["oktopk, momentum", "none, momentum"])
def test_a_step_that_is_not_timed_leaves_the_device_at_work_and_knows_no_times(case):
    step, each = found("stages")[f"{case}, not timed"], found("stages")["seconds each"]
    assert step["waits"] < found("stages")[f"{case}, timed"]["waits"]
    assert step["left"] > 0
    assert math.isnan(step["stages"]["merge"])
    assert math.isnan(step["stages"]["demerge"])
    # What was launched before a copy to the host is not taken for communication.
    assert sum(step["stages"][key] for key in ("communication", "device_to_host")) < MOMENTUM_LAUNCHES * each


def test_buffers_go_through_the_host_where_the_transport_takes_none_of_the_device():
    staged, each = found("staging")["cpu"], found("staging")["seconds each"]
    assert staged["values"] == [3.0]
    assert staged["copies"] == {"to host": 1, "to device": 1}
    assert staged["to_host"] > 0
    assert staged["to_device"] > 0
    assert staged["to_host"] + staged["to_device"] <= staged["seconds"] < each  # work from before is not theirs


def test_buffers_stay_on_the_device_where_the_transport_takes_them():
    direct = found("staging")["pretend"]
    assert direct["values"] == [3.0]
    assert direct["copies"] == {}
    assert (direct["to_host"], direct["to_device"]) == (0, 0)


def test_nothing_starts_a_thread():
    assert found("threads") == []


def test_the_pretend_device_keeps_apart_from_the_host():
    device = found("device")
    assert device["refusals"] == ["RuntimeError", "TypeError", "RuntimeError"]
    assert device["a number meets it"] == [3.0, 6.0]
    assert device["new memory"] == [True] * 3  # NaN


def test_the_pretend_device_counts():
    device, n, places = found("device"), 1000, 4
    assert device["launches"] == {"abs": 1, "nonzero": 1, "index": 1, "add": 1, "zero_": 1}
    assert device["views"] >= 1
    assert device["synchronisations"] == {"to device": 1, "nonzero": 1, "to host": 1, "item": 1}
    assert device["waits"] == 1
    assert device["largest"] == 4 * n
    assert device["bytes"] == {
        "to device": 4 * n,
        "abs": 2 * 4 * n,
        "nonzero": 4 * n + 8 * places,
        "index": (8 + 2 * 4) * places,  # the elements of no other place are read
        "to host": 4 * places,
        "add": 2 * 4 * n,  # in place: read and written
        "zero_": 4 * n,
        "item": 4,
    }
