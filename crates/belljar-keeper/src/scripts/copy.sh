# Moves unpacked files to their target. $1: directory with all unpacked files, removed at the end; $2: the part to move; $3: target;
# $4: permission bits, empty to keep them; $5: owner, empty to keep it.
trap 'chmod -R u+rwX -- "$1" 2>/dev/null; rm -rf -- "$1"' EXIT
from=$1/$2
if [ ! -e "$from" ] && [ ! -L "$from" ]; then
  echo "the uploaded files have no $2" >&2
  exit 1
fi
if [ -n "$4" ] && [ ! -L "$from" ]; then
  chmod -R -- "$4" "$from" || exit 1
fi
if [ -n "$5" ]; then
  chown -R -h -- "$5" "$from" || exit 1
fi
if [ -d "$from" ] && [ ! -L "$from" ]; then
  # A directory is merged into an existing one.
  mkdir -p -- "$3" && cp -R -P -p --remove-destination -- "$from/." "$3"
else
  case $3 in
  */) mkdir -p -- "$3" ;;
  *) mkdir -p -- "$(dirname -- "$3")" ;;
  esac && mv -f -- "$from" "$3"
fi
