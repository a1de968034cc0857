"""Tiny corpora that tests make for themselves, and the programs run on them as a user runs them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import soundfile

PROJECT = Path(__file__).resolve().parent.parent
TRAINER = "LSTM/main_trainer.py"
SMALL = ("--hidden-size", "16", "--hidden-layers", "2", "--batch-size", "4", "--device", "cpu")
WORDS = ("GO", "STOP", "YES", "NO", "ONE TWO", "A B", "ENTER")


def tone(seconds, pitch=440.0, rate=16_000, seed=0):
    time = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(seed).normal(0, 0.01, len(time))
    return (0.3 * np.sin(2 * np.pi * pitch * time) + noise).astype(np.float32)


def make_corpus(folder, train=12, val=4):
    """Tones of 0.5 to 1 s with a word each, and both manifests."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("val", val)):
        lines = []
        for index in range(count):
            name = f"{part}{index:02d}"
            samples = tone(0.5 + 0.5 * index / count, 200 + 40 * index, seed=index)
            soundfile.write(folder / f"{name}.wav", samples, 16_000)
            (folder / f"{name}.txt").write_text(WORDS[index % len(WORDS)] + "\n")
            lines.append(f"{name}.wav,{name}.txt\n")
        (folder / f"an4_{part}_manifest.csv").write_text("".join(lines))
    return folder


def make_text(folder, sentences=60):
    """ptb.{train,valid,test}.txt over a vocabulary of a dozen words."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "valid", "test"):
        random = np.random.default_rng(len(part))
        lines = [" ".join(f"w{word}" for word in random.integers(12, size=8)) for _ in range(sentences)]
        (folder / f"ptb.{part}.txt").write_text("\n".join(["w" + " w".join(map(str, range(12)))] + lines) + "\n")
    return folder


def run_program(program, *arguments, cwd=PROJECT, environment=None, timeout=120):
    """Run a program of the project; `program` may be several words, as in ("-m", "mpi4py", "LSTM/main_trainer.py")."""
    words = [program] if isinstance(program, str) else list(program)
    return subprocess.run(
        [sys.executable, *words, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def train(corpus, run, *more, **settings):
    """Run main_trainer.py, with a small model, in one process."""
    return run_program(TRAINER, *SMALL, "--data-dir", corpus, "--run-dir", run, *more, **settings)
