#!/bin/bash
# Writes the root file system of the image for the tests of the engine docker to standard output, as a tar archive: installed files of the
# packages below and of those that they depend on, so that nothing is downloaded. Needs Debian's dpkg.
set -euo pipefail

packages=(base-passwd bash coreutils dash findutils gawk grep hostname mawk netbase procps python3 python3-ipython sed tar tzdata util-linux)

# Prints the installed packages that the given ones depend on, with themselves.
closure() {
  dpkg-query --show --showformat='${db:Status-Status}\t${Package}\t${Pre-Depends}, ${Depends}\n' | awk -F '\t' -v wanted="$*" '
    $1 == "installed" { depends[$2] = $3 }
    function visit(name, list, number, parts) {
      if (!(name in depends) || name in seen) return
      seen[name] = 1
      print name
      number = split(depends[name], list, /[,|]/)
      for (; number > 0; number--) {
        split(list[number], parts, /[ :(]+/)
        visit(parts[1] != "" ? parts[1] : parts[2])
      }
    }
    END { count = split(wanted, names, " "); for (i = 1; i <= count; i++) visit(names[i]) }'
}

{
  for dir in bin sbin lib lib32 lib64 libx32; do
    if [ -L "/$dir" ]; then printf '/%s\n' "$dir"; fi
  done
  printf '%s\n' /etc/alternatives /etc/ld.so.cache
  find /etc/alternatives -type l
  closure "${packages[@]}" | xargs dpkg-query --listfiles 2>/dev/null |
    grep -Ev '^/usr/share/(doc|man|info|locale|lintian|bash-completion|pixmaps|perl)(/|$)|^/(\.|etc/(shadow|gshadow))$|/(test|idlelib|lib2to3)/' |
    while read -r path; do
      # Programs of merged systems are listed where they were before the merge.
      dir=$(cd "${path%/*}/" 2>/dev/null && pwd -P) && printf '%s/%s\n' "${dir%/}" "${path##*/}"
    done
  for name in awk nawk which; do if [ -L "/usr/bin/$name" ]; then printf '/usr/bin/%s\n' "$name"; fi; done
} | sort -u | while read -r path; do if [ -e "$path" ] || [ -L "$path" ]; then printf '%s\n' "${path#/}"; fi; done |
  tar --create --directory / --no-recursion --files-from - --numeric-owner --owner 0 --group 0 \
    --transform 's,^usr/share/base-passwd/\(.*\)\.master$,etc/\1,' 2>/dev/null
