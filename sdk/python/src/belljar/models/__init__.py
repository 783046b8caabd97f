"""What the service tells, as values. All of them are immutable."""

from .admin import AccountInfo, AuditPage, AuditVerdict, KeyInfo, TemplateInfo
from .commands import CommandResult, Outcome, Output, ProcessInfo, PtySize, StreamOutput
from .files import ArchiveResult, FileEntry, FilesystemEvent, SearchMatch, SearchResult
from .sandboxes import DiskUsage, Limits, LogEntry, LogPage, PortInfo, PortList, SandboxInfo, SandboxMetrics, SessionInfo, Token

__all__ = [
    "AccountInfo",
    "ArchiveResult",
    "AuditPage",
    "AuditVerdict",
    "CommandResult",
    "DiskUsage",
    "FileEntry",
    "FilesystemEvent",
    "KeyInfo",
    "Limits",
    "LogEntry",
    "LogPage",
    "Outcome",
    "Output",
    "PortInfo",
    "PortList",
    "ProcessInfo",
    "PtySize",
    "SandboxInfo",
    "SandboxMetrics",
    "SearchMatch",
    "SearchResult",
    "SessionInfo",
    "StreamOutput",
    "TemplateInfo",
    "Token",
]
