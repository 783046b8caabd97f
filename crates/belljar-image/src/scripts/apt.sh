# Installs Debian packages from the mirror.
set -e
M=/home/user/mirror/apt
[ -e $M/Packages ] || { echo "the mirror has no apt/Packages; fill it for this template first" >&2; exit 96; }
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true LC_ALL=C SOURCE_DATE_EPOCH=946684800
echo "deb [trusted=yes] file:$M ./" >/tmp/mirror.list
apt_get() {
  apt-get -q -y -o Dir::Etc::SourceList=/tmp/mirror.list -o Dir::Etc::SourceParts=/dev/null \
    -o APT::Sandbox::User=root -o APT::Install-Recommends=0 -o Acquire::Languages=none \
    -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-unsafe-io -o Dpkg::Options::=--force-confold "$@"
}
apt_get update
apt_get install --no-install-recommends "$@"
