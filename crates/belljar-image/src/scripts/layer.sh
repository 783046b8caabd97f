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
# The tree is no root here, so a link of an earlier layer, or one before it in this layer, may lead out of it: nothing is written through
# such a one. Names and targets are compared as tar quotes them.
(cd "$T" && find . -type l -printf '%P\0' | tar -c -f - --no-recursion --null -T - | tar -t -v --quoting-style=c -f -) >/opt/template/links
tar -t -v $4 -f "$2" --quoting-style=c | awk '
  # Returns where a path leads below the tree; "/" if it leads out of it.
  function resolved(path, rest, count, parts, at, depth, reached, link, part) {
    depth = 0
    reached = ""
    count = split(path, parts, "/")
    rest = ""
    for (at = count; at >= 1; at--) rest = parts[at] "/" rest
    while (rest != "") {
      at = index(rest, "/")
      part = substr(rest, 1, at - 1)
      rest = substr(rest, at + 1)
      if (part == "" || part == ".") continue
      if (part == "..") {
        if (reached == "") return "/"
        if (!sub(/\/[^\/]*$/, "", reached)) reached = ""
        continue
      }
      link = reached (reached == "" ? "" : "/") part
      if (!(link in target)) {
        reached = link
        continue
      }
      if (target[link] ~ /^\// || ++depth > 40) return "/"
      rest = target[link] "/" rest
    }
    return reached == "" ? "." : reached
  }
  {
    kind = substr($1, 1, 1)
    if (!match($0, /"([^"\\]|\\.)*"/)) next
    name = substr($0, RSTART + 1, RLENGTH - 2)
    leads = substr($0, RSTART + RLENGTH)
    sub(/^( -> | link to )"/, "", leads)
    sub(/"$/, "", leads)
    gsub(/\/+$/, "", name)
    dir = name
    if (!sub(/\/[^\/]*$/, "", dir)) dir = ""
    sub(/^.*\//, "", name)
    dir = resolved(dir)
    if (dir == "/") {
      print "a file of the layer is behind a link that leads out of the tree: " $0 > "/dev/stderr"
      exit 96
    }
    if (name == "" || name == ".") next
    own = (dir == "." ? "" : dir "/") name
    # It takes the place of a link.
    delete target[own]
    if (kind == "l") target[own] = leads
    if (kind == "h" && (leads in target)) target[own] = target[leads]
  }' /opt/template/links - || exit 96
# Devices cannot be made here, and would be of no use.
if ! tar -x $4 -f "$2" -C "$T" -p --no-same-owner --exclude='.wh.*' 2>/tmp/layer.log; then
  if grep -v -e 'Cannot mknod' -e 'Exiting with failure status due to previous errors' /tmp/layer.log >&2; then
    exit 1
  fi
fi
# Owners other than root, which the tree here cannot have: the file is packed with them. Later layers come last.
tar -t -v $4 -f "$2" --numeric-owner --quoting-style=c --exclude='.wh.*' | awk '
  function bits(text) {
    return (substr(text, 1, 1) == "r") * 4 + (substr(text, 2, 1) == "w") * 2 + (substr(text, 3, 1) ~ /[xst]/)
  }
  $1 ~ /^[-d]/ && match($0, /"[A-Za-z0-9._\/+@:,=~%-]*"/) {
    name = substr($0, RSTART + 1, RLENGTH - 2)
    sub(/^(\.?\/)+/, "", name)
    sub(/\/$/, "", name)
    if (name == "" || split($2, owner, "/") != 2) next
    # As below, all may read.
    x = ($1 ~ /^d/ || $1 ~ /[xst]/) ? 1 : 0
    special = (substr($1, 4, 1) ~ /[sS]/) * 4 + (substr($1, 7, 1) ~ /[sS]/) * 2 + (substr($1, 10, 1) ~ /[tT]/)
    u = bits(substr($1, 2, 3)); g = bits(substr($1, 5, 3)); o = bits(substr($1, 8, 3))
    mode = special or_all(u, x) or_all(g, x) or_all(o, x)
    print mode, owner[1], owner[2], name
  }
  function or_all(digit, x) {
    if (digit < 4) digit += 4
    if (x && digit % 2 == 0) digit += 1
    return digit
  }' >>/opt/template/owners
