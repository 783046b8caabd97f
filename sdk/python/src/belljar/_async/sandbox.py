"""Sandboxes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, AsyncIterator, List, Literal, Mapping, Optional, Sequence, Type, TypedDict, Union
from urllib.parse import quote

from .. import _calls as calls
from .._calls._call import Duration, RemotePath, sandbox_path
from .._dual import dual
from ..errors import (
    ArgumentTypeException,
    ForkException,
    NotFoundException,
    SandboxException,
    SandboxGoneException,
    ServerException,
    TimeoutException,
    error_from_problem,
)
from ..models import (
    Limits,
    LogPage,
    Network,
    NetworkRecord,
    SandboxInfo,
    SandboxMetrics,
    SandboxState,
    TemplateInfo,
    Token,
    VolumeMount,
)
from . import _io
from .client import AsyncBelljar, AsyncPaginator, Leased, shared_client
from .code import AsyncCode
from .commands import AsyncCommands
from .files import AsyncFiles
from .git import AsyncGit
from .ports import AsyncPorts
from .pty import AsyncPty
from .sessions import AsyncSessions
from .tools import AsyncTools

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._config import ConnectionOptions, RequestOptions


class SandboxOptions(TypedDict, total=False):
    """Options of `AsyncSandbox.create` besides template, timeout and connection."""

    metadata: Optional[Mapping[str, str]]
    labels: Optional[Mapping[str, str]]
    envs: Optional[Mapping[str, str]]
    name: Optional[str]
    if_exists: Optional[Literal["error", "return"]]
    idle_timeout: Optional[Duration]
    on_timeout: Optional[Literal["kill", "pause"]]
    auto_resume: Optional[bool]
    limits: Optional[Limits]
    network: Optional[Network]
    engine: Optional[str]
    grade: Optional[str]
    machine: Optional[bool]
    user: Optional[str]
    hostname: Optional[str]
    port_host: Optional[str]
    mounts: Optional[Sequence[str]]
    volumes: Optional[Sequence[VolumeMount]]
    files: Optional[Mapping[str, Union[str, bytes]]]
    wait: bool


PORT_INTERVAL = 0.05
"""Interval of checks for a listening port, in seconds."""


async def _kill_by_id(cls: Type[AsyncSandbox], sandbox_id: str, **connection: Unpack[ConnectionOptions]) -> bool:
    """Ends a sandbox by its id."""
    async with Leased(None, connection) as client:
        return await client.sandboxes.kill(sandbox_id)


async def _pause_by_id(cls: Type[AsyncSandbox], sandbox_id: str, **connection: Unpack[ConnectionOptions]) -> bool:
    """Pauses a sandbox by its id. Returns False if it is already paused."""
    async with Leased(None, connection) as client:
        return await client.sandboxes.pause(sandbox_id)


async def _resume_by_id(
    cls: Type[AsyncSandbox],
    sandbox_id: str,
    timeout: Optional[Duration] = None,
    **connection: Unpack[ConnectionOptions],
) -> AsyncSandbox:
    """Resumes a paused sandbox by its id, and connects to it."""
    async with Leased(None, connection) as client:
        return cls(client, await client.sandboxes.resume(sandbox_id, timeout))


async def _set_timeout_by_id(
    cls: Type[AsyncSandbox], sandbox_id: str, timeout: Duration, **connection: Unpack[ConnectionOptions]
) -> SandboxInfo:
    """Sets the timeout of a sandbox by its id, counted from now."""
    async with Leased(None, connection) as client:
        return await client.sandboxes.set_timeout(sandbox_id, timeout)


async def _info_by_id(cls: Type[AsyncSandbox], sandbox_id: str, **connection: Unpack[ConnectionOptions]) -> SandboxInfo:
    """Returns information about a sandbox by its id."""
    async with Leased(None, connection) as client:
        return await client.sandboxes.get(sandbox_id)


async def _update_network_by_id(
    cls: Type[AsyncSandbox], sandbox_id: str, network: Network, **connection: Unpack[ConnectionOptions]
) -> SandboxInfo:
    """Replaces the network policy of a sandbox by its id."""
    async with Leased(None, connection) as client:
        return await client._transport.request(_network_update(sandbox_id, network))


def _network_update(sandbox_id: str, network: Network) -> calls.Call[SandboxInfo]:
    return calls.sandboxes.update(
        sandbox_id, network=network, labels=None, limits=None, idle_timeout=None, on_timeout=None, auto_resume=None
    )


def _list_all_snapshots(
    cls: Type[AsyncSandbox], sandbox_id: Optional[str] = None, **connection: Unpack[ConnectionOptions]
) -> AsyncPaginator[TemplateInfo]:
    """Lists the snapshots of all sandboxes, or of the one with this id."""
    return shared_client(connection).templates.list_snapshots(sandbox_id)


async def _delete_snapshot_of_class(cls: Type[AsyncSandbox], snapshot_id: str, **connection: Unpack[ConnectionOptions]) -> bool:
    """Removes a snapshot. Returns False if there is none with this id or name."""
    async with Leased(None, connection) as client:
        return await client.templates.delete_snapshot(snapshot_id)


class AsyncSandbox(AsyncCode):
    """A sandbox on a Belljar server. Create one with `create`, or connect to one with `connect`.

    As a context manager it is ended at the end. `kill`, `pause`, `resume`, `set_timeout`, `update_network` and `get_info` can
    also be called on the class, with the id of a sandbox as first argument; `list_snapshots` and `delete_snapshot` without one.
    """

    def __init__(self, client: Optional[AsyncBelljar] = None, info: Optional[SandboxInfo] = None) -> None:
        """Wraps a known sandbox; use `create` or `connect` instead."""
        if client is None or info is None:
            raise ArgumentTypeException(f"use {type(self).__name__}.create() or {type(self).__name__}.connect(sandbox_id)")
        self._client = client
        self._transport = client._transport
        self._info = info
        self._released = False
        client._lease()
        self.commands = AsyncCommands(self._transport, info.sandbox_id, info.limits.timeout_s)
        """Runs commands."""
        self.files = AsyncFiles(self._transport, info.sandbox_id)
        """Reads and writes files."""
        self.git = AsyncGit(self.commands)
        """Git repositories."""
        self.pty = AsyncPty(self.commands)
        """Starts programs on terminals."""
        self.sessions = AsyncSessions(self.commands)
        """Shells that keep their state."""
        self.ports = AsyncPorts(self._transport, info.sandbox_id)
        """Publishes ports."""
        self.tools = AsyncTools(self)
        """Runs tool calls of models."""

    @classmethod
    async def create(
        cls,
        template: Optional[str] = None,
        timeout: Optional[Duration] = None,
        *,
        metadata: Optional[Mapping[str, str]] = None,
        labels: Optional[Mapping[str, str]] = None,
        envs: Optional[Mapping[str, str]] = None,
        name: Optional[str] = None,
        if_exists: Optional[Literal["error", "return"]] = None,
        idle_timeout: Optional[Duration] = None,
        on_timeout: Optional[Literal["kill", "pause"]] = None,
        auto_resume: Optional[bool] = None,
        limits: Optional[Limits] = None,
        network: Optional[Network] = None,
        engine: Optional[str] = None,
        grade: Optional[str] = None,
        machine: Optional[bool] = None,
        user: Optional[str] = None,
        hostname: Optional[str] = None,
        port_host: Optional[str] = None,
        mounts: Optional[Sequence[str]] = None,
        volumes: Optional[Sequence[VolumeMount]] = None,
        files: Optional[Mapping[str, Union[str, bytes]]] = None,
        wait: bool = True,
        client: Optional[AsyncBelljar] = None,
        **connection: Unpack[ConnectionOptions],
    ) -> AsyncSandbox:
        """Creates a sandbox.

        Args:
            template: The name or id of a template or snapshot; default: the operator's, which is `default` unless set otherwise.
            timeout: Time until it expires; default: 300 seconds. `set_timeout` changes it.
            metadata: E2B's name for `labels`.
            labels: Labels by which `list` finds it.
            envs: Environment variables of everything that runs in it.
            name: A name by which `connect` finds it.
            if_exists: If a sandbox with this name exists: `error`, or `return` to get that one.
            idle_timeout: Time without use until it expires.
            on_timeout: Action when a timeout expires: `kill` or `pause`.
            auto_resume: Whether using the paused sandbox resumes it; default: true.
            limits: Resource limits: `memory`, `cpus`, `timeout` (of one command), `pids`, `tmp`, `disk`, `inodes`, `output`,
                `open_files`. Sizes are bytes or a string such as `256m`.
            network: Network policy: `disabled` (the default), `open`, or a policy such as `{"presets": ["pip"]}`.
            engine: The engine that builds its walls.
            grade: How limits are enforced: `cgroup` or `watched`.
            machine: Whether it has root inside, and a tree that is writable. Needs a template with a tree of its own.
            user: The user as whom programs run that name none, such as `root`, in a machine; default: the sandbox's own, `user`.
            hostname: Its host name.
            port_host: Host that programs on its ports see, such as `localhost:{port}`, instead of the one that the client used.
            mounts: Directories of the server's machine, for keys with the role `admin`.
            volumes: Volumes to mount, each with `name`, `path` and, for read-only access, the `mode` `ro`.
            files: Files to write before anything runs: path to content, 1 MiB in total.
            wait: Whether to wait until it runs. Without, its state is `creating`, and what is called in it waits instead.
            client: A client to use, instead of one for `connection`.
            connection: `api_key`, `api_url`, `domain`, `request_timeout`, `max_retries`, `ssl_context`.
        """
        async with Leased(client, connection) as leased:
            call = calls.sandboxes.create(
                template=template,
                timeout=timeout,
                labels=labels,
                metadata=metadata,
                envs=envs,
                name=name,
                if_exists=if_exists,
                idle_timeout=idle_timeout,
                on_timeout=on_timeout,
                auto_resume=auto_resume,
                limits=limits,
                network=network,
                engine=engine,
                grade=grade or leased.config.default_grade,
                machine=machine,
                user=user,
                hostname=hostname,
                port_host=port_host,
                mounts=mounts,
                volumes=volumes,
                files=files,
                wait=wait,
            )
            info = await leased._transport.request(call)
            return cls(leased, info)

    @classmethod
    async def connect(
        cls,
        sandbox_id: str,
        timeout: Optional[Duration] = None,
        *,
        client: Optional[AsyncBelljar] = None,
        **connection: Unpack[ConnectionOptions],
    ) -> AsyncSandbox:
        """Connects to a sandbox by its id or name, and resumes a paused one; with `timeout` it gets at least that time.

        One that is held (`held_by`) stays so until somebody has decided or answered.

        Raises:
            NotFoundException: It does not exist.
            SandboxGoneException: It has ended.
        """
        async with Leased(client, connection) as leased:
            info = await leased.sandboxes.get(sandbox_id)
            if info.state in ("gone", "stopping"):
                raise SandboxGoneException(f"the sandbox {sandbox_id} has ended: {info.reason}", code="sandbox_gone")
            # One that is held goes on by itself, once somebody has decided or answered.
            if (info.state == "paused" and info.held_by is None) or timeout is not None:
                info = await leased.sandboxes.resume(info.sandbox_id, timeout)
            return cls(leased, info)

    @classmethod
    def list(
        cls,
        *,
        state: Optional[Union[SandboxState, Sequence[SandboxState]]] = None,
        labels: Optional[Mapping[str, str]] = None,
        name: Optional[str] = None,
        limit: Optional[int] = None,
        order: Optional[Literal["asc", "desc"]] = None,
        next_token: Optional[str] = None,
        client: Optional[AsyncBelljar] = None,
        **connection: Unpack[ConnectionOptions],
    ) -> AsyncPaginator[SandboxInfo]:
        """Lists the matching sandboxes: in one of these states, with all of these labels, with this name.

        Without `state` all except those that are gone. `limit` is the page size (1 to 100); `next_token` of an earlier list
        continues it.
        """
        found = client if client is not None else shared_client(connection)
        return found.sandboxes.list(state=state, labels=labels, name=name, limit=limit, order=order, next_token=next_token)

    @property
    def name(self) -> Optional[str]:
        """The name of the sandbox, if it has one."""
        return self._info.name

    @property
    def info(self) -> SandboxInfo:
        """The last known information. `get_info` fetches it again."""
        return self._info

    async def _kill(self) -> bool:
        """Ends the sandbox. Returns False if it has already ended."""
        killed = await self._client.sandboxes.kill(self.sandbox_id)
        await self._release()
        return killed

    async def _pause(self) -> bool:
        """Pauses the sandbox, and suspends its timeout. Returns False if it is already paused."""
        return await self._client.sandboxes.pause(self.sandbox_id)

    async def _resume(self, timeout: Optional[Duration] = None) -> SandboxInfo:
        """Resumes the paused sandbox; a running one gets at least the given timeout."""
        self._info = await self._client.sandboxes.resume(self.sandbox_id, timeout)
        return self._info

    async def _set_timeout(self, timeout: Duration) -> SandboxInfo:
        """Sets the timeout of the sandbox, counted from now; 0 ends it immediately."""
        self._info = await self._client.sandboxes.set_timeout(self.sandbox_id, timeout)
        return self._info

    async def _get_info(self) -> SandboxInfo:
        """Fetches information about the sandbox. Does not resume it."""
        self._info = await self._client.sandboxes.get(self.sandbox_id)
        return self._info

    kill = dual(_kill, _kill_by_id)
    pause = dual(_pause, _pause_by_id)
    resume = dual(_resume, _resume_by_id)
    set_timeout = dual(_set_timeout, _set_timeout_by_id)
    get_info = dual(_get_info, _info_by_id)

    async def _update_network(self, network: Network) -> SandboxInfo:
        """Replaces the network policy, as `update` does, and cuts connections that the new one does not allow."""
        self._info = await self._transport.request(_network_update(self.sandbox_id, network))
        return self._info

    def _list_snapshots(self) -> AsyncPaginator[TemplateInfo]:
        """Lists the snapshots of the sandbox."""
        return self._client.templates.list_snapshots(self.sandbox_id)

    async def _delete_snapshot(self, snapshot_id: str) -> bool:
        """Removes a snapshot. Returns False if there is none with this id or name."""
        return await self._client.templates.delete_snapshot(snapshot_id)

    update_network = dual(_update_network, _update_network_by_id)
    list_snapshots = dual(_list_snapshots, _list_all_snapshots)
    delete_snapshot = dual(_delete_snapshot, _delete_snapshot_of_class)

    async def close(self) -> None:
        """Releases the sandbox without ending it, so that connections can be closed. `kill` does this too."""
        await self._release()

    async def is_running(self) -> bool:
        """Reports whether the sandbox runs, that is, is neither paused nor gone."""
        try:
            return (await self.get_info()).state == "running"
        except NotFoundException:
            return False

    async def fork(
        self,
        timeout: Optional[Duration] = None,
        count: int = 1,
        *,
        metadata: Optional[Mapping[str, str]] = None,
        labels: Optional[Mapping[str, str]] = None,
        envs: Optional[Mapping[str, str]] = None,
    ) -> List[AsyncSandbox]:
        """Creates `count` sandboxes (1 to 20) with the current files of this one. Processes are not copied.

        `timeout` is their timeout, as in `create`.

        Raises:
            ForkException: Some could not be created; it contains the others.
        """
        call = calls.sandboxes.fork(self.sandbox_id, count=count, timeout=timeout, labels=labels, metadata=metadata, envs=envs)
        made, errors = await self._transport.request(call)
        sandboxes: List[AsyncSandbox] = [type(self)(self._client, info) for info in made]
        if errors:
            raise ForkException(sandboxes, errors)
        return sandboxes

    async def create_snapshot(self, name: Optional[str] = None, note: Optional[str] = None) -> TemplateInfo:
        """Creates a template from the sandbox's current files; pass its `snapshot_id` or name to `AsyncSandbox.create`."""
        return await self._transport.request(calls.sandboxes.snapshot(self.sandbox_id, name, note))

    async def update(
        self,
        *,
        labels: Optional[Mapping[str, Optional[str]]] = None,
        limits: Optional[Limits] = None,
        idle_timeout: Optional[Duration] = None,
        on_timeout: Optional[Literal["kill", "pause"]] = None,
        auto_resume: Optional[bool] = None,
        network: Optional[Network] = None,
    ) -> SandboxInfo:
        """Changes the given settings. A label of None is removed; an `idle_timeout` of 0 means none.

        `network` replaces the network policy, and cuts connections that it does not allow. A sandbox that was created with the
        network `disabled` cannot get another policy.
        """
        call = calls.sandboxes.update(
            self.sandbox_id,
            labels=labels,
            limits=limits,
            idle_timeout=idle_timeout,
            on_timeout=on_timeout,
            auto_resume=auto_resume,
            network=network,
        )
        self._info = await self._transport.request(call)
        return self._info

    async def set_limits(
        self,
        *,
        memory: Optional[Union[int, str]] = None,
        cpus: Optional[float] = None,
        pids: Optional[int] = None,
    ) -> SandboxInfo:
        """Changes limits of the running sandbox. `memory` is bytes or a string such as `256m`."""
        return await self.update(limits={"memory": memory, "cpus": cpus, "pids": pids})

    async def get_metrics(self) -> SandboxMetrics:
        """Returns the current resource usage of the sandbox."""
        return await self._transport.request(calls.sandboxes.metrics(self.sandbox_id))

    async def logs(self, after: Optional[int] = None, limit: Optional[int] = None) -> LogPage:
        """Returns the log of the sandbox, after entry `after`."""
        return await self._transport.request(calls.sandboxes.logs(self.sandbox_id, after, limit))

    async def network_log(self, after: Optional[int] = None, *, follow: bool = False) -> AsyncIterator[NetworkRecord]:
        """Yields the decisions about the sandbox's connections since its start (the last 1,024) after number `after`.

        With `follow` it continues with new decisions, until the sandbox is gone.
        """
        stream = await self._transport.events(calls.sandboxes.network_log(self.sandbox_id, after, follow))
        try:
            while True:
                event = await stream.receive()
                if event is None:
                    return
                if event.name == "error":
                    raise error_from_problem(event.data)
                yield NetworkRecord.from_json(event.data)
        finally:
            await stream.close()

    async def create_token(self, expires: Duration = 3600) -> Token:
        """Creates a temporary token for this sandbox only. Pass it as `api_key` to `AsyncSandbox.connect`."""
        return await self._transport.request(calls.sandboxes.create_token(self.sandbox_id, expires))

    def get_host(self, port: int) -> str:
        """Returns the host name of a published port. Does not publish it; `get_url` does.

        Raises:
            SandboxException: The server has no domain. Set `BELLJAR_DOMAIN`, or use `get_url`.
        """
        domain = self._client.config.domain
        if domain is not None:
            return f"{port}-{self.sandbox_id}.{domain}"
        if self._info.host is None:
            raise SandboxException(
                "the server has no domain of its own for sandboxes; set BELLJAR_DOMAIN if there is one, or use get_url"
            )
        return self._info.host.replace("{port}", str(port))

    async def wait_for_port(self, port: int, timeout: float = 60.0) -> None:
        """Waits until a process in the sandbox listens on a port.

        Raises:
            TimeoutException: None did within `timeout` seconds.
        """
        end = time.monotonic() + timeout
        while port not in (await self.ports.list()).listening:
            if time.monotonic() >= end:
                raise TimeoutException(f"nothing in the sandbox {self.sandbox_id} listens on port {port} after {timeout:g} s")
            await _io.sleep(PORT_INTERVAL)

    async def get_url(self, port: int, expires: Duration = 3600, *, by_path: bool = False) -> str:
        """Publishes a port, and returns a URL that gives access to it, without a key, until it expires.

        The URL has its own host name, where a browser gets a cookie, so that links and scripts of a page work. Names below
        `localhost` are resolved by browsers but not by every program. With `by_path` the URL is on the server's own host, which
        works wherever the server can be reached; each request then needs the URL's full query.
        """
        ports = (await self.ports.list()).ports
        published = next((found for found in ports if found.port == port), None) or await self.ports.publish(port)
        token = await self.ports.create_token(port, expires)
        url = token.url or published.url
        if by_path or url is None:
            if published.path_url is None:
                raise ServerException("unexpected response from the server: it has no URL")
            url = f"{published.path_url}?belljar_token={quote(token.token, safe='')}"
        return self._client.config.public_url(url)

    async def upload_url(self, path: RemotePath, expires: Duration = 3600, **options: Unpack[RequestOptions]) -> str:
        """Returns a URL that allows a PUT of this one file, without a key, until it expires."""
        return await self._sign(path, "write", expires, **options)

    async def download_url(self, path: RemotePath, expires: Duration = 3600, **options: Unpack[RequestOptions]) -> str:
        """Returns a URL that allows a GET of this one file, without a key, until it expires."""
        return await self._sign(path, "read", expires, **options)

    async def __aenter__(self) -> AsyncSandbox:
        """Returns itself."""
        return self

    async def __aexit__(self, exc_type: Optional[Type[BaseException]], *_: object) -> None:
        """Ends the sandbox."""
        try:
            await self.kill()
        except SandboxException:
            # An exception from the body takes precedence.
            if exc_type is None:
                raise
        finally:
            await self._release()

    def __repr__(self) -> str:
        """Shows the sandbox's id and its server."""
        return f"{type(self).__name__}(sandbox_id={self.sandbox_id!r}, api_url={self._client.config.api_url!r})"

    async def _sign(self, path: RemotePath, operation: str, expires: Duration, **options: Unpack[RequestOptions]) -> str:
        url = await self._transport.request(calls.files.sign(sandbox_path(self.sandbox_id), path, operation, expires), **options)
        return self._client.config.public_url(url)

    async def _release(self) -> None:
        if not self._released:
            self._released = True
            await self._client._release()
