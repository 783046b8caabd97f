# Unpacks a Debian tree from the mirror. $1: the tree, $2: the release. Nothing of it is run here: that comes when it is a root.
set -e
M=/home/user/mirror/apt
[ -e $M/Packages ] || { echo "the mirror has no apt/Packages; fill it for this template first" >&2; exit 96; }
command -v mmdebstrap >/dev/null || { echo "mmdebstrap is not installed on this machine: apt-get install mmdebstrap" >&2; exit 96; }
export SOURCE_DATE_EPOCH=946684800 LC_ALL=C
mmdebstrap --mode=chrootless --variant=extract --skip=check/empty,cleanup \
  --setup-hook='for d in bin sbin lib lib64; do mkdir -p "$1/usr/$d"; ln -s "usr/$d" "$1/$d"; done' \
  --include='?essential' --include=apt --include=usr-is-merged "$2" "$1" "deb [trusted=yes] copy:$M ./"
mv "$1/var/cache/apt/archives" "$1/var/cache/unpacked"
mkdir -p "$1/var/cache/apt/archives/partial"
mkdir -p "$1/home/user"
