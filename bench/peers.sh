#!/bin/bash
# Downloads the sandboxes that the benchmark compares with, runs a command with them, and removes everything.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bench/peers.sh COMMAND [ARGUMENT]...

Unpacks Docker, runc, crun and gVisor from Debian packages below target/bench-peers (nothing is installed), creates a
Debian image with Python, and starts a Docker daemon in its own namespaces. Then it runs COMMAND with BELLJAR_PEERS set to
a directory whose file `peers` lists what is ready, and what is skipped and why. At the end, even after a failure, it
stops everything and removes what it created; the unpacked packages and the image are kept for the next run.

Needs root and apt-get on Debian 12.
TEXT
}

say() {
  printf 'peers: %s\n' "$*" >&2
}

[ "$#" -gt 0 ] || { usage >&2 && exit 2; }
case "$1" in -h | --help) usage && exit 0 ;; esac

root_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
kept="${CARGO_TARGET_DIR:-$root_dir/target}/bench-peers"
tools="$kept/tools"
mirror=${BELLJAR_DEBIAN_MIRROR:-http://deb.debian.org/debian}
# Prefix of all control groups of the peers, by which leftovers are found and removed.
group=belljar-bench
daemon=
command=

ready() {
  printf '%s\tready\t\n' "$1" >>"$BELLJAR_PEERS/peers"
}

skip() {
  say "skipped: $1: $2"
  printf '%s\tskipped\t%s\n' "$1" "$2" >>"$BELLJAR_PEERS/peers"
}

skip_all() {
  local name
  for name in docker runc crun gvisor; do skip "$name" "$1"; done
}

debian_release() {
  sed -n 's/^VERSION_CODENAME=//p' /etc/os-release
}

# Prints the path of an apt configuration with separate lists and files, and with backports as a source.
apt_settings() {
  local apt="$kept/apt" release
  release=$(debian_release)
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
  local from="deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror"
  printf '%s main\n' "$from $release" "$from $release-backports" >"$apt/sources.list"
  cat >"$apt/apt.conf" <<TEXT
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$apt/lists";
Dir::Cache "$apt/cache";
APT::Sandbox::User "root";
Acquire::Retries "3";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
TEXT
  printf '%s' "$apt/apt.conf"
}

# Unpacks a package and its dependencies, except those that are installed.
unpack() {
  local wanted=$1 packages package
  [ ! -e "$kept/${wanted%/*}.done" ] || return 0
  mapfile -t packages < <(apt-get -s install --no-install-recommends "$wanted" 2>/dev/null |
    sed -nE 's/^Inst ([^ ]+) (\[[^]]*\] )?\(([^ ]+) .*/\1=\3/p')
  if [ "${#packages[@]}" -gt 0 ]; then
    mkdir -p "$kept/packages" "$tools"
    (cd "$kept/packages" && apt-get -qq download "${packages[@]}") || return
    for package in "${packages[@]}"; do
      dpkg-deb -x "$kept/packages/${package%%=*}"_*.deb "$tools" || return
    done
  fi
  : >"$kept/${wanted%/*}.done"
}

get_tools() {
  local release
  release=$(debian_release)
  APT_CONFIG=$(apt_settings)
  export APT_CONFIG
  [ -e "$kept/docker.io.done" ] && [ -e "$kept/runsc.done" ] || apt-get -qq update || return
  local package
  # Debian 12's own runsc is from 2022; that of the backports is measured.
  for package in docker.io runc crun mmdebstrap passt slirp4netns "runsc/$release-backports"; do
    unpack "$package" || say "apt-get cannot download $package"
  done
  unset APT_CONFIG
}

# Creates the image: a minimal Debian with the same version of Python as this system.
get_image() {
  [ ! -e "$kept/rootfs.tar" ] || return 0
  local release
  release=$(debian_release)
  say "making the image"
  mmdebstrap --quiet --mode=root --variant=minbase --include=python3-minimal "$release" "$kept/rootfs.new.tar" "$mirror" || return
  mv "$kept/rootfs.new.tar" "$kept/rootfs.tar"
}

# The daemon has its own network, mount and pid namespaces: it does not change this machine's forwarding, firewall or kernel
# settings, its files in /run and /etc disappear with it, and all its processes end with the first one, which ends with this
# script.
start_docker() {
  local dir=$1
  mkdir -p "$dir/etc" "$dir/work"
  # shellcheck disable=SC2016
  setpriv --pdeathsig KILL unshare --mount --net --pid --fork --kill-child --mount-proc bash -c '
    set -eu
    mount -t tmpfs tmpfs /run
    mount -t overlay -o "lowerdir=/etc,upperdir=$1/etc,workdir=$1/work" overlay /etc
    mount --bind /proc/sys /proc/sys
    mount -o remount,bind,ro /proc/sys
    dockerd --host "unix://$1/docker.sock" --data-root "$1/data" --exec-root "$1/exec" --pidfile "$1/docker.pid" \
      --bridge none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --cgroup-parent "$2"
    exit' - "$dir" "/$group" >"$dir/dockerd.log" 2>&1 &
  daemon=$!
  local deadline=$((SECONDS + 60))
  until docker -H "unix://$dir/docker.sock" version >/dev/null 2>&1; do
    if ! kill -0 "$daemon" 2>/dev/null || [ "$SECONDS" -ge "$deadline" ]; then
      return 1
    fi
    sleep 0.2
  done
  docker -H "unix://$dir/docker.sock" import "$kept/rootfs.tar" belljar-bench >/dev/null
}

# Prints the last line of a log, shortened.
reason() {
  tail -n 1 "$1" | cut -c 1-200 | tr -d '\t'
}

# Kills all processes of a program that this script has unpacked.
reap() {
  local link
  for link in /proc/[0-9]*/exe; do
    if [ "$(readlink "$link" 2>/dev/null)" = "$1" ]; then
      link=${link#/proc/}
      kill -KILL "${link%/exe}" 2>/dev/null || true
    fi
  done
}

clean_up() {
  trap - EXIT INT TERM
  set +e
  if [ -n "$command" ]; then
    kill -TERM "$command" 2>/dev/null
    wait "$command" 2>/dev/null
  fi
  if [ -n "$daemon" ]; then
    kill -KILL "$daemon" 2>/dev/null
    wait "$daemon" 2>/dev/null
  fi
  local program deadline left
  deadline=$((SECONDS + 10))
  while :; do
    for program in dockerd containerd containerd-shim-runc-v2 runc runsc; do
      reap "$tools/usr/bin/$program"
      reap "$tools/usr/sbin/$program"
    done
    left=$(find /sys/fs/cgroup -depth -type d -path "/sys/fs/cgroup*/$group*" ! -exec rmdir {} \; -print 2>/dev/null)
    if [ -z "$left" ] || [ "$SECONDS" -ge "$deadline" ]; then
      break
    fi
    sleep 0.2
  done
  [ -z "$left" ] || say "could not remove these control groups: $left"
  # crun creates it regardless of --root.
  [ -n "$crun_existed" ] || rmdir /run/crun 2>/dev/null
  rm -rf --one-file-system "$BELLJAR_PEERS"
}

crun_existed=
[ ! -e /run/crun ] || crun_existed=yes
BELLJAR_PEERS=$(mktemp -d /tmp/belljar-peers.XXXXXX)
export BELLJAR_PEERS
: >"$BELLJAR_PEERS/peers"
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [ "$(id -u)" -ne 0 ]; then
  skip_all "needs root"
elif ! command -v apt-get >/dev/null || ! grep -q '^ID=debian$' /etc/os-release; then
  skip_all "available only on Debian"
elif ! get_tools; then
  skip_all "apt-get cannot reach a Debian mirror"
else
  PATH="$tools/usr/bin:$tools/usr/sbin:$PATH"
  LD_LIBRARY_PATH="$tools/usr/lib/$(uname -m)-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  export PATH LD_LIBRARY_PATH
  if get_image >"$BELLJAR_PEERS/image.log" 2>&1; then
    mkdir "$BELLJAR_PEERS/rootfs"
    tar -C "$BELLJAR_PEERS/rootfs" -xf "$kept/rootfs.tar"
    if start_docker "$BELLJAR_PEERS"; then
      ready docker
    else
      skip docker "the daemon did not start: $(reason "$BELLJAR_PEERS/dockerd.log")"
    fi
    ready runc
    ready crun
  else
    why="no image: $(reason "$BELLJAR_PEERS/image.log")"
    for name in docker runc crun; do skip "$name" "$why"; done
  fi
  ready gvisor
fi

# In the background, so that signals are handled immediately.
"$@" &
command=$!
status=0
wait "$command" || status=$?
command=
exit "$status"
