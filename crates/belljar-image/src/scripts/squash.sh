# Packs a tree, always into the same bytes. $1: the tree, $2: the file.
set -e
command -v mksquashfs >/dev/null || { echo "mksquashfs is not installed on this machine: apt-get install squashfs-tools" >&2; exit 96; }
unset SOURCE_DATE_EPOCH
# The sandbox's one user owns nothing of it. What nobody but the owner may read would be lost.
chmod -R a+rX "$1"
mksquashfs "$1" "$2" -noappend -all-root -no-xattrs -no-progress -quiet -comp zstd -Xcompression-level 9 \
  -all-time 946684800 -mkfs-time 946684800
