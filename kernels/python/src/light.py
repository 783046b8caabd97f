"""Imports the shell without its terminal parts, which take most of IPython 8's import time."""

import contextlib
import sys
import types


@contextlib.contextmanager
def light_imports():
    """Replaces modules that the shell imports and never uses here; afterwards they can be imported normally."""
    standins = []

    def stand_in(name, **values):
        if name not in sys.modules:
            module = types.ModuleType(name)
            vars(module).update(values)
            sys.modules[name] = module
            standins.append((name, module))

    def embed(**kwargs):
        raise RuntimeError("IPython.embed() needs a terminal, which is not available here")

    stand_in("IPython.terminal.embed", embed=embed)
    if "jedi" not in sys.modules:
        sys.modules["jedi"] = None
        standins.append(("jedi", None))
    try:
        yield
    finally:
        for name, module in standins:
            if sys.modules.get(name) is module:
                del sys.modules[name]
            parent, _, child = name.rpartition(".")
            if vars(sys.modules.get(parent) or sys).get(child) is module and module is not None:
                delattr(sys.modules[parent], child)
