#!/bin/bash
# Runs a command with a Docker daemon of its own, which has a network and a mount namespace to itself and all its files in a temporary
# directory; nothing is left of it afterwards. The command gets BELLJAR_TEST_DOCKER and DOCKER_HOST, the daemon's address, BELLJAR_TEST_IMAGE, an image with
# a shell and Python, and BELLJAR_TEST_ENV_IMAGE, the same with OF_THE_IMAGE=yes in its environment. Where no daemon can run, it gets BELLJAR_TEST_DOCKER_LACKS, the reason, and its tests are skipped.
set -euo pipefail

usage() {
  printf 'usage: tests/docker/with-daemon.sh COMMAND [ARGUMENT…]\n' >&2
  exit 2
}

# Runs in the daemon's own namespaces.
daemon() {
  local dir=$1
  mount --make-rprivate /
  ip link set lo up 2>/dev/null || true
  exec dockerd --host "unix://$dir/docker.sock" --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/pid" \
    --bridge none --iptables=false --ip-forward=false --ip-masq=false --userland-proxy=false \
    --cgroup-parent "/$(basename "$dir")" --config-file "$dir/daemon.json" >"$dir/log" 2>&1
}

if [ "${1:-}" = --daemon ]; then
  daemon "$2"
fi
[ "$#" -gt 0 ] || usage

lacks() {
  printf 'SKIPPED the engine docker: %s\n' "$1"
  BELLJAR_TEST_DOCKER_LACKS=$1 exec "${@:2}"
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ "$(id -u)" -eq 0 ] || lacks "a daemon needs root" "$@"
for program in dockerd docker containerd runc unshare; do
  command -v "$program" >/dev/null || lacks "$program is not installed; the package is docker.io" "$@"
done

command -v dpkg-query >/dev/null || lacks "the image of the tests is made of Debian's packages" "$@"
unshare --mount --net true 2>/dev/null || lacks "a network and a mount namespace cannot be made" "$@"

dir=$(mktemp --directory /tmp/belljar-docker-XXXXXX)
printf '{}\n' >"$dir/daemon.json"
pid=

child=
finish() {
  local status=$? try
  trap - EXIT
  if [ -n "$child" ]; then kill "$child" 2>/dev/null || true; fi
  if [ -n "$pid" ]; then
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  fi
  if [ "$status" -ne 0 ] && [ -n "${BELLJAR_TEST_DOCKER_LOG:-}" ]; then cp "$dir/log" "$BELLJAR_TEST_DOCKER_LOG"; fi
  # Groups of containers are removed a moment after their last process.
  for try in 1 2 3 4 5 6 7 8 9 10; do
    find /sys/fs/cgroup -depth -type d -path "*/$(basename "$dir")*" -exec rmdir {} + 2>/dev/null || true
    rm -rf "$dir" 2>/dev/null && break
    sleep 0.5
  done
  exit "$status"
}
trap finish EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

unshare --mount --net -- "${BASH_SOURCE[0]}" --daemon "$dir" &
pid=$!
export BELLJAR_TEST_DOCKER=unix://$dir/docker.sock DOCKER_HOST=unix://$dir/docker.sock
for _ in $(seq 600); do
  docker --host "$BELLJAR_TEST_DOCKER" version >/dev/null 2>&1 && break
  if ! kill -0 "$pid" 2>/dev/null; then
    tail -n 20 "$dir/log" >&2
    pid=
    printf 'the daemon has ended; its log is above\n' >&2
    exit 1
  fi
  sleep 0.1
done

export BELLJAR_TEST_IMAGE=belljar-test:1 BELLJAR_TEST_ENV_IMAGE=belljar-test:env
"$here/image.sh" | docker --host "$BELLJAR_TEST_DOCKER" import - "$BELLJAR_TEST_IMAGE" >/dev/null
container=$(docker --host "$BELLJAR_TEST_DOCKER" create "$BELLJAR_TEST_IMAGE" /bin/sh)
# The first container makes the daemon's control groups, which stay for as long as it runs.
docker --host "$BELLJAR_TEST_DOCKER" start --attach "$container" >/dev/null
docker --host "$BELLJAR_TEST_DOCKER" commit --change 'ENV OF_THE_IMAGE=yes' "$container" "$BELLJAR_TEST_ENV_IMAGE" >/dev/null
docker --host "$BELLJAR_TEST_DOCKER" rm "$container" >/dev/null

# In the background, as signals are handled only between commands.
"$@" &
child=$!
status=0
wait "$child" || status=$?
child=
exit "$status"
