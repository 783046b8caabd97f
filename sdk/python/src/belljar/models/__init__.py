"""What the service tells, as values. All of them are immutable."""

from .admin import AccountInfo, AuditPage, AuditVerdict, KeyInfo, TemplateInfo
from .charts import Bar, Box, Chart, Points, Slice
from .code import CodeContext, Column, Execution, ExecutionError, Logs, Question, Result, Table
from .commands import CommandResult, Outcome, Output, ProcessInfo, PtySize, StreamOutput
from .files import ArchiveResult, FileEntry, FilesystemEvent, SearchMatch, SearchResult
from .sandboxes import DiskUsage, Limits, LogEntry, LogPage, PortInfo, PortList, SandboxInfo, SandboxMetrics, SessionInfo, Token

__all__ = [
    "AccountInfo",
    "ArchiveResult",
    "AuditPage",
    "AuditVerdict",
    "Bar",
    "Box",
    "Chart",
    "CodeContext",
    "Column",
    "CommandResult",
    "DiskUsage",
    "Execution",
    "ExecutionError",
    "FileEntry",
    "FilesystemEvent",
    "KeyInfo",
    "Limits",
    "LogEntry",
    "LogPage",
    "Logs",
    "Outcome",
    "Output",
    "Points",
    "PortInfo",
    "PortList",
    "ProcessInfo",
    "PtySize",
    "Question",
    "Result",
    "SandboxInfo",
    "SandboxMetrics",
    "SearchMatch",
    "SearchResult",
    "SessionInfo",
    "Slice",
    "StreamOutput",
    "Table",
    "TemplateInfo",
    "Token",
]
