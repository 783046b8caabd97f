"""Makes one directory a copy of another, without touching what is alike.

usage: mirror.py FROM TO

Takes the files that git knows or would take, as they are now. A file that is alike keeps its time, so that nothing that was made
from it counts as out of date. What was copied before and is not there any more is removed; what was made in TO stays.
"""

import filecmp
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path


def main() -> None:
    source, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={source}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=source,
        stdout=subprocess.PIPE,
        check=True,
    )
    names = {name for name in listed.stdout.decode("utf-8", "surrogateescape").split("\0") if name}
    names = {name for name in names if os.path.lexists(source / name)}
    target.mkdir(parents=True, exist_ok=True)
    # Beside the copy, as it is no part of it.
    list_file = target.with_name(f"{target.name}.list")
    before = set(list_file.read_text("utf-8", "surrogateescape").split("\0")) if list_file.exists() else set()
    for name in before - names - {""}:
        (target / name).unlink(missing_ok=True)
    # First the list: a run that is cut off leaves no file that the next one does not know of.
    list_file.write_text("\0".join(sorted(before | names)), "utf-8", "surrogateescape")
    for name in sorted(names):
        copy(source / name, target / name)
    list_file.write_text("\0".join(sorted(names)), "utf-8", "surrogateescape")


def copy(one: Path, two: Path) -> None:
    """Makes two what one is, if it is not that already."""
    if one.is_symlink():
        if not two.is_symlink() or os.readlink(one) != os.readlink(two):
            two.unlink(missing_ok=True)
            two.parent.mkdir(parents=True, exist_ok=True)
            two.symlink_to(os.readlink(one))
        return
    mode = stat.S_IMODE(one.stat().st_mode)
    is_file = two.is_file() and not two.is_symlink()
    if not is_file or not filecmp.cmp(one, two, shallow=False):
        if two.is_dir() and not two.is_symlink():
            shutil.rmtree(two)
        two.unlink(missing_ok=True)
        two.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(one, two)
    if stat.S_IMODE(two.stat().st_mode) != mode:
        two.chmod(mode)


if __name__ == "__main__":
    main()
