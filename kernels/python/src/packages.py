"""Packages that the code installs: they can be imported at once, without a restart."""

import importlib
import importlib.util
import os
import re
import shlex
import site
import sys
from importlib.machinery import PathFinder

# Nobody can answer questions of pip, and what it would protect is the sandbox's own.
_PIP_ENVIRONMENT = "PIP_BREAK_SYSTEM_PACKAGES=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_YES=1"
_INSTALL = re.compile(
    r"(?:^|[;&|(]|\bsudo\s|\s-m\s)\s*(?:\w+=\S*\s+)*(?:\S*/)?"
    r"(?:pip[\d.]*|uv|conda|mamba|micromamba|npm|apt|apt-get)\s(?:[^;&|]*\s)?(?:install|add)\b"
)
_PLACES = re.compile(r"\s(?:--user|--target|-t|--prefix|--root)\b")


def installs(command):
    """Reports whether a command line installs packages."""
    return _INSTALL.search(command) is not None


def _is_fixed():
    """Reports whether the interpreter's own packages cannot be changed."""
    return not any(os.access(place, os.W_OK) for place in site.getsitepackages())


def _directory():
    """Returns the directory of the user's own packages; None if this interpreter does not use it."""
    # A virtual environment that cannot be changed has no other place for them.
    if sys.flags.no_user_site or not (site.ENABLE_USER_SITE or _is_fixed()):
        return None
    return site.getusersitepackages()


def use_directory(forget=False):
    """Puts the user's own packages on the path, even if none is installed yet. `forget`: the home directory has changed."""
    if forget:
        if site.USER_SITE in sys.path:
            sys.path.remove(site.USER_SITE)
        site.USER_SITE = site.USER_BASE = None
    place = _directory()
    if place is not None and place not in sys.path:
        names = ("site-packages", "dist-packages")
        at = next((at for at, one in enumerate(sys.path) if os.path.basename(one) in names), len(sys.path))
        sys.path.insert(at, place)


def refresh():
    """Makes packages usable that a command has installed, including those that are only linked (`pip install -e`)."""
    importlib.invalidate_caches()
    use_directory()
    place = _directory()
    if place is not None and os.path.isdir(place):
        site.addsitedir(place)
    name = replaced_module()
    if name is not None:
        print(f"{name} is loaded already: restart the context to use the version that is installed now", file=sys.stderr)


def replaced_module():
    """Returns the name of a loaded module of which the user has installed another copy; None if there is none."""
    place = _directory()
    try:
        names = {name.partition(".")[0] for name in os.listdir(place)} if place else ()
    except OSError:
        return None
    for name in sorted(names):
        origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
        if origin and os.path.isabs(origin) and not origin.startswith(place + os.sep):
            return name
    return None


def pip_command(line):
    """Returns the command line of `%pip`; raises an error that says how to get pip."""
    from IPython.core.error import UsageError

    python = shlex.quote(sys.executable)
    command = f"{python} -m pip"
    if importlib.util.find_spec("pip") is None:
        # One of the interpreter that a virtual environment was made of.
        program = next((one for one in map(_which, ("pip3", "pip")) if one), None)
        if program is None:
            raise UsageError(
                f'there is no pip for {sys.executable}: give the template a step `pip = ["pip"]` or `apt = ["python3-pip"]`'
            )
        command = f"{shlex.quote(program)} --python {python}"
    environment = _PIP_ENVIRONMENT
    if not site.ENABLE_USER_SITE and _is_fixed() and not _PLACES.search(f" {line}"):
        environment += f" PIP_PREFIX={shlex.quote(site.getuserbase())}"
    return f"{environment} {command} {line}"


def _which(name):
    import shutil

    return shutil.which(name)


class LateFinder:
    """Last of the finders: finds the user's own packages if their directory was created after the first search of it."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        place = site.USER_SITE
        if path is not None or place not in sys.path or sys.path_importer_cache.get(place, name) is not None:
            return None
        if not os.path.isdir(place):
            return None
        del sys.path_importer_cache[place]
        return PathFinder.find_spec(name, [place])
