"""Repositories: what git reports."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Dict, Iterator, List, Optional, Tuple

from ..errors import ServerException

LOG_FORMAT = "--format=%H%x1f%an%x1f%ae%x1f%aI%x1f%B"
"""The argument of `git log` for `parse_log`."""

_KINDS = {
    "M": "modified",
    "A": "added",
    "D": "deleted",
    "R": "renamed",
    "C": "copied",
    "T": "typechange",
    "U": "conflict",
    "?": "untracked",
}


@dataclass(frozen=True)
class GitFileStatus:
    """A changed file.

    Attributes:
        name: Its path in the repository.
        status: `modified`, `added`, `deleted`, `renamed`, `copied`, `typechange`, `conflict` or `untracked`.
        index_status: What is staged, as the letter that git shows; a space if nothing is.
        working_tree_status: The same for what is not staged.
        staged: Whether something is staged.
        renamed_from: Its path before it was renamed or copied.
    """

    name: str
    status: str
    index_status: str
    working_tree_status: str
    staged: bool
    renamed_from: Optional[str] = None


@dataclass(frozen=True)
class GitStatus:
    """The state of a repository.

    Attributes:
        current_branch: The branch; None if HEAD is detached.
        upstream: The upstream branch, such as `origin/main`, if there is one.
        ahead: Number of commits that the upstream does not have.
        behind: Number of commits of the upstream that are missing here.
        detached: Whether HEAD is no branch.
        file_status: The changed files.
    """

    current_branch: Optional[str]
    upstream: Optional[str] = None
    ahead: int = 0
    behind: int = 0
    detached: bool = False
    file_status: Tuple[GitFileStatus, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether nothing is changed, staged or untracked."""
        return not self.file_status

    @property
    def has_changes(self) -> bool:
        """Whether something is changed, staged or untracked."""
        return bool(self.file_status)

    @property
    def has_staged(self) -> bool:
        """Whether something is staged."""
        return any(file.staged for file in self.file_status)

    @property
    def has_untracked(self) -> bool:
        """Whether there are untracked files."""
        return any(file.status == "untracked" for file in self.file_status)

    @property
    def has_conflicts(self) -> bool:
        """Whether there are unresolved conflicts."""
        return any(file.status == "conflict" for file in self.file_status)


@dataclass(frozen=True)
class GitBranches:
    """The local branches, and the current one, if HEAD is one."""

    branches: Tuple[str, ...]
    current_branch: Optional[str]


@dataclass(frozen=True)
class GitCommit:
    """A commit. `message` is complete; `subject` is its first line."""

    hash: str
    author_name: str
    author_email: str
    date: datetime
    message: str

    @property
    def subject(self) -> str:
        """The first line of the message."""
        return self.message.partition("\n")[0]


def parse_status(text: str) -> GitStatus:
    """Parses the output of `git status --porcelain=v2 --branch -z`."""
    head: Dict[str, str] = {}
    files: List[GitFileStatus] = []
    records = iter(text.split("\0"))
    for record in records:
        kind, _, rest = record.partition(" ")
        if kind == "#":
            key, _, value = rest.partition(" ")
            head[key] = value
        elif kind:
            files.append(_file_status(kind, rest, records))
    branch = head.get("branch.head")
    ahead, behind = (abs(int(number)) for number in head.get("branch.ab", "+0 -0").split())
    detached = branch == "(detached)"
    upstream = head.get("branch.upstream")
    return GitStatus(None if detached else branch, upstream, ahead, behind, detached, tuple(files))


def _file_status(kind: str, rest: str, records: Iterator[str]) -> GitFileStatus:
    if kind in "?!":
        return GitFileStatus(rest, _KINDS.get(kind, "ignored"), kind, kind, False)
    # The number of fields before the path.
    fields = rest.split(" ", {"1": 7, "2": 8, "u": 9}.get(kind, 0))
    if len(fields) < 8:
        raise ServerException(f"unexpected output of git status: {kind} {rest}")
    index, tree = (" " if letter == "." else letter for letter in fields[0])
    status = _KINDS.get(index if index != " " else tree, "modified") if kind != "u" else "conflict"
    renamed_from = next(records, None) if kind == "2" else None
    return GitFileStatus(fields[-1], status, index, tree, kind != "u" and index != " ", renamed_from)


def parse_branches(text: str) -> GitBranches:
    """Parses the output of `git branch --format=%(HEAD)%(refname)`."""
    lines = [(line[0] == "*", line[1:]) for line in text.splitlines() if line]
    prefix = "refs/heads/"
    branches = [(current, name[len(prefix) :]) for current, name in lines if name.startswith(prefix)]
    current = next((name for is_current, name in branches if is_current), None)
    return GitBranches(tuple(name for _, name in branches), current)


def parse_log(text: str) -> List[GitCommit]:
    """Parses the output of `git log -z` with `LOG_FORMAT`."""
    commits = [record.split("\x1f", 4) for record in text.split("\0") if record]
    if any(len(fields) != 5 for fields in commits):
        raise ServerException("unexpected output of git log")
    return [
        GitCommit(number, name, email, datetime.fromisoformat(date.replace("Z", "+00:00")), message.rstrip("\n"))
        for number, name, email, date, message in commits
    ]
