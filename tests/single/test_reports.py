"""What a run says about itself: plan, epoch averages, breakdown, summary."""

import json
import logging
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from oktopk import Report, Settings
from oktopk.report import Selection
from oktopk_training.options import parse_options
from oktopk_training.reports import Summary, announce_plan, breakdown, mean, plan, take
from oktopk_training.step import REDUCTION, STAGES, Tally, step_of


@pytest.fixture
def options(corpus):
    return parse_options(["--data-dir", str(corpus), "--compression", "--max-epochs", "10", "--device", "cpu"])


def announced(options, steps_per_epoch, caplog):
    with caplog.at_level(logging.INFO):
        announce_plan(logging.getLogger("plan"), plan(steps_per_epoch, options), options, SimpleNamespace(size=8))
    return caplog.records


def step(*selections, seconds=(), grad_norm=1.0, **figures):
    """A step whose reducer reports these; `selections` are of its sparse reductions."""
    own = {"data": 1.0, "forward": 2.0, "backward": 3.0, "update": 2.0}
    trainer = SimpleNamespace(lr=0.01, grad_norm=grad_norm, seconds=own)
    report = Report(**figures)
    report.seconds.update(seconds)
    for number, (selection, target_k, chosen) in enumerate(selections):
        report.add_sparse(f"gradient {number}", selection, target_k, chosen)
    return step_of(7, 1, 4.0, trainer, report, 9.0)


SPARSE = (Selection(100, 2), 2, 2)


# ---- the plan


