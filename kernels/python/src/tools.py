"""`belljar.tools`: what the code of an execution may call outside the sandbox."""

import importlib.util
import sys
import types

_MODULE = "belljar"


class ToolError(Exception):
    """Raised if a call fails: with the reason, as who answered it gave it."""


ToolError.__module__ = _MODULE


class _Tool:
    """One tool or function. Its arguments are given by name, and are values of JSON."""

    def __init__(self, call, name):
        self._call = call
        self.__name__ = self.__qualname__ = name

    def __call__(self, /, *given, **arguments):
        if given:
            raise TypeError(f"{self.__name__}() takes its arguments by name: {self.__name__}(NAME=VALUE)")
        return self._call(self.__name__, arguments)

    def __repr__(self):
        return f"<tool {self.__name__}>"


class Tools:
    """The tools of the running execution, as attributes and by index."""

    def __init__(self, call):
        """Has no tools until `offer`."""
        self._call = call
        self._names = ()

    def __getattr__(self, name):
        if name.startswith("__") or name not in self._names:
            raise AttributeError(self._lacks(name), name=name, obj=self)
        return _Tool(self._call, name)

    def __getitem__(self, name):
        if name not in self._names:
            raise KeyError(self._lacks(name))
        return _Tool(self._call, name)

    def __iter__(self):
        return iter(self._names)

    def __len__(self):
        return len(self._names)

    def __dir__(self):
        return [name for name in self._names if name.isidentifier()]

    def __repr__(self):
        return f"<tools: {', '.join(self._names) or 'none'}>"

    def _lacks(self, name):
        return (
            f"this execution may not call {name!r}, but {', '.join(self._names)}"
            if self._names
            else "this execution may call no tools"
        )


def offer(shell, call, names):
    """Makes tools callable for one execution: as `belljar.tools`, where the code has no `belljar` of its own."""
    module = sys.modules.get(_MODULE)
    if module is None:
        if not names:
            return
        module = _module()
    tools = getattr(module, "tools", None)
    if not isinstance(tools, Tools):
        if not names:
            return
        tools = module.tools = Tools(call)
        module.ToolError = ToolError
    tools._names = tuple(names)
    if names:
        shell.user_ns.setdefault(_MODULE, module)


def _module():
    """Returns the module: the SDK, if it is installed here, or one with the tools alone."""
    if importlib.util.find_spec(_MODULE) is not None:
        try:
            return importlib.import_module(_MODULE)
        except Exception:
            pass
    module = sys.modules[_MODULE] = types.ModuleType(_MODULE, "Tools that this execution may call, in `tools`.")
    return module
