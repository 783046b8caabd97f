"""Environment and working directory of executions."""

import os


class Place:
    """Environment and working directory of one execution."""

    def __init__(self):
        self._before = {}
        self._directory = None

    def enter(self, env, cwd):
        for name, value in (env or {}).items():
            if name not in self._before:
                self._before[name] = os.environ.get(name)
            os.environ[name] = value
        if cwd:
            try:
                self._directory = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                self._directory = None
            os.chdir(cwd)

    def leave(self):
        for name, value in self._before.items():
            try:
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            except (OSError, ValueError):
                continue
        if self._directory is not None:
            try:
                os.fchdir(self._directory)
                os.close(self._directory)
            except OSError:
                pass
