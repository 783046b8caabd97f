#!/bin/bash
# Fills a directory with the packages of a template, so that it can be built without a network.
set -Eeuo pipefail
trap 'echo "mirror: failed in line $LINENO: $BASH_COMMAND" >&2' ERR

usage() {
  cat <<'TEXT'
usage: templates/mirror.sh TEMPLATE.toml DIR

Downloads with the registries' own clients, as configured on this machine, and runs none of the downloaded code:

  DIR/apt   packages of every `apt` step and of a Debian base, with dependencies and an index   (apt-get)
  DIR/pip   wheels of every `pip` step for the tree's Python, with dependencies, and pip        (pip)
  DIR/npm   a cache with the packages of every `npm` step, and npm itself                       (npm)

Existing files are kept. A Debian base needs a machine whose apt-get is configured for that release.
Needs python3 3.11 or newer to read the template. BELLJAR_PYTHON is the tree's Python for wheels: 3.11 by default.
TEXT
}

[ $# -eq 2 ] || { usage >&2; exit 2; }
template=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)
python=${BELLJAR_PYTHON:-3.11}

# words KEY: prints the words of all steps of a kind, one per line.
words() {
  python3 - "$template" "$1" <<'PY'
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    template = tomllib.load(file)
if sys.argv[2] in ("base", "suite"):
    print(template.get(sys.argv[2], "bookworm"))
else:
    for step in template.get("step", []):
        print("\n".join(step.get(sys.argv[2], [])))
PY
}

mapfile -t apt < <(words apt | sed '/^$/d')
mapfile -t pip < <(words pip | sed '/^$/d')
mapfile -t npm < <(words npm | sed '/^$/d')
base=$(words base)
suite=$(words suite)

if [ "$base" = debian ] || [ ${#apt[@]} -gt 0 ]; then
  mkdir -p "$dir/apt" "$dir/.apt/lists/partial" "$dir/.apt/archives/partial"
  : >"$dir/.apt/status"
  # An empty status: all dependencies are downloaded, even those that are installed here.
  options=(-y -q -o "Dir::State::status=$dir/.apt/status" -o "Dir::State=$dir/.apt" -o "Dir::Cache::archives=$dir/.apt/archives"
    -o Debug::NoLocking=1 -o APT::Install-Recommends=0 -o APT::Sandbox::User=root)
  apt-get "${options[@]}" update
  apt-get "${options[@]}" --download-only install '?essential' apt usr-is-merged "${apt[@]}"
  cp -n "$dir/.apt/archives"/*.deb "$dir/apt/"
  rm -rf "$dir/.apt"
  (
    cd "$dir/apt"
    for file in *.deb; do
      dpkg-deb -f "$file" | sed '/^$/d'
      printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' "$file" "$(stat -c %s "$file")" "$(sha256sum "$file" | cut -d' ' -f1)"
    done >Packages
    printf 'Origin: mirror\nSuite: %s\nCodename: %s\nArchitectures: %s\nComponents: main\nDate: Sat, 01 Jan 2000 00:00:00 UTC\nSHA256:\n %s %s Packages\n' \
      "$suite" "$suite" "$(dpkg --print-architecture)" "$(sha256sum Packages | cut -d' ' -f1)" "$(stat -c %s Packages)" >Release
  )
  echo "mirror: $(find "$dir/apt" -name '*.deb' | wc -l) Debian packages"
fi

if [ ${#pip[@]} -gt 0 ]; then
  mkdir -p "$dir/pip"
  python3 -m pip download --disable-pip-version-check -q -d "$dir/pip" --only-binary :all: --python-version "$python" \
    --implementation cp "${pip[@]}" pip
  echo "mirror: $(find "$dir/pip" -name '*.whl' | wc -l) wheels"
fi

if [ ${#npm[@]} -gt 0 ]; then
  mkdir -p "$dir/npm"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  # The newest npm needs a newer Node than Debian has.
  (cd "$work" && npm pack --loglevel=error "npm@9" >/dev/null && mv npm-*.tgz "$dir/npm/npm.tgz")
  # The same npm as in the build, which cannot use the cache of another version.
  tar -xzf "$dir/npm/npm.tgz" -C "$work"
  node "$work/package/bin/npm-cli.js" install --loglevel=error --ignore-scripts --no-audit --no-fund --global --prefix "$work/tree" --cache "$dir/npm/cache" "${npm[@]}"
  npm config get registry >"$dir/npm/registry"
  rm -rf "$dir/npm/cache/_logs" "$dir/npm/cache/_update-notifier-last-checked"
  echo "mirror: $(find "$dir/npm/cache" -type f | wc -l) files in npm's cache"
fi
