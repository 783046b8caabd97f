# Installs Python packages. $1: mirror, or network for the index that pip asks by itself; $2: where to make a virtual
# environment, nothing to install for all.
set -e
M=/home/user/mirror/pip
FROM=$1
V=$2
shift 2
SOURCE=
if [ "$FROM" = mirror ]; then
  [ -d $M ] || { echo "the mirror has no folder pip; fill it for this template first" >&2; exit 96; }
  SOURCE="--no-index --find-links $M"
fi
PY=python3
if [ -n "$V" ]; then
  [ -x "$V/bin/python3" ] || python3 -m venv --without-pip "$V"
  PY="$V/bin/python3"
fi
command -v $PY >/dev/null || { echo "there is no python3; install it in a step before" >&2; exit 96; }
PIP="$PY -m pip"
if ! $PIP --version >/dev/null 2>&1; then
  if [ "$FROM" = mirror ]; then
    W=
    for W in $M/pip-*.whl; do :; done
    [ -e "$W" ] || { echo "there is no pip, and the mirror has no wheel of it" >&2; exit 96; }
    export PYTHONPATH=$W
  else
    # The one that the virtual environment was made with.
    BASE=$($PY -c 'import sys; print(sys.base_prefix)')/bin/python3
    $BASE -m pip --version >/dev/null 2>&1 || { echo "there is no pip; install it in a step before" >&2; exit 96; }
    PIP="$BASE -m pip --python $PY"
  fi
fi
export PYTHONHASHSEED=0 SOURCE_DATE_EPOCH=946684800 PIP_CONFIG_FILE=/dev/null
exec $PIP install $SOURCE --no-cache-dir --no-compile --disable-pip-version-check \
  --no-warn-script-location --root-user-action=ignore --break-system-packages --progress-bar off "$@"
