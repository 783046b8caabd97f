#!/bin/bash
# set-version.sh VERSION: sets the version of everything. Cargo.toml states it; the others are copies that their tools need, and
# scripts/dist.py compares them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=${1:?usage: scripts/set-version.sh VERSION}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { printf 'set-version: %s is not of the form 1.2.3\n' "$version" >&2; exit 2; }

sed -i "/^\[workspace.package\]/,/^\[/ s/^version = .*/version = \"$version\"/" Cargo.toml
sed -i "s/^__version__ = .*/__version__ = \"$version\"/" sdk/python/src/belljar/_version.py
# The package's own come first; those of its dependencies follow.
sed -i "1,10 s/\"version\": \".*\"/\"version\": \"$version\"/" sdk/typescript/package.json sdk/typescript/package-lock.json
cargo update --workspace --offline --quiet
