"""What a run says about itself: plan, epoch averages, breakdown, summary."""

import json
import logging
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from allreducer import StepReport
from oktopk_training import reports
from oktopk_training.options import parse_options
from oktopk_training.reports import (
    REDUCTION,
    Summary,
    Tally,
    announce_plan,
    breakdown,
    mean,
    plan,
    stage_seconds,
    step_record,
    take,
)


@pytest.fixture
def options(corpus):
    return parse_options(["--data-dir", str(corpus), "--compression", "--max-epochs", "10", "--device", "cpu"])


def announced(options, steps_per_epoch, caplog):
    with caplog.at_level(logging.INFO):
        announce_plan(logging.getLogger("plan"), plan(steps_per_epoch, options), options, SimpleNamespace(size=8))
    return caplog.records


def step(phase="dense", **figures):
    trainer = SimpleNamespace(
        lr=0.01, grad_norm=1.0, seconds={"data": 1.0, "compute": 5.0, "backward": 3.0, "apply": 2}
    )
    report = StepReport(phase=phase, **figures)
    return step_record(4.0, trainer, report, 9.0), stage_seconds(trainer.seconds, report)


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
    said = announced(replace(options, max_epochs=8, warmup_iters=128), 16, caplog)
    assert "give it more --max-epochs than 8" in said[1].getMessage()
    assert plan(16, replace(options, max_epochs=8)).sparse == 0
    assert plan(16, replace(options, max_epochs=9)).sparse > 0


@pytest.mark.parametrize("change", [{"compression": False}, {"compressor": "dense"}])
def test_a_dense_run_is_said_to_be_dense(options, change, caplog):
    announced(replace(options, **change), 14, caplog)
    assert "every step is dense" in caplog.text
    assert plan(14, replace(options, **change)).sparse == 0


def test_a_run_without_a_warm_up_is_said_to_be_sparse(options, caplog):
    announced(replace(options, warmup_iters=0), 14, caplog)
    assert "every step is sparse: oktopk at density 0.02" in caplog.text


# ---- steps and epochs


def test_several_merged_gradients_make_one_value_a_step():
    record, _ = step("sparse", elements=1000, target_k=20, selected_local=21, selected_global=20)
    assert (record["sparsity"], record["compression_ratio"], record["communication_size"]) == (0.98, 50, 160)
    assert (record["target_k"], record["selected_local"]) == (20, 21)
    assert "sparsity" not in step("dense", elements=1000)[0]


def test_stages_do_not_overlap():
    _, stages = step(t_merge=0.5, t_inspect=0.25, t_comm=2.0, t_to_host=0.5, t_to_device=0.25)
    assert stages["forward"] == 5.0 - 3.0
    assert stages["backward"] == 3.0
    assert stages["merge"] == 0.75
    assert stages["communication"] == 2.0 - 0.75


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
    tally.add(*step(t_comm=2.0))
    header, row = breakdown(tally)
    assert header.split()[1:] == [stage.replace("_", "-") for stage in REDUCTION] + ["total"]
    figures = dict(zip(header.split()[1:], map(float, row.split()), strict=True))
    assert (figures["backward"], figures["communication"], figures["total"]) == (3000, 2000, 5000)
    assert len(header) == len(row)  # a figure stands under its name


# ---- the end


def summary_of(*phases):
    summary = Summary({"wer": "WER", "cer": "CER"})
    for phase in phases:
        summary.step(*step(phase, elements=100, selected_global=2, bytes_sent=400 if phase == "dense" else 16))
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
    record, stages = step("sparse", elements=100, skipped=True, bytes_sent=8)
    assert "sparsity" not in record
    summary.step({**record, "skipped": True}, stages)
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
    assert all(f"{stage.replace('_', '-')}, ms" in text for stage in reports.STAGES)
