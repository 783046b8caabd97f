#!/bin/bash
# Installs the dependencies to build, demonstrate or test Belljar. Safe to repeat: it does nothing if everything is installed.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/install-deps.sh build|demo|test|hostile

  build  the C toolchain and make, which the build needs besides Rust
  demo   build, and the languages of the examples
  test   demo, every language of languages/*.toml, the tools of the tests, and the account belljar-test
  hostile
         test, and the third-party tools that `make hostile` runs: stress-ng and checksec

Uses apt-get on Debian 12 and Ubuntu 22.04 or newer, as root or through sudo. On other systems it reports what is missing.
TEXT
}

say() {
  printf 'install-deps: %s\n' "$*"
}

die() {
  printf 'install-deps: %s\n' "$*" >&2
  exit 1
}

root_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
test_user=belljar-test

# A set consists of Debian packages, and of commands to check for on other systems.
packages=()
commands=()

need() {
  local -n list=$1
  shift
  list+=("$@")
}

# Prints the value of one key in every language file, one word per line.
language_values() {
  sed -n "s/^$1 = \"\\(.*\\)\"\$/\\1/p" "$root_dir"/languages/*.toml | tr ' ' '\n' | sort -u
}

build_set() {
  need packages gcc libc6-dev make
  need commands gcc make
}

demo_set() {
  build_set
  need packages python3 nodejs rustc
  need commands python3 node rustc
}

test_set() {
  demo_set
  need packages bubblewrap uidmap strace util-linux procps curl openssl
  need commands bwrap newuidmap strace unshare ps curl openssl
  # The tests of the store start their own database servers. Tests that need one are skipped without it.
  need packages postgresql sqlite3
  need commands postgres initdb pg_dump sqlite3
  # Templates. Without mmdebstrap the test that creates a Debian tree is skipped.
  need packages squashfs-tools mmdebstrap
  need commands mksquashfs unsquashfs
  # Volumes: the server creates their file systems, and a test checks one.
  need packages e2fsprogs
  need commands mke2fs debugfs e2fsck
  # The tests of the SDKs. Some Node packages include npm, and conflict with Debian's.
  need packages python3-venv
  command -v npm >/dev/null || need packages npm
  need commands npm
  # Python contexts and their results.
  need packages python3-ipython python3-matplotlib python3-pandas python3-pil
  # Servers and clients for the tests of networks. Some systems have a git of their own.
  command -v git >/dev/null || need packages git
  need packages dropbear-bin openssh-client redis-tools python3-aiohttp python3-httpx python3-requests
  need commands git dropbear ssh redis-cli
  # A registry for the tests of images.
  need packages docker-registry
  need commands docker-registry
  # A daemon for the tests of the engine docker, which start one of their own.
  need packages docker.io
  need commands dockerd docker
  # The browser of the console's tests.
  need packages chromium
  need commands chromium
  # Jupyter kernels.
  need packages python3-ipykernel r-cran-irkernel
  local word
  while read -r word; do need packages "$word"; done < <(language_values package)
  while read -r word; do need commands "$word"; done < <(language_values program)
}

hostile_set() {
  test_set
  # On other systems the cases that use them are skipped if they are missing.
  need packages stress-ng checksec
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    say "not root, and sudo is not installed; run as root: $*" >&2
    return 1
  fi
}

has_apt() {
  command -v apt-get >/dev/null && command -v dpkg-query >/dev/null
}

# Prints the packages that are not installed, without duplicates.
missing_packages() {
  local installed
  installed=$(dpkg-query --show --showformat='${db:Status-Status} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^installed //p') || true
  comm -23 <(printf '%s\n' "$@" | sort -u) <(printf '%s\n' "$installed" | sort -u)
}

install_packages() {
  local missing=()
  mapfile -t missing < <(missing_packages "${packages[@]}")
  if [ "${#missing[@]}" -eq 0 ]; then
    return
  fi
  say "installing with apt-get: ${missing[*]}"
  local apt=(env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
  # Partly outdated package lists may still be sufficient.
  as_root "${apt[@]}" update -qq || say "apt-get update failed; continuing with the existing package lists"
  as_root "${apt[@]}" install -y -qq --no-install-recommends "${missing[@]}" </dev/null && return
  lacks "apt-get cannot install them: ${missing[*]}"
}

# Missing dependencies are reported immediately, and do not prevent the installation of the others.
is_complete=true
lacks() {
  say "$*" >&2
  is_complete=false
}

check_commands() {
  local missing=() name
  for name in "${commands[@]}"; do
    command -v "$name" >/dev/null || missing+=("$name")
  done
  if [ "${#missing[@]}" -gt 0 ]; then
    say "this system has no apt-get; install the equivalents of these Debian packages: $(printf '%s\n' "${packages[@]}" | sort -u | tr '\n' ' ')"
    lacks "not found: ${missing[*]}"
  fi
}

# The first release of runsc that the engine gvisor uses, as a date.
oldest_runsc=20240729

is_new_runsc() {
  [ "$(grep -oE '[0-9]{8}' <<<"$1" | head -n 1)" -ge "$oldest_runsc" ] 2>/dev/null
}

# gVisor: Debian's own package from 13 on, that of the backports of Debian 12, which are not added to its sources. Without it the tests of the
# engine gvisor are skipped.
make_runsc() {
  local release dir source
  if is_new_runsc "$(runsc --version 2>/dev/null || true)" || ! grep -q '^ID=debian$' /etc/os-release; then
    return
  fi
  say "installing runsc"
  local apt=(env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
  if is_new_runsc "$(apt-cache policy runsc | sed -n 's/^ *Candidate: //p')"; then
    as_root "${apt[@]}" install -y --no-install-recommends runsc </dev/null || true
  else
    release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    source="deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${BELLJAR_DEBIAN_MIRROR:-http://deb.debian.org/debian} $release-backports main"
    dir=$(mktemp --directory /tmp/belljar-backports-XXXXXX)
    mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
    printf '%s\n' "$source" >"$dir/sources.list"
    apt+=(-o "Dir::Etc::sourcelist=$dir/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$dir/lists" -o "Dir::Cache=$dir/cache")
    apt+=(-o APT::Sandbox::User=root)
    as_root "${apt[@]}" update && as_root "${apt[@]}" install -y --no-install-recommends "runsc/$release-backports" </dev/null || true
    as_root rm -rf "$dir"
  fi
  is_new_runsc "$(runsc --version 2>/dev/null || true)" || say "no runsc of $oldest_runsc or later: the tests of the engine gvisor are skipped"
}

# Tests that run as an ordinary user need a non-root account with a range of subordinate user ids.
make_test_user() {
  if getent passwd "$test_user" >/dev/null; then
    return
  fi
  say "adding the account $test_user"
  as_root /usr/sbin/useradd --create-home --user-group --shell /bin/bash --comment 'runs tests of Belljar' "$test_user" ||
    lacks "cannot add the account $test_user"
}

check_cargo() {
  command -v cargo >/dev/null || die "cargo is not installed; see https://rustup.rs"
}

make_nextest() {
  local version=0.9.143 try
  if command -v cargo-nextest >/dev/null; then
    return
  fi
  say "building cargo-nextest $version, which takes some minutes"
  for try in 1 2 3; do
    cargo install --quiet --locked --version "$version" cargo-nextest && return
    sleep $((try * 5))
  done
  lacks "cannot build cargo-nextest $version, which runs the tests"
}

case "${1:-}" in
  build | demo | test | hostile) wanted=$1 ;;
  -h | --help) usage && exit 0 ;;
  *) usage >&2 && exit 2 ;;
esac
[ "$#" -eq 1 ] || { usage >&2 && exit 2; }

"${wanted}_set"
if has_apt; then
  install_packages
else
  check_commands
fi
check_cargo
if [ "$wanted" = test ] || [ "$wanted" = hostile ]; then
  make_test_user
  if has_apt; then make_runsc; fi
  make_nextest
fi
$is_complete || die "some dependencies of \`$wanted\` are missing; see above"
say "all dependencies of \`$wanted\` are installed"
