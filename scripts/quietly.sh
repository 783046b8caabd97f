#!/bin/bash
# quietly.sh LOG COMMAND...: runs a command with its output in LOG, and shows the output if it fails.
set -euo pipefail

log=$1
shift
mkdir -p "$(dirname "$log")"
if ! "$@" >"$log" 2>&1; then
  cat "$log" >&2
  printf '== Failed: %s (output: %s)\n' "$*" "$log" >&2
  exit 1
fi
