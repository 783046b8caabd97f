# Packs a tree, always into the same bytes. $1: the tree, $2: the file, $3: the modes and owners of files that are not root's or have
# set-user-ID, set-group-ID or sticky bits, if any: lines of a mode, a user, a group and a path.
set -e
command -v mksquashfs >/dev/null || { echo "mksquashfs is not installed on this machine: apt-get install squashfs-tools" >&2; exit 96; }
unset SOURCE_DATE_EPOCH
export LC_ALL=C
# The sandbox's one user owns nothing of it. What nobody but the owner may read would be lost.
chmod -R a+rX "$1"
owners=-all-root
if [ -n "$3" ] && [ -s "$3" ]; then
  # Who wrote the list is an image, so a line becomes one of mksquashfs's only if it is the mode and the owner of a file that is there, with
  # a plain name. Ids that no sandbox has stay root.
  (cd "$1" && find . ! -type l -regextype posix-extended -regex '\./[A-Za-z0-9._/+@:,=~%-]+' -printf '%P\n') |
    awk '
      FILENAME != "-" {
        if (NF == 4 && $1 ~ /^[0-7]+$/ && length($1) <= 4 && $2 $3 ~ /^[0-9]+$/ && $2 < 65536 && $3 < 65536) {
          last[$4] = $1 " " $2 + 0 " " $3 + 0
        }
        next
      }
      $0 in last { print $0 " m " last[$0] }' "$3" - | sort >"$3.pseudo"
  owners="-pf $3.pseudo"
fi
mksquashfs "$1" "$2" -noappend $owners -no-xattrs -no-progress -quiet -comp zstd -Xcompression-level 9 \
  -all-time 946684800 -mkfs-time 946684800
