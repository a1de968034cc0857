#!/usr/bin/env bash
# From nothing to a trained model, about 3 minutes on two cores after set-up:
#
#     bash scripts/demo.sh [options of LSTM/main_trainer.py]
#
# It trains a small model on a small corpus; options given here come last, so they win (--max-epochs 12).
set -euo pipefail

# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"

if [[ -f audio_data/an4_train_manifest.csv && -f audio_data/an4_val_manifest.csv ]]; then
    say "Data: the corpus in audio_data"
else
    say "Data: a synthetic corpus, into audio_data"
    "$python" scripts/prepare_an4.py --synthetic
fi

say "Training"
exec "$python" LSTM/main_trainer.py --hidden-size 256 --hidden-layers 3 --batch-size 8 --max-epochs 5 --lr 0.01 \
    --data-dir audio_data "$@"
