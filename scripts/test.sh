#!/usr/bin/env bash
# Run the tests, with all set-up that they need:  bash scripts/test.sh [options of pytest]
set -euo pipefail

# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"

say "Tests"
exec "$python" -m pytest --numprocesses auto --maxprocesses 4 --max-worker-restart 0 \
    --dist loadfile --no-loadscope-reorder "$@"
