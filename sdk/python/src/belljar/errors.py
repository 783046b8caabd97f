"""The exceptions of this package. Each of them is a `SandboxException`.

No exception contains an API key, neither in its text nor in its attributes nor in its causes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, Tuple, Type

if TYPE_CHECKING:
    from .models import CommandResult, Outcome


class SandboxException(Exception):
    """The base class of this package's exceptions.

    Attributes:
        code: The stable code of the error, such as `sandbox_not_found`; None if it did not come from the server.
        status: The HTTP status of the response, or None if there was none.
        request_id: The id under which the server's log has the details, or None.
        field: The invalid field of the request, such as `limits.memory`, or None.
        retry_after: Seconds after which trying again may help, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        code: Optional[str] = None,
        status: Optional[int] = None,
        request_id: Optional[str] = None,
        field: Optional[str] = None,
        retry_after: Optional[float] = None,
    ) -> None:
        """Creates an exception with `message` and known details."""
        super().__init__(message)
        self.code = code
        self.status = status
        self.request_id = request_id
        self.field = field
        self.retry_after = retry_after

    @property
    def message(self) -> str:
        """What failed, why, and how to fix it."""
        return str(self.args[0]) if self.args else ""


class AuthenticationException(SandboxException):
    """The API key is missing, unknown, revoked or expired."""


class ForbiddenException(SandboxException):
    """The key or token may not do this, or a policy of the operator forbids it."""


class NotFoundException(SandboxException):
    """The sandbox, template, volume, key, process or path does not exist or belongs to another tenant."""


class SandboxNotFoundException(NotFoundException):
    """There is no such sandbox."""


class SandboxGoneException(SandboxNotFoundException):
    """The sandbox has ended."""


class TemplateNotFoundException(NotFoundException):
    """There is no such template or snapshot."""


class VolumeNotFoundException(NotFoundException):
    """There is no such volume."""


class KeyNotFoundException(NotFoundException):
    """There is no such API key."""


class SecretNotFoundException(NotFoundException):
    """There is no such secret."""


class ProcessNotFoundException(NotFoundException):
    """There is no such process in the sandbox, or it has ended."""


class SessionNotFoundException(NotFoundException):
    """There is no such session in the sandbox, or it has ended."""


class ContextNotFoundException(NotFoundException):
    """There is no such context in the sandbox."""


class FileNotFoundException(NotFoundException):
    """There is nothing at the path in the sandbox or the volume."""


class ProgramNotFoundException(FileNotFoundException):
    """The program of a command is not in the sandbox."""


class PortNotFoundException(NotFoundException):
    """The port of the sandbox is not published."""


class InvalidArgumentException(SandboxException):
    """A value is invalid; see `field`."""


class ArgumentTypeException(InvalidArgumentException, TypeError):
    """An argument has a type or a name that the call does not take. It is a `TypeError` as well."""


class ConflictException(SandboxException):
    """The current state does not allow it: a name is taken, a path exists, a sandbox is already paused."""


class KernelUnavailableException(ConflictException):
    """The interpreter of a language cannot be used: it is missing in the sandbox's template, or does not start."""


class BuildException(SandboxException):
    """A template could not be built: a step failed. The message names it, with its last lines of output."""


class RateLimitException(SandboxException):
    """A quota of the key is used up; `retry_after` says when to try again."""


class TimeoutException(SandboxException):
    """No response, or no end of a command, within the timeout."""


class NotEnoughSpaceException(SandboxException):
    """Something is too large for its destination."""


class ServerException(SandboxException):
    """The server or the sandbox failed, or the machine is full; the request is not the cause."""


class ConnectionException(SandboxException):
    """The server could not be reached, or the connection broke."""


class ForkException(SandboxException):
    """Some of the forks could not be created.

    Attributes:
        sandboxes: The sandboxes that were created. They keep running; end those that you do not need.
        errors: The error of each of the others.
    """

    def __init__(self, sandboxes: Sequence[Any], errors: Sequence[SandboxException]) -> None:
        """Creates an exception from the created sandboxes and the errors."""
        total = len(sandboxes) + len(errors)
        super().__init__(
            f"{len(errors)} of {total} forks could not be created; the first error: {errors[0].message}",
            code=errors[0].code,
            status=errors[0].status,
        )
        self.sandboxes = list(sandboxes)
        self.errors = list(errors)


class CommandExitException(SandboxException):
    """A command did not end with exit code 0. `result` has the details."""

    def __init__(self, result: CommandResult) -> None:
        """Creates an exception from the command's result."""
        super().__init__(_command_message(result))
        self.result = result

    @property
    def stdout(self) -> str:
        """Standard output of the command."""
        return self.result.stdout

    @property
    def stderr(self) -> str:
        """Standard error of the command."""
        return self.result.stderr

    @property
    def exit_code(self) -> Optional[int]:
        """The command's own exit code, or None if it did not end by itself."""
        return self.result.exit_code

    @property
    def error(self) -> Optional[str]:
        """How the command ended, as text."""
        return self.result.error

    @property
    def outcome(self) -> Outcome:
        """How the command ended."""
        return self.result.outcome


