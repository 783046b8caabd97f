#!/bin/bash
# quietly.sh LOG COMMAND...: runs a command, and shows what it said only if it fails. LOG keeps it.
set -euo pipefail

log=$1
shift
mkdir -p "$(dirname "$log")"
if ! "$@" >"$log" 2>&1; then
  cat "$log" >&2
  printf '== Failed: %s (%s has what it said)\n' "$*" "$log" >&2
  exit 1
fi
