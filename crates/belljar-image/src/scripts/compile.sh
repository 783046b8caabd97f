# Compiles Python modules so that they stay valid whatever time their files have: a layer gives all files the same.
export PYTHONHASHSEED=0
command -v python3 >/dev/null || exit 0
for d in "$@"; do
  [ -d "$d" ] || continue
  python3 -m compileall -q -f -j 0 --invalidation-mode unchecked-hash "$d" >/dev/null 2>&1 || true
done
