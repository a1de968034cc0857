#!/usr/bin/env bash
# From nothing to a trained model and a report on the run, about 2 minutes on two cores after set-up:
#
#     bash scripts/demo.sh [options of LSTM/main_trainer.py]
#
# Two ranks train a small model on a small corpus with exp_configs/quickstart.conf: Ok-Topk at density 0.02, after one
# dense epoch. Options given here come last, so they win (--density 0.05).
set -euo pipefail

for word in "$@"; do
    [[ "$word" != -h && "$word" != --help ]] || { sed -n '2,/^set/{/^set/d;s/^#\( \|$\)//;p}' "${BASH_SOURCE[0]}"; exit; }
done

# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"

for word in "$@"; do
    [[ "$word" != --run[-_]dir* ]] || fail "demo.sh chooses the run's folder; with --run-dir, use LSTM/lstm_oktopk.sh"
done

if [[ -f audio_data/an4_train_manifest.csv && -f audio_data/an4_val_manifest.csv ]]; then
    say "Data: the corpus in audio_data"
else
    say "Data: a synthetic corpus, into audio_data"
    "$python" scripts/prepare_an4.py --synthetic
fi

say "Training on 2 ranks"
run="runs/demo/$(date +%Y-%m-%d_%H-%M-%S)"
config=quickstart venv="$(dirname "$(dirname "$python")")" bash LSTM/lstm_oktopk.sh --run-dir "$run" "$@"

say "A report on the run, for any browser"
"$python" scripts/report.py "$run"
