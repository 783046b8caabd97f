"""Sandboxes for AI agents on your own Linux machine: the client of Belljar's service.

    from belljar import Sandbox

    with Sandbox.create(timeout=300) as sbx:
        print(sbx.commands.run("echo hello").stdout)

`Sandbox` and `Belljar` block; `AsyncSandbox` and `AsyncBelljar` have the same surface for asyncio. The key and
the server come from `BELLJAR_API_KEY` and `BELLJAR_API_URL` unless they are given.
"""

from ._async.client import AsyncAudit, AsyncBelljar, AsyncKeys, AsyncPaginator, AsyncSandboxes, AsyncTemplates
from ._async.commands import AsyncCommandHandle, AsyncCommands
from ._async.files import AsyncFiles
from ._async.ports import AsyncPorts
from ._async.pty import AsyncPty, AsyncPtyHandle
from ._async.sandbox import AsyncSandbox
from ._async.sessions import AsyncSession, AsyncSessions
from ._async.watch import AsyncWatchHandle
from ._config import ConnectionConfig
from ._sync.client import Audit, Belljar, Keys, Paginator, Sandboxes, Templates
from ._sync.commands import CommandHandle, Commands
from ._sync.files import Files
from ._sync.ports import Ports
from ._sync.pty import Pty, PtyHandle
from ._sync.sandbox import Sandbox
from ._sync.sessions import Session, Sessions
from ._sync.watch import WatchHandle
from ._version import __version__
from .errors import (
    AuthenticationException,
    CommandExitException,
    CommandTimeoutException,
    ConflictException,
    ConnectionException,
    ForbiddenException,
    ForkException,
    InvalidArgumentException,
    NotEnoughSpaceException,
    NotFoundException,
    RateLimitException,
    SandboxException,
    SandboxGoneException,
    ServerException,
    TimeoutException,
)
from .models import (
    AccountInfo,
    ArchiveResult,
    AuditPage,
    AuditVerdict,
    Bar,
    Box,
    Chart,
    CodeContext,
    Column,
    CommandResult,
    DiskUsage,
    Execution,
    ExecutionError,
    FileEntry,
    FilesystemEvent,
    KeyInfo,
    Limits,
    LogEntry,
    LogPage,
    Logs,
    Outcome,
    Output,
    Points,
    PortInfo,
    PortList,
    ProcessInfo,
    PtySize,
    Question,
    Result,
    SandboxInfo,
    SandboxLimits,
    SandboxMetrics,
    SandboxState,
    SearchMatch,
    SearchResult,
    SessionInfo,
    Slice,
    StreamOutput,
    Table,
    TemplateInfo,
    Token,
)

__all__ = [
    "AccountInfo",
    "ArchiveResult",
    "AsyncAudit",
    "AsyncBelljar",
    "AsyncCommandHandle",
    "AsyncCommands",
    "AsyncFiles",
    "AsyncKeys",
    "AsyncPaginator",
    "AsyncPorts",
    "AsyncPty",
    "AsyncPtyHandle",
    "AsyncSandbox",
    "AsyncSandboxes",
    "AsyncSession",
    "AsyncSessions",
    "AsyncTemplates",
    "AsyncWatchHandle",
    "Audit",
    "AuditPage",
    "AuditVerdict",
    "AuthenticationException",
    "Bar",
    "Belljar",
    "Box",
    "Chart",
    "CodeContext",
    "Column",
    "CommandExitException",
    "CommandHandle",
    "CommandResult",
    "CommandTimeoutException",
    "Commands",
    "ConflictException",
    "ConnectionConfig",
    "ConnectionException",
    "DiskUsage",
    "Execution",
    "ExecutionError",
    "FileEntry",
    "Files",
    "FilesystemEvent",
    "ForbiddenException",
    "ForkException",
    "InvalidArgumentException",
    "KeyInfo",
    "Keys",
    "Limits",
    "LogEntry",
    "LogPage",
    "Logs",
    "NotEnoughSpaceException",
    "NotFoundException",
    "Outcome",
    "Output",
    "Paginator",
    "Points",
    "PortInfo",
    "PortList",
    "Ports",
    "ProcessInfo",
    "Pty",
    "PtyHandle",
    "PtySize",
    "Question",
    "RateLimitException",
    "Result",
    "Sandbox",
    "SandboxException",
    "SandboxGoneException",
    "SandboxInfo",
    "SandboxLimits",
    "SandboxMetrics",
    "SandboxState",
    "Sandboxes",
    "SearchMatch",
    "SearchResult",
    "ServerException",
    "Session",
    "SessionInfo",
    "Sessions",
    "Slice",
    "StreamOutput",
    "Table",
    "TemplateInfo",
    "Templates",
    "TimeoutException",
    "Token",
    "WatchHandle",
    "__version__",
]
