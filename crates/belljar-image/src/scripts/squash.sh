# Packs a tree, always into the same bytes. $1: the tree, $2: the file.
set -e
command -v mksquashfs >/dev/null || { echo "mksquashfs is not installed on this machine: apt-get install squashfs-tools" >&2; exit 96; }
unset SOURCE_DATE_EPOCH
# The sandbox's one user owns nothing of it. What nobody but the owner may read would be lost.
chmod -R a+rX "$1"
# Of the layers of an image, whose owners are listed, the last one counts. Ids that no sandbox has stay root.
owners=-all-root
if [ -s /opt/template/owners ]; then
  awk '{ last[$4] = $1 " " $2 " " $3 } END { for (name in last) print last[name], name }' /opt/template/owners |
    while read -r mode uid gid name; do
      [ "$uid $gid" != "0 0" ] && [ "$uid" -lt 65536 ] && [ "$gid" -lt 65536 ] || continue
      if [ ! -L "$1/$name" ] && [ -e "$1/$name" ]; then echo "$name m $mode $uid $gid"; fi
    done | sort >/opt/template/owners.pseudo
  owners="-pf /opt/template/owners.pseudo"
fi
mksquashfs "$1" "$2" -noappend $owners -no-xattrs -no-progress -quiet -comp zstd -Xcompression-level 9 \
  -all-time 946684800 -mkfs-time 946684800
