# Installs Node packages below $2. $1: mirror, or network for the registry that npm asks by itself.
set -e
FROM=$1
P=$2
shift 2
command -v node >/dev/null || { echo "there is no node; install it in a step before" >&2; exit 96; }
rm -rf /tmp/npm
mkdir -p /tmp/npm
if [ "$FROM" = mirror ]; then
  M=/home/user/mirror/npm
  [ -e $M/npm.tgz ] || { echo "the mirror has no npm/npm.tgz; fill it for this template first" >&2; exit 96; }
  tar -xzf $M/npm.tgz -C /tmp/npm
  cp -R $M/cache /tmp/npm/cache
  NPM="node /tmp/npm/package/bin/npm-cli.js"
  SOURCE="--offline --registry $(cat $M/registry)"
else
  command -v npm >/dev/null || { echo "there is no npm; install it in a step before" >&2; exit 96; }
  NPM=npm
  SOURCE=
fi
export HOME=/tmp/npm
$NPM install --global --prefix "$P" --cache /tmp/npm/cache $SOURCE \
  --no-audit --no-fund --no-update-notifier --loglevel warn "$@"
rm -rf /tmp/npm
