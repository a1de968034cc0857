#!/usr/bin/env bash
# What mpiexec has for an ssh inside a lab (scripts/lab.py): runs a command line on one of its hosts.
#
#   enter_host.sh [-OPTION ...] HOST COMMAND LINE
set -euo pipefail

while [[ "$1" == -* ]]; do shift; done
host="$1"
shift
# shellcheck disable=SC2016 # expanded on the host
exec ip netns exec "$host" unshare --uts bash -c 'hostname "$0" && exec bash -c "$1"' "$host" "$*"
