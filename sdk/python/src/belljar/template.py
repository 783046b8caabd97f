"""Definition of a template, for `templates.build`."""

from __future__ import annotations

import base64
import json
import os
import stat
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from .errors import InvalidArgumentException

MAX_COPIED_BYTES = 1024 * 1024
"""Maximum total size of the files of a template's `copy` steps, in bytes."""

LocalPath = Union[str, "os.PathLike[str]"]
"""A local path."""


class Template:
    """A template: a base, and steps that are run on it, one after the other, in sandboxes of the server.

    Nothing is sent before `client.templates.build(template)`. Each method adds to the template and returns it:

        Template("stats", base="debian").apt_install("python3-pandas").run_cmd("echo hello > /srv/hello")
    """

    def __init__(
        self,
        name: str,
        base: str = "host",
        *,
        description: Optional[str] = None,
        suite: Optional[str] = None,
        reference: Optional[str] = None,
    ) -> None:
        """Creates a template from a base.

        Args:
            name: Its name: a-z, 0-9 and `-`. A built template with this name is replaced.
            base: `host`, `debian`, `oci` or `template:NAME`.
            description: A description.
            suite: The Debian release, such as `bookworm`.
            reference: The image, if an OCI layout has several.
        """
        top = {"name": name, "description": description, "base": base, "suite": suite, "reference": reference}
        self._top: Dict[str, Any] = {key: value for key, value in top.items() if value is not None}
        self._limits: Dict[str, Any] = {}
        self._build: Dict[str, Any] = {}
        self._steps: List[Tuple[str, Any]] = []
        self._files: List[Tuple[str, bytes, int]] = []

    @property
    def name(self) -> str:
        """The name."""
        return str(self._top["name"])

    def apt_install(self, *packages: str) -> Template:
        """Installs Debian packages. Not on the base `host`."""
        return self._step("apt", list(packages))

    def pip_install(self, *packages: str) -> Template:
        """Installs Python packages, such as `numpy>=2`."""
        return self._step("pip", list(packages))

    def npm_install(self, *packages: str) -> Template:
        """Installs packages of Node.js."""
        return self._step("npm", list(packages))

    def run_cmd(self, command: str) -> Template:
        """Runs a shell command. The build fails if it does not exit with 0."""
        return self._step("run", command)

    def copy(self, source: LocalPath, to: str) -> Template:
        """Copies a local file, or a directory with its contents. All copied files together have at most 1 MiB."""
        path = Path(source)
        place = f"{len(self._steps)}/{path.resolve().name}"
        files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
        if not files:
            raise InvalidArgumentException(
                f"source: {str(source)!r} is neither a file nor a directory with files", field="source"
            )
        for file in files:
            name = place if file == path else f"{place}/{file.relative_to(path).as_posix()}"
            self._files.append((name, file.read_bytes(), stat.S_IMODE(file.stat().st_mode)))
        if sum(len(content) for _, content, _ in self._files) > MAX_COPIED_BYTES:
            raise InvalidArgumentException(f"source: all copied files have at most {MAX_COPIED_BYTES} bytes", field="source")
        return self._step("copy", {"from": place, "to": to})

    def set_envs(self, envs: Mapping[str, str]) -> Template:
        """Sets environment variables, for the steps that follow and for sandboxes."""
        return self._step("env", dict(envs))

    def set_user(self, user: str) -> Template:
        """Sets USER and LOGNAME. A sandbox has one user id, whatever its name."""
        return self._step("user", user)

    def set_workdir(self, workdir: str) -> Template:
        """Sets the directory of the steps that follow and of the start command."""
        return self._step("workdir", workdir)

    def set_start_cmd(self, start: str, ready: Optional[str] = None) -> Template:
        """Sets the command that is started in each sandbox, and the one that succeeds when it is ready."""
        self._top.update({"start": start} if ready is None else {"start": start, "ready": ready})
        return self

    def set_warm_imports(self, *modules: str) -> Template:
        """Sets the modules that warm Python interpreters have imported."""
        self._top["warm"] = list(modules)
        return self

    def set_limits(self, **limits: Any) -> Template:
        """Sets default limits of sandboxes, such as `memory="1g"`."""
        self._limits.update(limits)
        return self

    def set_build_limits(self, **limits: Any) -> Template:
        """Sets limits of the build sandboxes, such as `disk="8g"`."""
        self._build.update(limits)
        return self

    def to_toml(self) -> str:
        """Returns the text of the template file."""
        lines = [f"{key} = {_toml(value)}" for key, value in self._top.items()]
        for section, values in (("limits", self._limits), ("build", self._build)):
            if values:
                lines += ["", f"[{section}]", *(f"{_key(key)} = {_toml(value)}" for key, value in values.items())]
        for kind, value in self._steps:
            lines += ["", "[[step]]", f"{kind} = {_toml(value)}"]
        return "\n".join(lines) + "\n"

    def files(self) -> List[Dict[str, str]]:
        """Returns the files of `copy` steps in the format of the REST interface."""
        return [
            {"path": path, "content_base64": base64.b64encode(content).decode(), "mode": f"{mode:04o}"}
            for path, content, mode in self._files
        ]

    def _step(self, kind: str, value: Any) -> Template:
        self._steps.append((kind, value))
        return self


def _key(key: str) -> str:
    is_bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if is_bare else _toml(key)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(str(key))} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    # A JSON string is a valid TOML string, except for the one control character that JSON does not escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
