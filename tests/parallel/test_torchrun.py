"""DDP's and FSDP2's hooks and GradScaler, under torchrun."""

import time
from functools import cache

import pytest
from ranks import WORKERS, findings_of, run_torch_ranks

FLOAT32 = 1e-6
ENDED = 30  # seconds from a failure to the end of all ranks, the start of torch on a busy machine included
CASES = (
    *("dense_equivalence", "as_optimizer", "conservation", "join", "resume", "scaler", "mixed_dtypes", "exclusion"),
    *("layer_drop", "compiled", "beside_power_sgd", "state_on_some_ranks", "float16", "nodes"),
)


@cache
def findings():
    return findings_of(3, "hooks.py", *CASES, launch=run_torch_ranks)


def found(case):
    return findings()[case]


def test_at_density_1_the_hook_gives_the_mean_of_ddp():
    assert len(found("dense_equivalence")) == 8
    assert max(found("dense_equivalence").values()) < FLOAT32


def test_a_model_trains_through_the_hook_as_through_the_optimizer_to_the_bit():
    assert found("as_optimizer") == dict.fromkeys(("oktopk", "gtopk", "topkA", "topkSA", "gaussiank"), True)


def test_nothing_is_lost_when_buckets_are_made_anew_and_gradients_accumulate():
    assert len(found("conservation")) == 7
    assert max(found("conservation").values()) < FLOAT32


def test_a_rank_that_has_joined_keeps_its_residual():
    assert found("join")["lost"] < FLOAT32
    assert found("join")["kept"]
    assert found("join")["agree"]


def test_parameters_that_no_rank_uses_keep_their_residuals():
    assert found("layer_drop") == {"kept": True, "sent": True}


def test_a_state_that_some_ranks_lack_is_refused_on_all():
    assert "some rank's reducer has made 5 reductions and another's 0" in found("state_on_some_ranks")


def test_a_saved_state_goes_on_as_if_nothing_had_happened():
    assert found("resume")


def test_an_overflow_on_one_rank_is_as_if_the_batch_had_never_been():
    assert found("scaler") == {"same": True, "scales": [1024.0, 512.0], "finite": True}


def test_residuals_of_bfloat16_gradients_are_float32():
    assert found("mixed_dtypes") == {"residuals": ["torch.float32"], "finite": True, "selected": True}


def test_what_a_float16_gradient_cannot_hold_of_a_mean_is_kept():
    assert max(found("float16").values()) < FLOAT32


def test_parameters_can_be_left_dense_by_name_or_by_size():
    biases = ["0.bias", "2.bias", "4.bias"]
    assert found("exclusion") == {"exclude": biases, "exclude_below": biases}


def test_nodes_are_of_all_ranks_and_give_their_groups_back():
    assert found("nodes")["means"] == [0, 2]
    assert found("nodes")["more_groups"] == 0
    of_some, of_others = found("nodes")["refused"]
    assert "go over all ranks of torch.distributed, and here is a process group of some" in of_some
    assert "torch connects another one only where that is the same number" in of_others


def test_compiled_models_work_or_are_refused():
    assert found("compiled")["ddp_optimizer"] == found("compiled")["no_optimization"] == "ok"
    assert "python_reducer ignores what hooks return" in found("compiled")["python_reducer"]


def test_what_power_sgd_does_not_keep():
    kept = {"finite gradients after an overflow", "state loads with weights_only", "resume to the bit"}
    assert found("beside_power_sgd") == {"ours": dict.fromkeys(kept, True), "power": dict.fromkeys(kept, False)}


def test_fsdp2_is_dense_in_a_node_and_sparse_between_nodes():
    fsdp = findings_of(4, "fsdp.py", launch=run_torch_ranks)
    assert fsdp["dense"] < FLOAT32
    assert fsdp["agree"]
    assert fsdp["selected"] == 1
    assert fsdp["kept"] == ["0", "2", "model"]


@pytest.mark.parametrize("how", [(), ("per_bucket",)])
def test_what_fails_in_the_hook_of_one_rank_ends_all_and_all_say_why(how):
    start = time.monotonic()
    done = run_torch_ranks(3, WORKERS / "failing_hook.py", 1, *how, seconds=120)
    assert done.returncode != 0
    assert "ValueError: the disk of this node is on fire" in done.stderr
    assert "LostRanks: rank 1: ValueError: the disk of this node is on fire" in done.stderr
    assert time.monotonic() - start < 2 * ENDED


def test_many_steps_leave_nothing_behind():
    after = findings_of(3, "endurance.py", 400, launch=run_torch_ranks)
    assert abs(after["in_use"]) < 0.01
    assert after["growth"] < 0.15  # malloc keeps what was free: lumps of some megabytes
    assert after["threads"] == after["files"] == 0


def test_a_grad_scaler_hears_of_one_ranks_overflow_on_all():
    scaled = findings_of(3, "scaler.py", launch=run_torch_ranks)
    assert scaled["same on all"]
    assert len(scaled["cases"]) == 12
    assert all(all(verdict.values()) for verdict in scaled["cases"].values()), scaled["cases"]
    assert "call optimizer.synchronize(scaler) before" in scaled["early"]
