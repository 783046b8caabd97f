#!/bin/bash
# Runs the examples in sandboxes, and prints their results and the walls in force. $BELLJAR is the binary to use.
# Exits with 1 if an example does not behave as expected.
set -euo pipefail

BELLJAR=${BELLJAR:?set BELLJAR to the path of the belljar binary, or run: make demo}
BELLJAR=$(realpath "$BELLJAR")
cd "$(dirname "${BASH_SOURCE[0]}")/../examples"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
limits=()
failures=0
status=0

heading() {
  printf '\n== %s\n' "$*"
}

# Removes unprintable characters from a sandbox's output.
indent() {
  tr -cd '\11\12\40-\176\200-\377' | sed 's/^/   | /'
}

# Prints the first lines of a file, repeated lines only once, and the number of remaining lines.
show() {
  local title=$1 file=$2 most=20 count
  if [ ! -s "$file" ]; then
    return
  fi
  uniq "$file" >"$scratch/shown"
  count=$(wc -l <"$scratch/shown")
  printf '   %s\n' "$title"
  head -n "$most" "$scratch/shown" | indent
  if [ "$count" -gt "$most" ]; then
    printf '   | ... and %d more lines\n' $((count - most))
  fi
}

# Runs `belljar run` with the arguments and this standard input. Sets $status, $scratch/out and $scratch/err.
run() {
  printf '   $ belljar run'
  printf ' %q' "${limits[@]}" "$@"
  printf '\n'
  status=0
  "$BELLJAR" run "${limits[@]}" "$@" >"$scratch/out" 2>"$scratch/all" || status=$?
  # Belljar's own messages are separated from those of the code.
  grep -a '^belljar: ' "$scratch/all" >"$scratch/walls" || true
  grep -av '^belljar: ' "$scratch/all" >"$scratch/err" || true
  show 'standard output:' "$scratch/out"
  show 'standard error:' "$scratch/err"
  show 'belljar:' "$scratch/walls"
  printf '   exit status %d\n' "$status"
}

# check WHAT COMMAND...: the example passes if the command succeeds.
check() {
  local what=$1
  shift
  if "$@"; then
    printf '   ok: %s\n' "$what"
  else
    printf '   NOT OK: %s\n' "$what"
    failures=$((failures + 1))
  fi
}

printed() {
  grep -aqF -- "$1" "$scratch/out"
}

printed_nowhere() {
  ! grep -aqF -- "$1" "$scratch/out" "$scratch/all"
}

# Limits need a writable cgroup, which an ordinary user may not have. The weaker grade must be requested by name.
choose_limits() {
  heading "What Belljar can enforce here"
  printf '   $ belljar doctor\n'
  "$BELLJAR" doctor >"$scratch/doctor" 2>&1 || true
  indent <"$scratch/doctor"
  if "$BELLJAR" run -l sh -c : </dev/null >/dev/null 2>"$scratch/err"; then
    return
  fi
  if grep -qi cgroup "$scratch/err"; then
    limits=(--limits watched)
    printf '   cgroups are not writable here: limits are watched instead of enforced (--limits watched)\n'
  fi
}

sums_in_python() {
  heading "A CSV file, summed up in Python"
  run -f sales.csv sum.py sales.csv </dev/null
  check "the sums are correct" test "$status $(tail -n 1 "$scratch/out")" = "0 total       6270    27657.63"
  cp "$scratch/out" "$scratch/python"
}

sums_in_javascript() {
  heading "The same in JavaScript, from standard input"
  run sum.js <sales.csv
  check "the output equals that of Python" cmp -s "$scratch/out" "$scratch/python"
  check "it succeeded" test "$status" -eq 0
}

primes() {
  local file
  for file in primes.c primes.rs; do
    heading "A compiled program: $file"
    run "$file" </dev/null
    check "the primes are counted" printed "1270607 primes up to 20000000"
    check "it succeeded" test "$status" -eq 0
  done
}

# Counts the processes of the fork bomb from outside, by the unique name in their arguments.
bombs() {
  local count=0 file words=()
  for file in /proc/[0-9]*/cmdline; do
    mapfile -d '' -t words <"$file" || continue
    [ "${#words[@]}" -gt 0 ] || continue
    if [ "${words[0]##*/}" = bash ] && [ "${words[-1]}" = "$1" ]; then
      count=$((count + 1))
    fi
  done 2>/dev/null
  echo "$count"
}

# Writes the maximum number of bombs seen to a file, until stopped.
watch_bombs() {
  local most=0 now
  while true; do
    now=$(bombs "$1")
    if [ "$now" -gt "$most" ]; then
      most=$now
      echo "$most" >"$scratch/most"
    fi
    sleep 0.1
  done
}

fork_bomb() {
  local pids=64 name="fork-bomb-$$-$RANDOM" watcher begin=$SECONDS most
  heading "A fork bomb, with at most $pids processes and 5 seconds"
  echo 0 >"$scratch/most"
  watch_bombs "$name" &
  watcher=$!
  run --pids "$pids" --timeout 5 fork_bomb.sh "$name" </dev/null
  kill "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  most=$(cat "$scratch/most")
  check "it ran, and failed" test "$status" -ne 0 -a "$status" -ne 125
  check "it ended in time ($((SECONDS - begin)) s)" test $((SECONDS - begin)) -lt 30
  # With watched limits detection is slightly delayed.
  local allowed=$pids
  [ "${#limits[@]}" -eq 0 ] || allowed=$((pids * 8))
  check "at most $allowed concurrent processes (seen: $most)" test "$most" -gt 0 -a "$most" -le "$allowed"
  check "no process is left" test "$(bombs "$name")" -eq 0
}

secret() {
  local token="secret-$$-$RANDOM$RANDOM"
  heading "A search for secrets"
  printf '%s\n' "$token" >"$scratch/password"
  BELLJAR_DEMO_SECRET=$token run read_secret.py "$scratch/password" </dev/null
  check "it searched and found none" printed "0 found"
  check "the planted secret did not leak" printed_nowhere "$token"
  check "its exit status reports that it found none" test "$status" -eq 0
}

network() {
  heading "A call to the network"
  run call_home.py </dev/null
  check "it tried and did not get through" printed "0 got through"
  check "no response arrived" printed_nowhere "REACHED"
}

choose_limits
sums_in_python
sums_in_javascript
primes
fork_bomb
secret
network

if [ "$failures" -gt 0 ]; then
  printf '\n%d checks failed\n' "$failures"
  exit 1
fi
printf '\nAll examples behaved as expected\n'
