#!/bin/bash
# Runs every fuzz target, or the given ones, for TIME seconds each. Safe to repeat: inputs that reach new code are kept in
# fuzz/corpus, and inputs that violate a property in fuzz/artifacts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${TIME:-60}
at_once=${JOBS:-2}
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for file in fuzz/fuzz_targets/*.rs; do
    targets+=("$(basename "$file" .rs)")
  done
fi

command -v cargo-fuzz >/dev/null || {
  echo "fuzz: cargo-fuzz is missing; install it: cargo install cargo-fuzz --locked" >&2
  exit 1
}

# Sanitizers are an unstable option; this makes the pinned compiler accept it.
export RUSTC_BOOTSTRAP=1
echo "== Building ${#targets[@]} fuzz targets (a first build takes some minutes)"
if [ $# -eq 0 ]; then
  cargo fuzz build
else
  for name in "${targets[@]}"; do
    cargo fuzz build "$name"
  done
fi

logs=fuzz/artifacts/logs
mkdir -p "$logs"

run_one() {
  local name=$1
  mkdir -p "fuzz/corpus/$name"
  # No input may take ten seconds, or a single allocation of 64 MiB: messages are limited to 4 MiB.
  if cargo fuzz run "$name" "fuzz/corpus/$name" "fuzz/seeds/$name" -- -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=2048 -malloc_limit_mb=64 -max_len=8192 -print_final_stats=1 >"$logs/$name" 2>&1; then
    local ended=ok
  else
    local ended=FAILED
  fi
  # The last line with coverage, and the number of executed inputs.
  local runs reached
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$logs/$name")
  reached=$(sed -n 's/.* cov: \([0-9]*\) ft: \([0-9]*\) .*/\1 edges, \2 features/p' "$logs/$name" | tail -n 1)
  printf '%-18s %-7s %12s inputs, %s\n' "$name" "$ended" "${runs:-?}" "${reached:-?}"
  [ "$ended" = ok ]
}
export -f run_one
export seconds logs

echo "== Running each for $seconds s, $at_once at a time; logs in $logs"
if ! printf '%s\n' "${targets[@]}" | xargs -P "$at_once" -I{} bash -c 'run_one {}'; then
  echo "fuzz: a property was violated; the input is in fuzz/artifacts/<target>; add it to fuzz/seeds/<target>" >&2
  exit 1
fi
