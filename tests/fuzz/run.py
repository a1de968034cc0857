"""Look for a file that makes a reader fail, by coverage: python tests/fuzz/run.py TARGET [SECONDS]

TARGET is a name in tests/fuzz/targets.py. Needs atheris (pip install atheris) beside the project's packages. What it
has found worth keeping, and a file that fails, if any, stay in /tmp/oktopk-fuzz/TARGET: called again, it goes on there.
"""

import sys
from pathlib import Path
from tempfile import gettempdir

import atheris

sys.path.extend(str(Path(__file__).resolve().parents[2] / folder) for folder in ("LSTM", "scripts", "tests"))
OURS = ["oktopk", "oktopk_training", "corpus", "fix_manifest", "plot_run", "experiments"]
PYTHONS = ["pickle", "zipfile", "tarfile", "gzip", "json"]
for module in PYTHONS:  # they are to be loaded anew
    sys.modules.pop(module, None)
with atheris.instrument_imports(include=[*OURS, *PYTHONS], exclude=["oktopk.kernels"]):  # Numba compiles those
    import targets

SECONDS = 300
MOST_MEGABYTES, LONGEST_CASE = 3000, 60


def main():
    _, name, *seconds = sys.argv
    place = Path(gettempdir()) / "oktopk-fuzz" / name
    (place / "corpus").mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(targets.TARGETS[name].seeds()):
        (place / "corpus" / f"seed-{number}").write_bytes(seed)
    words = {
        "max_total_time": seconds[0] if seconds else SECONDS,
        "rss_limit_mb": MOST_MEGABYTES,
        "timeout": LONGEST_CASE,
        "artifact_prefix": f"{place}/",
        "print_final_stats": 1,
    }
    atheris.Setup(
        [sys.argv[0], str(place / "corpus"), *(f"-{word}={value}" for word, value in words.items())],
        lambda content: targets.attempt(name, content),
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
