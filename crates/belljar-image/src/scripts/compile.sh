# Compiles Python modules so that they stay valid whatever time their files have: a layer gives all files the same.
# $1: where the changed files of $2 are, $2: the tree, others: its directories with modules. Compiled are the changed modules, and those of
# directories whose modules have not been compiled in this way yet.
export PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1
command -v python3 >/dev/null || exit 0
LIST=/tmp/modules-to-compile
python3 - "$@" >$LIST 2>/dev/null <<'EOF'
import os, sys

changes, tree, *dirs = sys.argv[1:]
SUFFIX = "." + sys.implementation.cache_tag + ".pyc"

def modules(top):
    for at, below, names in os.walk(top):
        below[:] = [name for name in below if name != "__pycache__"]
        yield at, [name for name in names if name.endswith(".py")]

def is_compiled(path):
    # The flags after the magic number, of PEP 552: valid, whatever the time of the module's file.
    try:
        with open(path, "rb") as file:
            return file.read(8)[4:] == bytes([1, 0, 0, 0])
    except OSError:
        return False

found = set()
for top in dirs:
    if changes != tree:
        for at, names in modules(changes + top[len(tree):]):
            found.update(os.path.join(tree + at[len(changes):], name) for name in names)
    for at, names in modules(top):
        cache = os.path.join(at, "__pycache__")
        try:
            cached = {name[:-len(SUFFIX)] for name in os.listdir(cache) if name.endswith(SUFFIX)}
        except OSError:
            cached = set()
        # One tells of all: they are compiled together.
        sample = min(cached & {name[:-3] for name in names}, default=None)
        if sample and not is_compiled(os.path.join(cache, sample + SUFFIX)):
            cached = set()
        found.update(os.path.join(at, name) for name in names if name[:-3] not in cached)
for path in sorted(found):
    if "\n" not in path and os.path.isfile(path):
        print(path)
EOF
if [ -s $LIST ]; then
  python3 -m compileall -q -f -j 0 --invalidation-mode unchecked-hash -i $LIST >/dev/null 2>&1 || true
fi
rm -f $LIST
exit 0
