# Made by scripts/make_sync.py from ../_async/sandbox.py. Change that one.
"""Sandboxes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Iterator, List, Literal, Mapping, Optional, Sequence, Type, Union
from urllib.parse import quote, urljoin

from .. import _calls as calls
from .._calls._call import Duration, RemotePath, sandbox_path
from .._dual import dual
from ..errors import (
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
from .client import Belljar, Leased, Paginator, shared_client
from .code import Code
from .commands import Commands
from .files import Files
from .ports import Ports
from .pty import Pty
from .sessions import Sessions

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    from .._config import ConnectionOptions, RequestOptions

    class SandboxOptions(TypedDict, total=False):
        """What `Sandbox.create` takes beside template, timeout and connection."""

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
        hostname: Optional[str]
        mounts: Optional[Sequence[str]]
        volumes: Optional[Sequence[VolumeMount]]
        files: Optional[Mapping[str, Union[str, bytes]]]


PORT_INTERVAL = 0.05
"""Seconds between two looks at a sandbox's ports."""


def _kill_by_id(cls: Type[Sandbox], sandbox_id: str, **connection: Unpack[ConnectionOptions]) -> bool:
    """Ends a sandbox by its id."""
    with Leased(None, connection) as client:
        return client.sandboxes.kill(sandbox_id)


def _pause_by_id(cls: Type[Sandbox], sandbox_id: str, **connection: Unpack[ConnectionOptions]) -> bool:
    """Freezes a sandbox by its id. False: it is paused already."""
    with Leased(None, connection) as client:
        return client.sandboxes.pause(sandbox_id)


def _resume_by_id(
    cls: Type[Sandbox],
    sandbox_id: str,
    timeout: Optional[Duration] = None,
    **connection: Unpack[ConnectionOptions],
) -> Sandbox:
    """Lets a frozen sandbox go on, by its id, and connects with it."""
    with Leased(None, connection) as client:
        return cls(client, client.sandboxes.resume(sandbox_id, timeout))


def _set_timeout_by_id(
    cls: Type[Sandbox], sandbox_id: str, timeout: Duration, **connection: Unpack[ConnectionOptions]
) -> SandboxInfo:
    """Lets a sandbox live that long from now, by its id."""
    with Leased(None, connection) as client:
        return client.sandboxes.set_timeout(sandbox_id, timeout)


def _info_by_id(cls: Type[Sandbox], sandbox_id: str, **connection: Unpack[ConnectionOptions]) -> SandboxInfo:
    """What the server knows of a sandbox, by its id."""
    with Leased(None, connection) as client:
        return client.sandboxes.get(sandbox_id)


