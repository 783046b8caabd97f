# Makes a tree one that a sandbox can be put on: places to mount on, an entry for the sandbox's user, no traces of the build.
# $1: the tree, nothing for the root itself.
set -e
R=$1
for d in proc dev sys tmp run home/user etc var; do
  [ -d "$R/$d" ] || mkdir -p "$R/$d"
done
for f in hosts hostname resolv.conf; do
  if [ -L "$R/etc/$f" ] || [ ! -f "$R/etc/$f" ]; then
    rm -rf "$R/etc/$f"
    : >"$R/etc/$f"
  fi
done
for f in passwd group; do
  [ -e "$R/etc/$f" ] || : >"$R/etc/$f"
done
grep -q '^[^:]*:[^:]*:0:' "$R/etc/passwd" || echo 'root:x:0:0:root:/root:/bin/sh' >>"$R/etc/passwd"
grep -q '^[^:]*:[^:]*:0:' "$R/etc/group" || echo 'root:x:0:' >>"$R/etc/group"
grep -q '^[^:]*:[^:]*:1000:' "$R/etc/passwd" || echo 'user:x:1000:1000:user:/home/user:/bin/sh' >>"$R/etc/passwd"
grep -q '^[^:]*:[^:]*:1000:' "$R/etc/group" || echo 'user:x:1000:' >>"$R/etc/group"
if [ ! -L "$R/var/tmp" ] || ! [ "$R/var/tmp" -ef "$R/tmp" ]; then
  rm -rf "$R/var/tmp"
  ln -s /tmp "$R/var/tmp"
fi
rm -rf "$R"/var/lib/apt/lists/* "$R"/var/cache/apt/*.bin "$R"/var/cache/apt/archives/*.deb "$R"/var/log/*.log \
  "$R"/var/log/apt "$R"/var/cache/ldconfig/aux-cache "$R"/var/cache/debconf/*-old "$R"/var/lib/dpkg/*-old \
  "$R"/root/.cache "$R"/root/.npm "$R"/etc/passwd- "$R"/etc/group- "$R"/etc/shadow- "$R"/etc/gshadow- \
  "$R"/var/lib/dpkg/lock* "$R"/var/lib/apt/extended_states.bak "$R"/var/lib/systemd/random-seed
if [ -s "$R/etc/machine-id" ]; then : >"$R/etc/machine-id"; fi
