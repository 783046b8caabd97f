# Lays one OCI layer over a tree. $1: the tree, $2: the layer, $3: its SHA-256, $4: the tar option for its compression.
set -e
export LC_ALL=C
T=$1
W=$(mktemp -d /opt/template/whiteouts-XXXXXX)
echo "$3  $2" | sha256sum -c --quiet - || { echo "the layer is not what its digest says" >&2; exit 96; }
# What the layer takes away of those below.
tar -x $4 -f "$2" -C "$W" --no-same-owner --wildcards --no-anchored '.wh.*' 2>/dev/null || true
export T W
find "$W" -depth -name '.wh.*' -exec sh -c '
  for found; do
    name=${found##*/}
    dir=${found%/*}
    dir=$T${dir#"$W"}
    # A link on the way leads to where it leads: nothing is taken away there.
    [ "$(realpath -m -- "$dir")" = "$dir" ] || continue
    case $name in
    .wh..wh..opq) [ ! -d "$dir" ] || find "$dir" -mindepth 1 -delete ;;
    *) rm -rf -- "$dir/${name#.wh.}" ;;
    esac
  done' sh {} +
rm -rf "$W"
# Devices cannot be made here, and would be of no use.
if ! tar -x $4 -f "$2" -C "$T" -p --no-same-owner --exclude='.wh.*' 2>/tmp/layer.log; then
  if grep -v -e 'Cannot mknod' -e 'Exiting with failure status due to previous errors' /tmp/layer.log >&2; then
    exit 1
  fi
fi
