"""Runs written by hand, for those who read and draw them: two ranks, oktopk after a dense epoch."""

import json

STEPS = 40  # of an epoch
TARGET_K = 1000
DENSE_BYTES, SPARSE_BYTES = 200_000, 16_000
CONFIG = {
    "options": {
        **{"dnn": "lstman4", "dataset": "an4", "hidden_size": 16, "hidden_layers": 2, "batch_size": 4, "lr": 0.01},
        **{"compression": True, "compressor": "oktopk", "density": 0.02, "run_dir": "somewhere"},
    },
    "figures": {"wer": "WER", "cer": "CER"},
    "ranks": 2,
    "versions": {"torch": "2.9.0"},
    "command": ["main_trainer.py", "--lr", "0.01"],
}


def iteration(number, epoch=0, loss=1.0, phase="dense", **more):
    return {"kind": "iter", "iter": number, "epoch": epoch, "phase": phase, "loss": loss, "lr": 0.01, **more}


def step(number, phase, **more):
    sparse = phase == "sparse"
    figures = {
        "skipped": False,
        "sparsity": 0.98 if sparse else None,
        "compression_ratio": 50.0 if sparse else None,
        "target_k": TARGET_K if sparse else None,
        "selected_local": TARGET_K + number if sparse else None,
        "selected_global": TARGET_K if sparse else None,
        "bytes_sent": SPARSE_BYTES if sparse else DENSE_BYTES,
        **{"t_iter": 0.1, "t_data": 0.01, "t_compute": 0.06, "t_select": 0.005, "t_comm": 0.01, "t_apply": 0.005},
    }
    return iteration(number, number // STEPS, phase=phase, **{"loss": 100 / (number + 1), **figures, **more})


def epoch_end(epoch):
    validation = {"kind": "val", "epoch": epoch, "loss": 3.0, "wer": 0.5 / (epoch + 1), "cer": 0.25 / (epoch + 1)}
    return [{"kind": "epoch", "epoch": epoch, "loss": 2.0 / (epoch + 1)}, validation]


def records(epochs=3, dense_epochs=1, **more):
    made = []
    for epoch in range(epochs):
        phase = "dense" if epoch < dense_epochs else "sparse"
        made += [step(epoch * STEPS + place, phase, **more) for place in range(STEPS)] + epoch_end(epoch)
    return made


def write(run, records, config=CONFIG, tail=""):
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records) + tail)
    if config is not None:
        (run / "config.json").write_text(json.dumps(config))
    return run


def with_options(**options):
    return {**CONFIG, "options": {**CONFIG["options"], **options}}
