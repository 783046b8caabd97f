# Puts what was unpacked into its place. $1: the directory with all of it, which is removed, $2: what of it, $3: where to, $4: permission
# bits, nothing for its own.
trap 'chmod -R u+rwX -- "$1" 2>/dev/null; rm -rf -- "$1"' EXIT
from=$1/$2
if [ ! -e "$from" ] && [ ! -L "$from" ]; then
  echo "the uploaded files have no $2" >&2
  exit 1
fi
if [ -n "$4" ] && [ ! -L "$from" ]; then
  chmod -R -- "$4" "$from" || exit 1
fi
if [ -d "$from" ] && [ ! -L "$from" ]; then
  # What is in a directory is merged into what is there.
  mkdir -p -- "$3" && cp -R -P -p --remove-destination -- "$from/." "$3"
else
  case $3 in
  */) mkdir -p -- "$3" ;;
  *) mkdir -p -- "$(dirname -- "$3")" ;;
  esac && mv -f -- "$from" "$3"
fi
