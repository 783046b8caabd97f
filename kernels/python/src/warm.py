"""Preparation before any user is known, and the first steps of a forked kernel."""

import os
import sys
import time

from _belljar import extras, packages
from _belljar.kernel import Kernel
from _belljar.streams import prepare_streams


class Failed(Exception):
    """The reason why the kernel cannot work, with a hint."""


def prepare(imports=(), to_fork=True):
    """Does everything that is independent of the user; returns the kernel. Afterwards the process has one thread."""
    prepare_streams()
    if to_fork:
        # pyarrow, which pandas imports if it is installed, would start a thread of its allocator, which prevents forks.
        os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    try:
        from _belljar.shell import make_shell
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("IPython", "traitlets"):
            raise
        raise Failed(
            f"IPython is missing in {sys.executable} ({error}): use a template with it, such as code-interpreter, or install it "
            "with `apt-get install python3-ipython`"
        ) from error
    shell = make_shell()
    kernel = Kernel(shell)
    sys.meta_path.insert(0, extras.Hooks())
    sys.meta_path.append(packages.LateFinder)
    _replace_input(kernel)
    for name in imports:
        import importlib

        try:
            importlib.import_module(name)
        except Exception as error:
            raise Failed(f"the module {name} cannot be imported: {type(error).__name__}: {error}") from error
    if to_fork:
        rehearse(kernel)
        _finish_preparation(shell)
    return kernel


def _finish_preparation(shell):
    """Creates what the first execution would create, and excludes it from garbage collection."""
    # Modules that a child needs.
    import base64  # noqa: F401
    import fcntl  # noqa: F401
    import gc
    import random  # noqa: F401
    import resource  # noqa: F401
    import select  # noqa: F401

    shell.run_cell("_ = f'{1 + 1}'\nasync def _():\n    pass\ndel _", silent=True)
    if "ssl" in sys.modules:
        # OpenSSL's generators are created on first use.
        sys.modules["ssl"].RAND_bytes(1)
        sys.modules["ssl"].RAND_add(os.urandom(64), 64.0)
    if hasattr(time, "tzset"):
        time.tzset()
    shell.user_ns["_"] = ""
    if "numpy" in sys.modules:
        import numpy.random  # noqa: F401
    if "matplotlib.pyplot" in sys.modules:
        from _belljar import backend, charts  # noqa: F401
    if "pandas" in sys.modules:
        from _belljar import tables  # noqa: F401
    gc.collect()
    gc.freeze()


class _Nowhere:
    """A control socket without a peer."""

    def send(self, frame):
        """Encodes the frame, like a real one."""
        import json

        json.dumps(frame, ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False)

    def readable(self):
        return True


# One cell of each kind: a value, output, an error, a definition, a loop.
_REHEARSAL = (
    "2 ** 64",
    "print(f'{1 + 1}')",
    "def _rehearsed(number=1):\n    return [one for one in range(number)]\n_rehearsed()",
    "import os, sys, json\nfor _rehearsed in range(2):\n    pass\n{'a': 1}",
    "1 / 0",
)


def rehearse(kernel, count=None):
    """Runs a few cells, so that objects of a first execution already exist for later ones."""
    from _belljar import wire

    out, err = os.dup(1), os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(null, number)
    kernel.pid = os.getpid()
    kernel.interrupts = wire.Interrupts()
    kernel.wire = _Nowhere()
    try:
        for code in (_REHEARSAL * 2)[:count]:
            kernel.execute({"id": 0, "code": code, "env": {}})
    finally:
        for number, kept in ((1, out), (2, err)):
            os.dup2(kept, number)
            os.close(kept)
        os.close(null)
        if kernel.loop is not None:
            # Its descriptors would be shared with children.
            import asyncio

            kernel.loop.close()
            asyncio.set_event_loop(None)
        kernel.pid = kernel.wire = kernel.interrupts = kernel.last = kernel.loop = None
        kernel.shell.reset(new_session=True)
        kernel.shell.user_ns.pop("_rehearsed", None)
        # It exists in a new shell, but not after its reset.
        kernel.shell.user_ns["_"] = ""


def _replace_input(kernel):
    import builtins
    import getpass

    def input(prompt="", /):
        return kernel.ask(prompt)

    def ask_password(prompt="Password: ", stream=None, **_kwargs):
        return kernel.ask(prompt, password=True)

    builtins.input = input
    getpass.getpass = ask_password
    kernel.shell.raw_input_original = input


def reseed():
    """Runs in a child of a prepared process, before any code: replaces all random state."""
    import random

    random.seed()
    random_numpy = sys.modules.get("numpy.random")
    if random_numpy is not None:
        random_numpy.seed()
    uuid = sys.modules.get("uuid")
    if uuid is not None:
        uuid._node = None
        uuid._last_timestamp = None
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile._name_sequence = None
        tempfile.tempdir = None
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        # OpenSSL detects a fork by the process id, which may be the same in another namespace.
        ssl.RAND_add(os.urandom(64), 64.0)


def settle(env=None, cwd=None):
    """Applies an environment and a directory, before any code."""
    if env is not None:
        # Most of it is the parent's.
        zone = os.environ.get("TZ")
        for name in [name for name in os.environ if name not in env]:
            del os.environ[name]
        for name, value in env.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        if hasattr(time, "tzset") and os.environ.get("TZ") != zone:
            time.tzset()
    if cwd is not None:
        os.chdir(cwd)
    packages.use_directory(forget=True)


def check_packages():
    """Raises `Failed` if a plain start would load other packages than those that are loaded already."""
    name = packages.replaced_module()
    if name is not None:
        raise Failed(f"the package {name} that the user has installed differs from the one that is loaded already")