def test_the_missions_run_becomes_sparse_for_its_last_twelve_steps(options, caplog):
    made = plan(948 // (8 * 8), options)
    assert (made.steps, made.dense, made.sparse, made.start) == (140, 128, 12, (9, 2))
    said = announced(options, 14, caplog)
    assert not [record for record in said if record.levelname == "WARNING"]
    assert "8 ranks x batch 8 = 64 a step: 14 steps an epoch, 140 steps in 10 epochs" in caplog.text
    assert "takes over at step 128, which is step 2 of epoch 9: the last 12 steps are sparse" in caplog.text
    announced(replace(options, nsteps_update=2), 7, caplog)
    assert "8 ranks x batch 8 x 2 batches = 128 a step" in caplog.text


@pytest.mark.parametrize(("epochs", "too_short"), [(9, True), (10, False)])
def test_a_run_too_short_to_become_sparse_is_warned_of(options, epochs, too_short, caplog):
    said = announced(replace(options, max_epochs=epochs), 14, caplog)
    warnings = [record.getMessage() for record in said if record.levelname == "WARNING"]
    assert len(warnings) == too_short
    assert all("126 steps" in warning and "--warmup-iters" in warning for warning in warnings)


def test_the_epochs_that_the_warning_asks_for_are_enough(options, caplog):
    said = announced(replace(options, max_epochs=8), 16, caplog)
    assert "give it more --max-epochs than 8" in said[1].getMessage()
    assert plan(16, replace(options, max_epochs=8)).sparse == 0
    assert plan(16, replace(options, max_epochs=9)).sparse > 0


@pytest.mark.parametrize("change", [{"compression": False}, {"compressor": "dense"}])
def test_a_dense_run_is_said_to_be_dense(options, change, caplog):
    announced(replace(options, **change), 14, caplog)
    assert "every step is dense" in caplog.text
    assert plan(14, replace(options, **change)).sparse == 0


def test_a_run_without_a_warm_up_is_said_to_be_sparse(options, caplog):
    announced(replace(options, settings=Settings(warmup_iters=0)), 14, caplog)
    assert "every step is sparse: oktopk at density 0.02" in caplog.text


# ---- steps and epochs


def test_several_merged_gradients_make_one_value_a_step():
    """The same that their lists have, weighted: 20 of 1000 elements, wherever they lie."""
    record = step((Selection(700, 5), 14, 15), (Selection(300, 15), 6, 6)).record()
    assert (record["sparsity"], record["compression_ratio"], record["communication_size"]) == (0.98, 50, 160)
    assert (record["target_k"], record["selected_local"], record["selected_global"]) == (20, 21, 20)
    assert record["phase"] == "sparse"


def test_while_dense_and_where_a_step_was_skipped_nothing_was_selected():
    for record in (step().record(), step(SPARSE, skipped=True, grad_norm=None).record()):
        for key in ("sparsity", "compression_ratio", "communication_size", "target_k", "selected_global"):
            assert record[key] is None


def test_a_record_has_what_the_contract_names():
    assert step(SPARSE).record().keys() == {
        "iter", "epoch", "phase", "skipped", "loss", "lr", "grad_norm", "sparsity", "compression_ratio",
        "communication_size", "target_k", "selected_local", "selected_global", "bytes_sent", "bytes_received",
        "t_iter", "t_data", "t_compute", "t_select", "t_comm", "t_apply",
    }  # fmt: skip


def test_times_of_a_record_are_sums_of_stages():
    took = {"merge": 0.5, "compression": 0.25, "communication": 1.25, "demerge": 4.0, "device_to_host": 0.5}
    record = step(seconds=took).record()
    assert (record["t_data"], record["t_compute"], record["t_select"]) == (1.0, 2.0 + 3.0, 0.25)
    assert (record["t_comm"], record["t_apply"]) == (1.25 + 0.5, 4.0 + 2.0)


def test_what_arrives_while_metrics_are_taken_is_not_lost():
    values, taken = [], []
    writer = threading.Thread(target=lambda: [values.append(number) for number in range(50_000)])
    writer.start()
    while writer.is_alive():
        taken += take(values)
    taken += take(values)
    assert taken == list(range(50_000))


def test_the_mean_of_nothing_is_null():
    assert mean([]) is None
    assert mean([1.0, 3.0]) == 2.0


def test_the_breakdown_names_the_columns_that_follow():
    tally = Tally()
    tally.add(step(seconds={"communication": 2.0}))
    header, row = breakdown(tally)
    assert header.split()[1:] == [stage.replace("_", "-") for stage in REDUCTION] + ["total"]
    figures = dict(zip(header.split()[1:], map(float, row.split()), strict=True))
    assert (figures["backward"], figures["communication"], figures["total"]) == (3000, 2000, 5000)
    assert len(header) == len(row)  # a figure stands under its name


# ---- the end


def summary_of(*phases):
    summary = Summary({"wer": "WER", "cer": "CER"})
    for phase in phases:
        summary.step(step(bytes_sent=400) if phase == "dense" else step(SPARSE, bytes_sent=16))
    summary.epoch(3.5, {"sparsity": [0.98] * phases.count("sparse"), "compression_ratio": [50.0]}, 1)
    summary.validation({"epoch": 0, "loss": 3.0, "wer": 1.25, "cer": 0.5, "wer_mean": 1.5})
    return summary


def test_the_summary_tells_phases_apart():
    record = summary_of("dense", "dense", "sparse").record()
    assert (record["steps_dense"], record["steps_sparse"], record["skipped_steps"]) == (2, 1, 1)
    assert (record["bytes_per_step_dense"], record["bytes_per_step_sparse"]) == (400, 16)
    assert (record["avg_sparsity"], record["wer"], record["loss_last"]) == (0.98, 1.25, 3.5)


def test_skipped_steps_count_apart():
    summary = summary_of("dense")
    summary.step(step(SPARSE, skipped=True, grad_norm=None, bytes_sent=8))
    assert (summary.record()["steps_sparse"], summary.record()["bytes_per_step_sparse"]) == (0, None)
    assert "1 steps skipped" in summary.table()[0]


def test_of_a_run_whose_steps_were_all_skipped_there_is_a_summary():
    summary = Summary({"wer": "WER", "cer": "CER"})
    summary.epoch(3.5, {"sparsity": [], "compression_ratio": []}, 2)
    assert summary.table() == ["summary: loss 3.500 in the first epoch, 3.500 in the last; 2 steps skipped"]


def test_a_summary_of_dense_steps_has_no_nan():
    summary = summary_of("dense")
    json.dumps(summary.record(), allow_nan=False)
    assert summary.record()["avg_sparsity"] is None
    text = "\n".join(summary.table())
    assert "WER 1.2500" in text
    assert "sparse" not in text
    assert "nan" not in text.lower()
    assert "accuracy" not in text.lower()


def test_all_stages_are_in_the_table():
    text = "\n".join(summary_of("dense", "sparse").table())
    assert all(f"{stage.replace('_', '-')}, ms" in text for stage in STAGES)
