# Installs Debian packages. $1: mirror, or network for the sources of the tree itself.
set -e
FROM=$1
shift
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true LC_ALL=C SOURCE_DATE_EPOCH=946684800
SOURCES=
if [ "$FROM" = mirror ]; then
  M=/home/user/mirror/apt
  [ -e $M/Packages ] || { echo "the mirror has no apt/Packages; fill it for this template first" >&2; exit 96; }
  echo "deb [trusted=yes] file:$M ./" >/tmp/mirror.list
  SOURCES="-o Dir::Etc::SourceList=/tmp/mirror.list -o Dir::Etc::SourceParts=/dev/null"
else
  cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -q '^\(deb\|Types:\) ' ||
    { echo "the tree has no sources of packages; write /etc/apt/sources.list in a step before" >&2; exit 96; }
fi
apt_get() {
  apt-get -q -y $SOURCES \
    -o APT::Sandbox::User=root -o APT::Install-Recommends=0 -o Acquire::Languages=none \
    -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-unsafe-io -o Dpkg::Options::=--force-confold "$@"
}
apt_get update
apt_get install --no-install-recommends "$@"