class CommandTimeoutException(CommandExitException, TimeoutException):
    """A command was ended because it timed out. `result` has its output until then."""


class GitAuthException(CommandExitException, AuthenticationException):
    """A remote repository refused the credentials of a git command, or needs some."""


def _command_message(result: CommandResult) -> str:
    tail = result.stderr.strip()[-500:]
    message = f"the command did not succeed: {result.error}"
    if result.hint:
        message += f" ({result.hint})"
    return f"{message}: {tail}" if tail else message


_BY_CODE: Mapping[str, Type[SandboxException]] = {
    "invalid_field": InvalidArgumentException,
    "invalid_json": InvalidArgumentException,
    "invalid_argument": InvalidArgumentException,
    "unauthenticated": AuthenticationException,
    "forbidden": ForbiddenException,
    "policy_refused": ForbiddenException,
    "host_not_allowed": ForbiddenException,
    "origin_not_allowed": ForbiddenException,
    "permission_denied": ForbiddenException,
    "sandbox_not_found": SandboxNotFoundException,
    "template_not_found": TemplateNotFoundException,
    "volume_not_found": VolumeNotFoundException,
    "key_not_found": KeyNotFoundException,
    "secret_not_found": SecretNotFoundException,
    "process_not_found": ProcessNotFoundException,
    "session_not_found": SessionNotFoundException,
    "context_not_found": ContextNotFoundException,
    "path_not_found": FileNotFoundException,
    "program_not_found": ProgramNotFoundException,
    "port_not_found": PortNotFoundException,
    "sandbox_gone": SandboxGoneException,
    "name_taken": ConflictException,
    "volume_in_use": ConflictException,
    "wrong_state": ConflictException,
    "path_exists": ConflictException,
    "not_regular": ConflictException,
    "failed_precondition": ConflictException,
    "kernel_unavailable": KernelUnavailableException,
    "idempotency_running": ConflictException,
    "execution_interrupted": ConflictException,
    "idempotency_mismatch": ConflictException,
    "build_failed": BuildException,
    "too_large": NotEnoughSpaceException,
    "quota_exceeded": RateLimitException,
    "rate_limited": RateLimitException,
    "sandbox_unresponsive": TimeoutException,
}

_BY_STATUS: Mapping[int, Type[SandboxException]] = {
    400: InvalidArgumentException,
    401: AuthenticationException,
    403: ForbiddenException,
    404: NotFoundException,
    405: InvalidArgumentException,
    408: TimeoutException,
    409: ConflictException,
    410: SandboxGoneException,
    413: NotEnoughSpaceException,
    415: InvalidArgumentException,
    416: InvalidArgumentException,
    422: InvalidArgumentException,
    429: RateLimitException,
    504: TimeoutException,
    507: NotEnoughSpaceException,
}


def error_from_problem(
    problem: Mapping[str, Any], status: Optional[int] = None, request_id: Optional[str] = None
) -> SandboxException:
    """Returns the exception for a problem of the server (the body of an error response)."""
    said = problem.get("status")
    status = said if isinstance(said, int) else status
    code = problem.get("code")
    code = code if isinstance(code, str) else None
    detail = problem.get("detail") or problem.get("title") or f"the server answered with status {status}"
    kind = _class_of(code, status)
    field = problem.get("field")
    retry_after = problem.get("retry_after_s")
    return kind(
        str(detail),
        code=code,
        status=status,
        request_id=str(problem.get("request_id") or request_id or "") or None,
        field=field if isinstance(field, str) else None,
        retry_after=float(retry_after) if isinstance(retry_after, (int, float)) else None,
    )


def _class_of(code: Optional[str], status: Optional[int]) -> Type[SandboxException]:
    # 507 is a full disk, whichever part of the service detected it.
    if status == 507:
        return NotEnoughSpaceException
    if code is not None and code in _BY_CODE:
        return _BY_CODE[code]
    if status is not None and status in _BY_STATUS:
        return _BY_STATUS[status]
    return ServerException if status is not None and status >= 500 else SandboxException


def is_interruption(error: SandboxException) -> bool:
    """Reports whether an error is a lost connection or a restarting server, so that a stream can be resumed."""
    return isinstance(error, (ConnectionException, TimeoutException)) or error.status == 503


def known_codes() -> Tuple[str, ...]:
    """The server's codes with their own exception class."""
    return tuple(_BY_CODE)
