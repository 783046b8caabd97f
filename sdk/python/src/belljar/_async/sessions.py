"""Shells that keep directory, variables and functions between commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Mapping, Optional

from .. import _calls as calls
from .._calls._call import Duration, Size
from .._calls.commands import Stdin
from ..errors import SessionNotFoundException
from ..models import CommandResult, SessionInfo
from ._io import OutputCallback
from .commands import AsyncCommands

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._config import RequestOptions


class AsyncSessions:
    """The sessions of a sandbox."""

    def __init__(self, commands: AsyncCommands) -> None:
        """Created by a sandbox."""
        self._commands = commands

    async def create(self, cwd: Optional[str] = None, envs: Optional[Mapping[str, str]] = None) -> AsyncSession:
        """Starts a shell session."""
        call = calls.sandboxes.create_session(self._commands._sandbox_id, cwd, envs)
        return AsyncSession(self._commands, await self._commands._transport.request(call))

    async def list(self) -> List[SessionInfo]:
        """Lists the open sessions."""
        call = calls.sandboxes.list_sessions(self._commands._sandbox_id)
        return await self._commands._transport.request(call)

    async def close(self, session_id: int) -> bool:
        """Ends a session and its processes. Returns False if there is none with this id."""
        call = calls.sandboxes.close_session(self._commands._sandbox_id, session_id)
        try:
            await self._commands._transport.request(call)
        except SessionNotFoundException:
            return False
        return True


class AsyncSession:
    """A shell session. As a context manager it is closed at the end."""

    def __init__(self, commands: AsyncCommands, info: SessionInfo) -> None:
        """Connects to a session."""
        self._commands = commands
        self.session_id = info.session_id
        """The id of the session in the sandbox."""
        self.shell = info.shell
        """The shell, such as `bash`."""

    async def run(
        self,
        cmd: str,
        *,
        on_stdout: Optional[OutputCallback] = None,
        on_stderr: Optional[OutputCallback] = None,
        timeout: Optional[Duration] = None,
        stdin: Optional[Stdin] = None,
        output: Optional[Size] = None,
        check: bool = True,
        **options: Unpack[RequestOptions],
    ) -> CommandResult:
        """Runs a shell command line in the state left by the previous one. The arguments are those of `commands.run`.

        `session_state` of the result tells whether the shell still exists: `preserved` or `lost`.
        """
        return await self._commands._execute(
            cmd,
            envs=None,
            cwd=None,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            timeout=timeout,
            stdin=stdin,
            output=output,
            check=check,
            session=self.session_id,
            **options,
        )

    async def close(self) -> bool:
        """Ends the shell. Returns False if it has already ended."""
        return await AsyncSessions(self._commands).close(self.session_id)

    async def __aenter__(self) -> AsyncSession:
        """Returns itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the session."""
        await self.close()

    def __repr__(self) -> str:
        """Shows the session's id and shell."""
        return f"{type(self).__name__}(session_id={self.session_id}, shell={self.shell!r})"
