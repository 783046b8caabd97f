"""Errors as shown to the user: the lines of the user's code, without frames of the kernel."""

import os
import re
import traceback

from _belljar.bundle import plain, shorten

MAX_VALUE = 64 * 1024
MAX_TRACEBACK = 256 * 1024
# Maximum number of frames, exceeded only by endless recursion; the last ones are shown.
_MAX_FRAMES = 1200
_FRAME = re.compile(r'^(\s*(?:\| )*\s*)File "(Cell In\[\d+\])", line (\d+)(?:, in (?:<module>|<cell line: \d+>))?', re.M)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def _hidden_places():
    import IPython
    import traitlets

    return tuple(os.path.dirname(os.path.abspath(module.__file__)) + os.sep for module in (IPython, traitlets))


def exit_status(error):
    """Returns the exit status of `SystemExit`, as in Python."""
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) & 0xFF
    return 1


class Describer:
    """Formats exceptions."""

    def __init__(self):
        """Determines the location of the shell's own files."""
        self._hidden = _hidden_places()

    def name(self, error):
        """Returns the name of the exception's type."""
        return plain(getattr(type(error), "__name__", "Exception"))[:200]

    def value(self, error):
        """Returns the exception as text, even if its own code fails; of an exit without a text the status."""
        try:
            if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
                return str(exit_status(error))
            return shorten(plain(str(error)), MAX_VALUE)[0]
        except Exception as other:
            return f"<its text could not be made: {type(other).__name__}>"

    def _is_hidden(self, frame):
        name = frame.filename
        return name.startswith(("<belljar ", "<decorator-gen", "<frozen runpy")) or name.startswith(self._hidden)

    def _trim(self, described, seen):
        """Removes frames of the kernel and the shell, and shortens deep tracebacks."""
        if described is None or id(described) in seen or len(seen) > 50:
            return
        seen.add(id(described))
        frames = list(described.stack)
        first = next((at for at, frame in enumerate(frames) if frame.filename.startswith("Cell In[")), 0)
        # All frames of `!` belong to the kernel.
        last = next((at for at, frame in enumerate(frames) if frame.filename == "<belljar commands>"), len(frames))
        frames = [frame for frame in frames[first:last] if not self._is_hidden(frame)]
        described.stack[:] = frames
        self._trim(described.__cause__, seen)
        self._trim(described.__context__, seen)
        for inner in getattr(described, "exceptions", None) or ():
            self._trim(inner, seen)

    def traceback(self, error, tb=None):
        """Returns the traceback as text, as Python prints it."""
        try:
            described = traceback.TracebackException(
                type(error), error, tb or error.__traceback__, compact=True, limit=-_MAX_FRAMES
            )
            self._trim(described, set())
            text = "".join(described.format())
        except Exception as other:
            return f"{self.name(error)}: {self.value(error)}\n(its traceback could not be made: {type(other).__name__})"
        text = _COLOUR.sub("", plain(text))
        text = _FRAME.sub(lambda found: f"{found[1]}{found[2]}, line {found[3]}", text)
        return shorten(text.rstrip("\n"), MAX_TRACEBACK)[0]

    def frame(self, error):
        """Returns name, value and traceback, as sent."""
        from IPython.core.error import UsageError

        name, value = self.name(error), self.value(error)
        if isinstance(error, UsageError):
            return {"name": name, "value": value, "traceback": f"{name}: {value}"}
        return {"name": name, "value": value, "traceback": self.traceback(error)}
