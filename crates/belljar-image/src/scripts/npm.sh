# Installs Node packages from the mirror, below $1.
set -e
M=/home/user/mirror/npm
[ -e $M/npm.tgz ] || { echo "the mirror has no npm/npm.tgz; fill it for this template first" >&2; exit 96; }
command -v node >/dev/null || { echo "there is no node; install it in a step before" >&2; exit 96; }
P=$1
shift
rm -rf /tmp/npm
mkdir -p /tmp/npm
tar -xzf $M/npm.tgz -C /tmp/npm
cp -R $M/cache /tmp/npm/cache
export HOME=/tmp/npm
node /tmp/npm/package/bin/npm-cli.js install --global --prefix "$P" --offline --cache /tmp/npm/cache \
  --registry "$(cat $M/registry)" --no-audit --no-fund --no-update-notifier --loglevel warn "$@"
rm -rf /tmp/npm