class Sandbox(Code):
    """A sandbox on a Belljar server. Make one with `create`, or take one up with `connect`.

    As a context manager it is ended at the end. `kill`, `pause`, `resume`, `set_timeout` and `get_info` can also be called on the
    class, with the id of a sandbox as first argument.
    """

    def __init__(self, client: Belljar, info: SandboxInfo) -> None:
        """Takes up a sandbox that is known; use `create` or `connect` instead."""
        self._client = client
        self._transport = client._transport
        self._info = info
        self._released = False
        client._lease()
        self.commands = Commands(self._transport, info.sandbox_id, info.limits.timeout_s)
        """Runs commands."""
        self.files = Files(self._transport, info.sandbox_id)
        """Reads and writes files."""
        self.pty = Pty(self.commands)
        """Starts programs on terminals."""
        self.sessions = Sessions(self.commands)
        """Shells that remember."""
        self.ports = Ports(self._transport, info.sandbox_id)
        """Lets ports be reached from outside."""

    @classmethod
    def create(
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
        hostname: Optional[str] = None,
        mounts: Optional[Sequence[str]] = None,
        volumes: Optional[Sequence[VolumeMount]] = None,
        files: Optional[Mapping[str, Union[str, bytes]]] = None,
        client: Optional[Belljar] = None,
        **connection: Unpack[ConnectionOptions],
    ) -> Sandbox:
        """Makes a sandbox.

        Args:
            template: What it starts from: `default`, or the name or id of a snapshot.
            timeout: How long it lives, 300 seconds if not given. `set_timeout` changes it.
            metadata: The name that E2B has for `labels`.
            labels: Notes of your own, by which `list` finds it.
            envs: Environment variables of everything that runs in it.
            name: A name for it, by which `connect` finds it.
            if_exists: If a sandbox has the name: `error`, or `return` to get that one.
            idle_timeout: How long nobody may use it before its time is over as well.
            on_timeout: What happens when its time is over: `kill` or `pause`.
            auto_resume: Whether a use of the paused sandbox lets it go on; true if not given.
            limits: What it may use: `memory`, `cpus`, `timeout` (of one command), `pids`, `tmp`, `disk`, `inodes`, `output`,
                `open_files`. Sizes are bytes or a text such as `256m`.
            network: What it may reach: `disabled` (if not given), `open`, or a policy such as `{"presets": ["pip"]}`.
            engine: What builds its walls.
            grade: How limits are held: `cgroup` or `watched`.
            hostname: Its host name.
            mounts: Directories of the server's machine, for keys with the role `admin`.
            volumes: Volumes to mount, each with `name`, `path` and, for read-only access, the `mode` `ro`.
            files: Files to put in before anything runs: path to content, 1 MiB in all.
            client: A client to use, instead of one made from what follows.
            connection: `api_key`, `api_url`, `domain`, `request_timeout`, `max_retries`, `ssl_context`.
        """
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
            grade=grade,
            hostname=hostname,
            mounts=mounts,
            volumes=volumes,
            files=files,
        )
        with Leased(client, connection) as leased:
            return cls(leased, leased._transport.request(call))

    @classmethod
    def connect(
        cls,
        sandbox_id: str,
        timeout: Optional[Duration] = None,
        *,
        client: Optional[Belljar] = None,
        **connection: Unpack[ConnectionOptions],
    ) -> Sandbox:
        """Takes up a sandbox by its id or name. A paused one goes on; with `timeout` it gets at least that time.

        Raises:
            NotFoundException: There is none.
            SandboxGoneException: It has ended.
        """
        with Leased(client, connection) as leased:
            info = leased.sandboxes.get(sandbox_id)
            if info.state in ("gone", "stopping"):
                raise SandboxGoneException(f"the sandbox {sandbox_id} has ended: {info.reason}", code="sandbox_gone")
            if info.state == "paused" or timeout is not None:
                info = leased.sandboxes.resume(info.sandbox_id, timeout)
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
        client: Optional[Belljar] = None,
        **connection: Unpack[ConnectionOptions],
    ) -> Paginator[SandboxInfo]:
        """The sandboxes that fit: in one of these states, with all of these labels, of this name.

        Without `state` all but those that are gone. `limit` is the size of a page (1 to 100).
        """
        found = client if client is not None else shared_client(connection)
        return found.sandboxes.list(state=state, labels=labels, name=name, limit=limit, order=order)

    @property
    def name(self) -> Optional[str]:
        """Its name, if it has one."""
        return self._info.name

    @property
    def info(self) -> SandboxInfo:
        """What the server said of it last. `get_info` asks anew."""
        return self._info

    def _kill(self) -> bool:
        """Ends the sandbox. False: it has ended already."""
        killed = self._client.sandboxes.kill(self.sandbox_id)
        self._release()
        return killed

    def _pause(self) -> bool:
        """Freezes the sandbox; its clock stops. False: it is paused already."""
        return self._client.sandboxes.pause(self.sandbox_id)

    def _resume(self, timeout: Optional[Duration] = None) -> SandboxInfo:
        """Lets the frozen sandbox go on; one that runs gets at least the time given."""
        self._info = self._client.sandboxes.resume(self.sandbox_id, timeout)
        return self._info

    def _set_timeout(self, timeout: Duration) -> SandboxInfo:
        """Lets the sandbox live that long from now; 0 ends it now."""
        self._info = self._client.sandboxes.set_timeout(self.sandbox_id, timeout)
        return self._info

    def _get_info(self) -> SandboxInfo:
        """Asks the server what it knows of the sandbox. That does not wake it."""
        self._info = self._client.sandboxes.get(self.sandbox_id)
        return self._info

    kill = dual(_kill, _kill_by_id)
    pause = dual(_pause, _pause_by_id)
    resume = dual(_resume, _resume_by_id)
    set_timeout = dual(_set_timeout, _set_timeout_by_id)
    get_info = dual(_get_info, _info_by_id)

    def close(self) -> None:
        """Lets go of the sandbox without ending it, so that connections can be closed. `kill` does it too."""
        self._release()

    def is_running(self) -> bool:
        """Whether the sandbox runs: it is neither paused nor gone."""
        try:
            return (self.get_info()).state == "running"
        except NotFoundException:
            return False

    def fork(
        self,
        timeout: Optional[Duration] = None,
        count: int = 1,
        *,
        metadata: Optional[Mapping[str, str]] = None,
        labels: Optional[Mapping[str, str]] = None,
        envs: Optional[Mapping[str, str]] = None,
    ) -> List[Sandbox]:
        """Makes `count` sandboxes (1 to 20) that start with the files that this one has now. Processes are not copied.

        `timeout` is how long they live, as `create` has it.

        Raises:
            ForkException: Some could not be made; it has those that were.
        """
        call = calls.sandboxes.fork(self.sandbox_id, count=count, timeout=timeout, labels=labels, metadata=metadata, envs=envs)
        made, errors = self._transport.request(call)
        sandboxes: List[Sandbox] = [type(self)(self._client, info) for info in made]
        if errors:
            raise ForkException(sandboxes, errors)
        return sandboxes

    def create_snapshot(self, name: Optional[str] = None, note: Optional[str] = None) -> TemplateInfo:
        """Makes a template of the files that the sandbox has now; `Sandbox.create` takes its `snapshot_id` or name."""
        return self._transport.request(calls.sandboxes.snapshot(self.sandbox_id, name, note))

    def update(
        self,
        *,
        labels: Optional[Mapping[str, Optional[str]]] = None,
        limits: Optional[Limits] = None,
        idle_timeout: Optional[Duration] = None,
        on_timeout: Optional[Literal["kill", "pause"]] = None,
        auto_resume: Optional[bool] = None,
        network: Optional[Network] = None,
    ) -> SandboxInfo:
        """Changes what is given and leaves the rest. A label of None goes away; an `idle_timeout` of 0 is none.

        `network` replaces all that the sandbox might reach, and cuts the connections that it does not allow. A sandbox that was
        made with the network `disabled` cannot get another.
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
        self._info = self._transport.request(call)
        return self._info

    def set_limits(
        self,
        *,
        memory: Optional[Union[int, str]] = None,
        cpus: Optional[float] = None,
        pids: Optional[int] = None,
    ) -> SandboxInfo:
        """Changes limits of the running sandbox. `memory` is bytes or a text such as `256m`."""
        return self.update(limits={"memory": memory, "cpus": cpus, "pids": pids})

    def get_metrics(self) -> SandboxMetrics:
        """What the sandbox uses now."""
        return self._transport.request(calls.sandboxes.metrics(self.sandbox_id))

    def logs(self, after: Optional[int] = None, limit: Optional[int] = None) -> LogPage:
        """What happened to the sandbox, after number `after`."""
        return self._transport.request(calls.sandboxes.logs(self.sandbox_id, after, limit))

    def network_log(self, after: Optional[int] = None, *, follow: bool = False) -> Iterator[NetworkRecord]:
        """What was decided about the sandbox's connections since it was started, the last 1,024 decisions, after number `after`.

        With `follow` it goes on with what is decided, until the sandbox is gone.
        """
        stream = self._transport.events(calls.sandboxes.network_log(self.sandbox_id, after, follow))
        try:
            while True:
                event = stream.receive()
                if event is None:
                    return
                if event.name == "error":
                    raise error_from_problem(event.data)
                yield NetworkRecord.from_json(event.data)
        finally:
            stream.close()

    def create_token(self, expires: Duration = 3600) -> Token:
        """Makes a token that opens only this sandbox, for a time. It is given as `api_key` to `Sandbox.connect`."""
        return self._transport.request(calls.sandboxes.create_token(self.sandbox_id, expires))

    def get_host(self, port: int) -> str:
        """The host name under which a published port can be reached. It does not publish it; `get_url` does.

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

    def wait_for_port(self, port: int, timeout: float = 60.0) -> None:
        """Waits until something in the sandbox listens on a port.

        Raises:
            TimeoutException: Nothing did within `timeout` seconds.
        """
        end = time.monotonic() + timeout
        while port not in (self.ports.list()).listening:
            if time.monotonic() >= end:
                raise TimeoutException(f"nothing in the sandbox {self.sandbox_id} listens on port {port} after {timeout:g} s")
            _io.sleep(PORT_INTERVAL)

    def get_url(self, port: int, expires: Duration = 3600, *, by_path: bool = False) -> str:
        """Publishes a port, and makes a URL that opens it, for whoever has the URL, until it expires.

        The URL has a host name of its own, where a browser gets a cookie, so that links and scripts of a page work. Names below
        `localhost` are known to browsers but not to every program. With `by_path` the URL is on the server's own host, which
        works wherever the server can be reached; each request needs all of the URL's query then.
        """
        ports = (self.ports.list()).ports
        published = next((found for found in ports if found.port == port), None) or self.ports.publish(port)
        token = self.ports.create_token(port, expires)
        url = token.url or published.url
        if by_path or url is None:
            if published.path_url is None:
                raise ServerException("the server's answer is not as expected: there is no URL")
            url = f"{published.path_url}?belljar_token={quote(token.token, safe='')}"
        return urljoin(f"{self._client.config.base_url}/", url)

    def upload_url(self, path: RemotePath, expires: Duration = 3600, **options: Unpack[RequestOptions]) -> str:
        """Makes a URL to which whoever has it can PUT this one file, until it expires."""
        return self._sign(path, "write", expires, **options)

    def download_url(self, path: RemotePath, expires: Duration = 3600, **options: Unpack[RequestOptions]) -> str:
        """Makes a URL from which whoever has it can GET this one file, until it expires."""
        return self._sign(path, "read", expires, **options)

    def __enter__(self) -> Sandbox:
        """Itself."""
        return self

    def __exit__(self, exc_type: Optional[Type[BaseException]], *_: object) -> None:
        """Ends the sandbox."""
        try:
            self.kill()
        except SandboxException:
            # What went wrong inside is what matters, if something did.
            if exc_type is None:
                raise
        finally:
            self._release()

    def __repr__(self) -> str:
        """The sandbox's id, and its server."""
        return f"{type(self).__name__}(sandbox_id={self.sandbox_id!r}, api_url={self._client.config.api_url!r})"

    def _sign(self, path: RemotePath, operation: str, expires: Duration, **options: Unpack[RequestOptions]) -> str:
        url = self._transport.request(calls.files.sign(sandbox_path(self.sandbox_id), path, operation, expires), **options)
        return urljoin(f"{self._client.config.base_url}/", url)

    def _release(self) -> None:
        if not self._released:
            self._released = True
            self._client._release()
