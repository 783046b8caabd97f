"""Git repositories in a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Literal, Mapping, Optional, Sequence, TypedDict

from .._calls import git as calls
from .._calls._call import Duration
from ..errors import (
    CommandExitException,
    GitAuthException,
    InvalidArgumentException,
    NotEnoughSpaceException,
    ProgramNotFoundException,
)
from ..models import CommandResult, GitBranches, GitCommit, GitStatus
from ..models.git import LOG_FORMAT, parse_branches, parse_log, parse_status
from .commands import AsyncCommands

if TYPE_CHECKING:
    from typing_extensions import Unpack


class GitOptions(TypedDict, total=False):
    """Options of a git command: those of `commands.run`."""

    envs: Optional[Mapping[str, str]]
    cwd: Optional[str]
    timeout: Optional[Duration]
    request_timeout: Optional[float]
    user: Optional[str]


class AsyncGit:
    """Git commands in a sandbox whose template has git. `path` is a repository: absolute, or relative to the home directory.

    `username` and `password` are given to git for this command and for the host of the remote alone, in variables: they are
    not stored in the sandbox. Code that runs there at the same time can read them; a secret of the network policy it cannot.

    Raises:
        CommandExitException: Git failed; its `stderr` says why.
        GitAuthException: The remote refused the credentials, or needs some.
    """

    def __init__(self, commands: AsyncCommands) -> None:
        """Created by a sandbox."""
        self._commands = commands

    async def clone(
        self,
        url: str,
        path: Optional[str] = None,
        *,
        branch: Optional[str] = None,
        depth: Optional[int] = None,
        username: Optional[str] = None,
        password: Optional[str] = None,
        **options: Unpack[GitOptions],
    ) -> CommandResult:
        """Clones a repository, into a directory named after it unless `path` is given.

        Credentials in the URL are used like `username` and `password`, and not stored. `branch` is the only branch that is
        fetched, `depth` the number of its commits.
        """
        url, url_username, url_password = calls.split_url(url)
        config, envs = calls.credentials(url, username or url_username, password or url_password)
        args = ["clone"]
        if branch is not None:
            args += ["--single-branch", "--branch", calls.plain(branch, "branch")]
        if depth is not None:
            args += ["--depth", str(depth)]
        args += ["--", url] if path is None else ["--", url, path]
        return await self._run([*config, *args], None, options, envs)

    async def init(
        self, path: str, *, bare: bool = False, initial_branch: Optional[str] = None, **options: Unpack[GitOptions]
    ) -> CommandResult:
        """Creates a repository."""
        args = ["init", *(["--bare"] if bare else [])]
        if initial_branch is not None:
            args.append(f"--initial-branch={initial_branch}")
        return await self._run([*args, "--", path], None, options)

    async def remote_add(
        self,
        path: str,
        name: str,
        url: str,
        *,
        fetch: bool = False,
        overwrite: bool = False,
        **options: Unpack[GitOptions],
    ) -> CommandResult:
        """Adds a remote, or with `overwrite` changes the URL of an existing one. A URL with a password is refused."""
        if calls.split_url(url)[0] != url:
            raise InvalidArgumentException(
                "the URL would be stored with its credentials; pass username and password to push and pull", field="url"
            )
        if overwrite and await self.remote_get(path, name, **options) is not None:
            result = await self._run(["remote", "set-url", calls.plain(name, "name"), url], path, options)
        else:
            result = await self._run(["remote", "add", calls.plain(name, "name"), url], path, options)
        if fetch:
            result = await self._run(["fetch", name], path, options)
        return result

    async def remote_get(self, path: str, name: str, **options: Unpack[GitOptions]) -> Optional[str]:
        """Returns the URL of a remote, or None if there is none with this name."""
        return await self._config(f"remote.{calls.plain(name, 'name')}.url", "--local", path, options)

    async def status(self, path: str, **options: Unpack[GitOptions]) -> GitStatus:
        """Returns the branch and the changed files."""
        return parse_status(await self._read(["status", "--porcelain=v2", "--branch", "-z"], path, options))

    async def branches(self, path: str, **options: Unpack[GitOptions]) -> GitBranches:
        """Returns the local branches."""
        return parse_branches(await self._read(["branch", "--format=%(HEAD)%(refname)"], path, options))

    async def create_branch(self, path: str, branch: str, **options: Unpack[GitOptions]) -> CommandResult:
        """Creates a branch, and checks it out."""
        return await self._run(["checkout", "-b", calls.plain(branch, "branch")], path, options)

    async def checkout_branch(self, path: str, branch: str, **options: Unpack[GitOptions]) -> CommandResult:
        """Checks out a branch, a tag or a commit."""
        return await self._run(["checkout", calls.plain(branch, "branch"), "--"], path, options)

    async def delete_branch(self, path: str, branch: str, *, force: bool = False, **options: Unpack[GitOptions]) -> CommandResult:
        """Deletes a branch; one that is not merged only with `force`."""
        return await self._run(["branch", "-D" if force else "-d", "--", branch], path, options)

    async def add(
        self, path: str, files: Optional[Sequence[str]] = None, *, all: bool = True, **options: Unpack[GitOptions]
    ) -> CommandResult:
        """Stages files: the given ones, or all changes; with `all=False` the changes of the directory `path`."""
        args = calls.paths_after(files) or (["--all"] if all else ["."])
        return await self._run(["add", *args], path, options)

    async def commit(
        self,
        path: str,
        message: str,
        *,
        author_name: Optional[str] = None,
        author_email: Optional[str] = None,
        allow_empty: bool = False,
        **options: Unpack[GitOptions],
    ) -> CommandResult:
        """Commits what is staged. Without an author the one of `configure_user` is used."""
        if (author_name is None) != (author_email is None):
            raise InvalidArgumentException("author_name and author_email belong together", field="author_name")
        config = [] if author_name is None else ["-c", f"user.name={author_name}", "-c", f"user.email={author_email}"]
        empty = ["--allow-empty"] if allow_empty else []
        return await self._run([*config, "commit", *empty, f"--message={message}"], path, options)

    async def log(self, path: str, *, max_count: int = 100, ref: str = "HEAD", **options: Unpack[GitOptions]) -> List[GitCommit]:
        """Returns commits, newest first: those of HEAD, or of a branch, tag or range such as `main..topic`."""
        args = ["log", "-z", LOG_FORMAT, f"--max-count={max_count}", calls.plain(ref, "ref"), "--"]
        return parse_log(await self._read(args, path, options))

    async def reset(
        self,
        path: str,
        mode: Optional[Literal["soft", "mixed", "hard", "merge", "keep"]] = None,
        target: Optional[str] = None,
        *,
        paths: Optional[Sequence[str]] = None,
        **options: Unpack[GitOptions],
    ) -> CommandResult:
        """Resets the branch to `target`, or the staged `paths` to their state there; default: HEAD."""
        args = ["reset", *([] if mode is None else [f"--{mode}"])]
        args += [] if target is None else [calls.plain(target, "target")]
        return await self._run([*args, *calls.paths_after(paths)], path, options)

    async def restore(
        self,
        path: str,
        paths: Sequence[str],
        *,
        staged: bool = False,
        worktree: Optional[bool] = None,
        source: Optional[str] = None,
        **options: Unpack[GitOptions],
    ) -> CommandResult:
        """Restores files: in the working tree, or with `staged` in the index, or both; from `source` if it is given."""
        args = ["restore"]
        args += ["--staged"] if staged else []
        args += ["--worktree"] if worktree or (worktree is None and not staged) else []
        args += [] if source is None else [f"--source={source}"]
        return await self._run([*args, *calls.paths_after(paths)], path, options)

    async def push(
        self,
        path: str,
        remote: Optional[str] = None,
        branch: Optional[str] = None,
        *,
        set_upstream: bool = False,
        username: Optional[str] = None,
        password: Optional[str] = None,
        **options: Unpack[GitOptions],
    ) -> CommandResult:
        """Pushes a branch, by default the current one to its upstream. `set_upstream` makes the remote branch its upstream."""
        if set_upstream:
            remote, branch = remote or "origin", branch or "HEAD"
        args = ["push", *(["--set-upstream"] if set_upstream else [])]
        return await self._exchange(args, path, remote, branch, username, password, options)

    async def pull(
        self,
        path: str,
        remote: Optional[str] = None,
        branch: Optional[str] = None,
        *,
        username: Optional[str] = None,
        password: Optional[str] = None,
        **options: Unpack[GitOptions],
    ) -> CommandResult:
        """Pulls a branch, by default the upstream of the current one."""
        return await self._exchange(["pull"], path, remote, branch, username, password, options)

    async def configure_user(
        self,
        name: str,
        email: str,
        *,
        scope: Literal["global", "local"] = "global",
        path: Optional[str] = None,
        **options: Unpack[GitOptions],
    ) -> None:
        """Sets the author of commits, in the sandbox or with the scope `local` in the repository `path`."""
        await self.set_config("user.name", name, scope=scope, path=path, **options)
        await self.set_config("user.email", email, scope=scope, path=path, **options)

    async def set_config(
        self,
        key: str,
        value: str,
        *,
        scope: Literal["global", "local"] = "global",
        path: Optional[str] = None,
        **options: Unpack[GitOptions],
    ) -> None:
        """Sets a value of the configuration, such as `pull.rebase`."""
        flag, repository = calls.config_scope(scope, path)
        await self._run(["config", flag, calls.plain(key, "key"), value], repository, options)

    async def get_config(
        self,
        key: str,
        *,
        scope: Literal["global", "local"] = "global",
        path: Optional[str] = None,
        **options: Unpack[GitOptions],
    ) -> Optional[str]:
        """Returns a value of the configuration, or None if it is not set."""
        flag, repository = calls.config_scope(scope, path)
        return await self._config(calls.plain(key, "key"), flag, repository, options)

    async def _config(self, key: str, flag: str, path: Optional[str], options: GitOptions) -> Optional[str]:
        try:
            return (await self._run(["config", flag, "--get", key], path, options)).stdout.rstrip("\n")
        except CommandExitException as error:
            if error.exit_code == 1:
                return None
            raise

    async def _exchange(
        self,
        args: List[str],
        path: str,
        remote: Optional[str],
        branch: Optional[str],
        username: Optional[str],
        password: Optional[str],
        options: GitOptions,
    ) -> CommandResult:
        if branch is not None:
            remote = remote or "origin"
        place = [] if remote is None else [calls.plain(remote, "remote")]
        config: List[str] = []
        envs: Mapping[str, str] = {}
        if username is not None or password is not None:
            url = await self._read(["ls-remote", "--get-url", *place], path, options)
            config, envs = calls.credentials(url.strip(), username, password)
        place += [] if branch is None else [calls.plain(branch, "branch")]
        return await self._run([*config, *args, *place], path, options, envs)

    async def _read(self, args: List[str], path: str, options: GitOptions) -> str:
        result = await self._run(args, path, options)
        if result.output.truncated:
            raise NotEnoughSpaceException(f"git {args[0]} has written more than the sandbox keeps (`limits.output`)")
        return result.stdout

    async def _run(
        self, args: List[str], path: Optional[str], options: GitOptions, envs: Optional[Mapping[str, str]] = None
    ) -> CommandResult:
        cmd = ["git", *([] if path is None else ["-C", path]), *args]
        try:
            return await self._commands.run(
                cmd,
                envs={**calls.ENVIRONMENT, **(options.get("envs") or {}), **(envs or {})},
                cwd=options.get("cwd"),
                timeout=options.get("timeout"),
                request_timeout=options.get("request_timeout"),
                user=options.get("user"),
            )
        except ProgramNotFoundException as error:
            message = f"there is no git in the sandbox; install it in its template ({error.message})"
            raise ProgramNotFoundException(message, code=error.code, status=error.status) from None
        except CommandExitException as error:
            if calls.is_auth_failure(error.stderr):
                raise GitAuthException(error.result) from None
            raise
