# Installs Python packages from the mirror. $1: where to make a virtual environment, nothing to install for all.
set -e
M=/home/user/mirror/pip
[ -d $M ] || { echo "the mirror has no folder pip; fill it for this template first" >&2; exit 96; }
V=$1
shift
PY=python3
if [ -n "$V" ]; then
  [ -x "$V/bin/python3" ] || python3 -m venv --without-pip "$V"
  PY="$V/bin/python3"
fi
command -v $PY >/dev/null || { echo "there is no python3; install it in a step before" >&2; exit 96; }
if ! $PY -m pip --version >/dev/null 2>&1; then
  W=
  for W in $M/pip-*.whl; do :; done
  [ -e "$W" ] || { echo "there is no pip, and the mirror has no wheel of it" >&2; exit 96; }
  export PYTHONPATH=$W
fi
export PYTHONHASHSEED=0 SOURCE_DATE_EPOCH=946684800 PIP_CONFIG_FILE=/dev/null
exec $PY -m pip install --no-index --find-links $M --no-cache-dir --no-compile --disable-pip-version-check \
  --no-warn-script-location --root-user-action=ignore --break-system-packages --progress-bar off "$@"
