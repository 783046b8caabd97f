# Lays one OCI layer over a tree. $1: the tree, $2: the layer, $3: its SHA-256, $4: the tar option for its compression, $5: a directory of
# the scripts whose name no image can know, $6: "copy" if others may change a shown layout meanwhile.
set -e
export LC_ALL=C
T=$1
F=$2
W=$5
if [ "$6" = copy ] && [ -L "${2%/blobs/*}" ]; then
  F=$W/layer
  cp -- "$2" "$F"
fi
printf '%s  %s\n' "$3" "$F" | sha256sum -c --quiet - || { echo "the layer is not what its digest says" >&2; exit 96; }
tar -t -v $4 -f "$F" --numeric-owner --quoting-style=c >"$W/entries"
# What the layer takes away of those below.
whiteouts=
if grep -q -F .wh. "$W/entries"; then
  whiteouts=1
  mkdir "$W/whiteouts"
  tar -x $4 -f "$F" -C "$W/whiteouts" --no-same-owner --wildcards --no-anchored '.wh.*' 2>/dev/null || true
  export T W
  find "$W/whiteouts" -depth -name '.wh.*' -exec sh -c '
    for found; do
      name=${found##*/}
      dir=${found%/*}
      dir=$T${dir#"$W/whiteouts"}
      # A link on the way leads to where it leads: nothing is taken away there.
      [ "$(realpath -m -- "$dir")" = "$dir" ] || continue
      case $name in
      .wh..wh..opq) [ ! -d "$dir" ] || find "$dir" -mindepth 1 -delete ;;
      .wh. | .wh.. | .wh...) ;;
      *) rm -rf -- "$dir/${name#.wh.}" ;;
      esac
    done' sh {} +
  rm -rf "$W/whiteouts"
fi
# The tree is no root here, so a link of an earlier layer, or one before it in this layer, may lead out of it: nothing is written through
# such a one. Names and targets are compared as tar quotes them, and the layer is unpacked with no other options than it is listed with, so
# that both see the same entries.
(cd "$T" && find . -type l -print0 >"$W/names" && tar -c -f "$W/links.tar" --no-recursion --hard-dereference --null -T "$W/names")
tar -t -v -f "$W/links.tar" --numeric-owner --quoting-style=c >"$W/links"
awk -v owners="$W/owned" '
  function refuse(why) {
    print why ": " substr($0, 1, 400) >"/dev/stderr"
    exit 96
  }
  function is_too_long(text) {
    if (length(text) < 4096) return 0
    gsub(/\\([0-7][0-7][0-7]|.)/, "x", text)
    return length(text) > 4095
  }
  # Returns the parts of a path that leads down alone, between single slashes.
  function parts_of(path, count, parts, at, result) {
    result = ""
    count = split(path, parts, "/")
    for (at = 1; at <= count; at++) {
      if (parts[at] == "" || parts[at] == ".") continue
      if (parts[at] == "..") refuse("a name leads upwards")
      result = result (result == "" ? "" : "/") parts[at]
    }
    return result
  }
  # Returns where a path leads in the tree as it is when this entry is unpacked.
  function resolved(path, count, parts, at, waiting, left, depth, reached, lengths, level, part, link) {
    if (path in known) return known[path]
    reached = ""
    level = left = depth = 0
    count = split(path, parts, "/")
    for (at = count; at >= 1; at--) waiting[++left] = parts[at]
    while (left > 0) {
      # Real layers need some ten parts an entry. Forty characters take about as long as a part does by itself.
      work += 1 + length(reached) / 40
      if (work > 2000000 + 100 * NR) refuse("the links of the layer take too long to follow")
      part = waiting[left--]
      if (part == "" || part == ".") continue
      if (part == "..") {
        if (level == 0) refuse("an entry of the layer is behind a link that leads out of the tree")
        reached = substr(reached, 1, lengths[level--])
        continue
      }
      link = reached (reached == "" ? "" : "/") part
      if (!(link in target)) {
        lengths[++level] = length(reached)
        reached = link
        continue
      }
      if (target[link] ~ /^\// || ++depth > 40) {
        refuse("an entry of the layer is behind a link that leads out of the tree")
      }
      count = split(target[link], parts, "/")
      for (at = count; at >= 1; at--) waiting[++left] = parts[at]
    }
    return known[path] = reached
  }
  # Returns the place of an entry itself, which may be a link.
  function place_of(path, dir) {
    dir = path
    if (!sub(/\/[^\/]*$/, "", dir)) return path
    sub(/^.*\//, "", path)
    dir = resolved(dir)
    return dir (dir == "" ? "" : "/") path
  }
  function bits(text) {
    return (substr(text, 1, 1) == "r") * 4 + (substr(text, 2, 1) == "w") * 2 + (substr(text, 3, 1) ~ /[xst]/)
  }
  function or_all(digit, x) {
    if (digit < 4) digit += 4
    if (x && digit % 2 == 0) digit += 1
    return digit
  }
  function note_owner(place, owner, x, special) {
    if (place !~ /^[A-Za-z0-9._\/+@:,=~%-]+$/ || split($2, owner, "/") != 2) return
    # As when it is packed, all may read.
    x = ($1 ~ /^d/ || $1 ~ /[xst]/) ? 1 : 0
    special = (substr($1, 4, 1) ~ /[sS]/) * 4 + (substr($1, 7, 1) ~ /[sS]/) * 2 + (substr($1, 10, 1) ~ /[tT]/)
    print special or_all(bits(substr($1, 2, 3)), x) or_all(bits(substr($1, 5, 3)), x) or_all(bits(substr($1, 8, 3)), x), \
      owner[1], owner[2], place >owners
  }
  {
    # Names and targets have at most 4,095 bytes, of which tar writes each as four.
    if (length($0) > 40000) refuse("a name or a target of the layer is too long")
    if (!match($0, /^[-dlhcbp][-rwxsStT]+ [0-9]+\/[0-9]+ [^"]*"/)) refuse("an entry of the layer has a type that no image has")
    kind = substr($0, 1, 1)
    rest = substr($0, RLENGTH)
    if (!match(rest, /^"([^"\\]|\\.)*"/)) refuse("an entry of the layer cannot be read")
    name = substr(rest, 2, RLENGTH - 2)
    rest = substr(rest, RLENGTH + 1)
    leads = ""
    if (kind == "l" || kind == "h") {
      arrow = kind == "l" ? " -> " : " link to "
      leads = substr(rest, length(arrow) + 1)
      if (substr(rest, 1, length(arrow)) != arrow || leads !~ /^"([^"\\]|\\.)*"$/) refuse("an entry of the layer cannot be read")
      leads = substr(leads, 2, length(leads) - 2)
    } else if (rest != "") {
      refuse("an entry of the layer cannot be read")
    }
    if (is_too_long(name) || is_too_long(leads)) refuse("a name or a target of the layer is too long")
    name = parts_of(name)
    if (name == "") {
      if (kind != "d") refuse("an entry of the layer would take the place of the tree")
      next
    }
    own = place_of(name)
    if (kind == "h") {
      leads = parts_of(leads)
      if (leads == "") refuse("an entry of the layer would take the place of the tree")
      leads = place_of(leads)
      if (own == leads) next
      kind = "-"
      if (leads in target) {
        kind = "l"
        leads = target[leads]
      }
    } else if (kind == "-" || kind == "d") {
      note_owner(own)
    }
    if (kind == "c" || kind == "b") {
      # Tar removes the link, and then cannot make the device.
      if (own in target) refuse("a device of the layer takes the place of a link")
      next
    }
    if (kind == "l") {
      target[own] = leads
      split("", known)
    } else if (own in target) {
      delete target[own]
      split("", known)
    }
  }' "$W/links" "$W/entries" || exit 96
# Devices cannot be made here, and would be of no use. What tar says of a name ends with a quote that no name can have.
if ! tar -x $4 -f "$F" -C "$T" -p --no-same-owner --numeric-owner --quoting-style=c 2>"$W/log"; then
  if grep -v -x -E -e 'tar: "([^"\\]|\\.)*": Cannot mknod: [A-Za-z ]+' \
    -e 'tar: Removing leading ./+. from (member names|hard link targets)' \
    -e 'tar: Exiting with failure status due to previous errors' "$W/log" >&2; then
    exit 1
  fi
fi
[ -z "$whiteouts" ] || find "$T" -depth -name '.wh.*' -exec rm -rf -- {} +
# Owners other than root, which the tree here cannot have, and set-user-ID, set-group-ID and sticky bits, which no archive of a sandbox's files
# has: it is packed with them. Those of later layers count.
[ ! -e "$W/owned" ] || cat "$W/owned" >>"$W/owners"
: >>"$W/owners"
awk '{ last[$4] = $0 } END { for (name in last) if (last[name] !~ /^0[0-7]+ 0 0 /) print last[name] }' "$W/owners" >"$W/owned"
mv "$W/owned" "$W/owners"
rm -f "$W/layer" "$W/entries" "$W/names" "$W/links.tar" "$W/links" "$W/owned" "$W/log"
