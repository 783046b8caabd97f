"""The client of a server: everything that does not concern a single sandbox."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Callable,
    Generic,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)

import httpx

from .. import _calls as calls
from .._calls._call import Duration, Size, volume_path
from .._config import DEFAULT_MAX_RETRIES, ConnectionConfig
from ..errors import (
    ConflictException,
    ConnectionException,
    InvalidArgumentException,
    NotFoundException,
    TemplateNotFoundException,
    error_from_problem,
)
from ..models import (
    AccountInfo,
    ApprovalInfo,
    AuditPage,
    AuditVerdict,
    BuildEvent,
    KeyInfo,
    Network,
    NetworkForecast,
    NetworkOffer,
    SandboxInfo,
    SandboxState,
    ScreenReport,
    SecretInfo,
    TemplateInfo,
    VolumeInfo,
)
from ..template import LocalPath, Template
from . import _io
from ._transport import AsyncTransport
from .files import AsyncVolumeFiles

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._config import ConnectionOptions
    from .sandbox import AsyncSandbox, SandboxOptions

T = TypeVar("T")


class AsyncBelljar:
    """A client of one server, with its own pool of connections. Close it when done; `async with` does that.

    Missing arguments default to `BELLJAR_API_KEY` and `BELLJAR_API_URL` (`http://127.0.0.1:8787` if only the key is given).
    If neither is given, the server of this user's home is used, and started if none is running.
    The URL `unix:///path` connects to a Unix socket, where the owner of the server needs no key. `transport` replaces the
    network, for tests.
    """

    def __init__(
        self,
        api_key: Optional[str] = None,
        api_url: Optional[str] = None,
        *,
        transport: Optional[httpx.AsyncBaseTransport] = None,
        domain: Optional[str] = None,
        request_timeout: Optional[float] = None,
        max_retries: int = DEFAULT_MAX_RETRIES,
        ssl_context: Optional[ssl.SSLContext] = None,
        config: Optional[ConnectionConfig] = None,
    ) -> None:
        """Creates a client; it connects with its first request. `config` replaces all other arguments."""
        if config is None:
            config = ConnectionConfig.resolve(
                api_key=api_key,
                api_url=api_url,
                domain=domain,
                request_timeout=request_timeout,
                max_retries=max_retries,
                ssl_context=ssl_context,
            )
        self._transport = AsyncTransport(config, transport)
        self._shared = False
        self._leases = 0
        self.sandboxes = AsyncSandboxes(self)
        """Sandboxes, by id."""
        self.templates = AsyncTemplates(self)
        """Templates of sandboxes."""
        self.volumes = AsyncVolumes(self)
        """Files that outlive sandboxes."""
        self.keys = AsyncKeys(self)
        """API keys; needs a key with the role `admin`."""
        self.secrets = AsyncSecrets(self)
        """Secrets stored on the server for network policies."""
        self.network = AsyncNetworkPolicies(self)
        """What network policies can be made of, and what one would reach."""
        self.tools = AsyncStoredTools(self)
        """Tools stored on the server."""
        self.approvals = AsyncApprovals(self)
        """Calls that wait for a decision; needs a key with the role `approver` to decide."""
        self.audit = AsyncAudit(self)
        """The audit log; needs a key with the role `admin`."""

    @property
    def config(self) -> ConnectionConfig:
        """The connection settings of this client."""
        return self._transport.config

    async def me(self) -> AccountInfo:
        """Returns the owner of the key, its quotas and its usage."""
        return await self._transport.request(calls.admin.me())

    async def screen(
        self,
        code: str,
        language: str = "python",
        *,
        allow_modules: Optional[Sequence[str]] = None,
        deny_modules: Optional[Sequence[str]] = None,
    ) -> ScreenReport:
        """Reads code without running it, and reports what it seems to do: advice, never a wall.

        Imports of modules that are not in `allow_modules`, and of those in `deny_modules`, are findings of high severity.
        """
        return await self._transport.request(calls.admin.screen(code, language, allow_modules, deny_modules))

    async def health(self) -> Mapping[str, Any]:
        """Returns the health of the server. Needs no key."""
        return await self._transport.request(calls.admin.health())

    async def ready(self) -> Mapping[str, Any]:
        """Returns the readiness of the server; raises `ServerException` if it is not ready. Needs no key."""
        return await self._transport.request(calls.admin.ready())

    async def version(self) -> Mapping[str, Any]:
        """Returns the version of the server. Needs no key."""
        return await self._transport.request(calls.admin.version())

    async def metrics(self) -> str:
        """Returns the server's own metrics in the format of Prometheus."""
        async with await self._transport.stream(calls.admin.metrics()) as stream:
            return (await stream.read()).decode("utf-8", "replace")

    async def close(self) -> None:
        """Closes the connections."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncBelljar:
        """Returns itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the connections."""
        await self.close()

    def __repr__(self) -> str:
        """Shows the client and its server, without the key."""
        return f"{type(self).__name__}(api_url={self.config.api_url!r})"

    def _lease(self) -> None:
        self._leases += 1

    async def _release(self) -> None:
        self._leases -= 1
        if self._shared and _io.CLOSE_SHARED_WHEN_UNUSED and self._leases <= 0:
            await self.close()


class Leased:
    """A client for one operation: the given one, or the shared one."""

    def __init__(self, client: Optional[AsyncBelljar], options: ConnectionOptions) -> None:
        """Selects the client."""
        self._client = client if client is not None else shared_client(options)

    async def __aenter__(self) -> AsyncBelljar:
        """Returns the client."""
        self._client._lease()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        """Releases the client."""
        await self._client._release()


_shared_clients: _io.SharedClients[AsyncBelljar] = _io.SharedClients()


def shared_client(options: ConnectionOptions) -> AsyncBelljar:
    """Returns the shared client for these options."""
    return _shared_clients.get(ConnectionConfig.resolve(**options), _make_shared)


def _make_shared(config: ConnectionConfig) -> AsyncBelljar:
    client = AsyncBelljar(config=config)
    client._shared = True
    _io.at_exit(client.close)
    return client


class AsyncPaginator(Generic[T]):
    """A paginated list. Iterate over its items, take page by page with `next_items`, or the rest with `all`."""

    def __init__(
        self,
        client: AsyncBelljar,
        page: Callable[[Optional[str]], calls.Call[Tuple[List[T], Optional[str]]]],
        next_token: Optional[str] = None,
    ) -> None:
        """Creates a paginator; `page` builds the call for the page at a cursor."""
        self._client = client
        self._page = page
        self._cursor = next_token
        self._has_next = True

    @property
    def has_next(self) -> bool:
        """Reports whether there may be another page."""
        return self._has_next

    @property
    def next_token(self) -> Optional[str]:
        """The beginning of the next page, to continue later; None at the beginning and at the end."""
        return self._cursor

    async def next_items(self) -> List[T]:
        """Returns the next page; empty if there is none."""
        if not self._has_next:
            return []
        self._client._lease()
        try:
            items, self._cursor = await self._client._transport.request(self._page(self._cursor))
        finally:
            await self._client._release()
        self._has_next = self._cursor is not None
        return items

    async def all(self) -> List[T]:
        """Returns the remaining items."""
        return [item async for item in self]

    async def __aiter__(self) -> AsyncIterator[T]:
        """Yields the remaining items."""
        while self._has_next:
            for item in await self.next_items():
                yield item


class AsyncSandboxes:
    """Sandboxes of a server, by id."""

    def __init__(self, client: AsyncBelljar) -> None:
        """Created by a client."""
        self._client = client

    async def create(
        self, template: Optional[str] = None, timeout: Optional[Duration] = None, **options: Unpack[SandboxOptions]
    ) -> AsyncSandbox:
        """Creates a sandbox; the arguments are those of `AsyncSandbox.create`."""
        from .sandbox import AsyncSandbox

        return await AsyncSandbox.create(template, timeout, client=self._client, **options)

    async def connect(self, sandbox_id: str, timeout: Optional[Duration] = None) -> AsyncSandbox:
        """Connects to an existing sandbox, as `AsyncSandbox.connect` does."""
        from .sandbox import AsyncSandbox

        return await AsyncSandbox.connect(sandbox_id, timeout, client=self._client)

    def list(
        self,
        *,
        state: Optional[Union[SandboxState, Sequence[SandboxState]]] = None,
        labels: Optional[Mapping[str, str]] = None,
        name: Optional[str] = None,
        limit: Optional[int] = None,
        order: Optional[str] = None,
        next_token: Optional[str] = None,
    ) -> AsyncPaginator[SandboxInfo]:
        """Lists the matching sandboxes: in one of these states, with all of these labels, with this name.

        Without `state` all except those that are gone. `limit` is the page size (1 to 100), `order` is `desc` (newest first)
        or `asc`. `next_token` of an earlier list continues it.
        """

        def page(cursor: Optional[str]) -> calls.Call[calls.sandboxes.Page]:
            return calls.sandboxes.page(state=state, labels=labels, name=name, limit=limit, order=order, cursor=cursor)

        return AsyncPaginator(self._client, page, next_token)

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Returns information about a sandbox, by id or name."""
        return await self._client._transport.request(calls.sandboxes.info(sandbox_id))

    async def kill(self, sandbox_id: str) -> bool:
        """Ends a sandbox. Returns False if it does not exist or has already ended."""
        try:
            await self._client._transport.request(calls.sandboxes.kill(sandbox_id))
        except NotFoundException:
            return False
        return True

    async def set_timeout(self, sandbox_id: str, timeout: Duration) -> SandboxInfo:
        """Sets the timeout of a sandbox, counted from now; 0 ends it immediately."""
        return await self._client._transport.request(calls.sandboxes.set_timeout(sandbox_id, timeout))

    async def pause(self, sandbox_id: str) -> bool:
        """Pauses a sandbox. Returns False if it is already paused."""
        try:
            await self._client._transport.request(calls.sandboxes.pause(sandbox_id))
        except ConflictException as error:
            # The same code is used while it starts or ends, which is not a success.
            if error.code == "wrong_state" and (await self.get(sandbox_id)).state == "paused":
                return False
            raise
        return True

    async def resume(self, sandbox_id: str, timeout: Optional[Duration] = None) -> SandboxInfo:
        """Resumes a paused sandbox; a running one gets at least the given timeout."""
        return await self._client._transport.request(calls.sandboxes.resume(sandbox_id, timeout))


class AsyncTemplates:
    """Templates of sandboxes."""

    def __init__(self, client: AsyncBelljar) -> None:
        """Created by a client."""
        self._client = client

    def list(self, *, limit: Optional[int] = None, next_token: Optional[str] = None) -> AsyncPaginator[TemplateInfo]:
        """Lists the templates: the default one, then the others, oldest first.

        `limit` is the page size (1 to 100); without it there is a single page. `next_token` of an earlier list continues it.
        """
        return AsyncPaginator(self._client, lambda cursor: calls.admin.list_templates(limit, cursor), next_token)

    async def get(self, template: str) -> TemplateInfo:
        """Returns a template, by id or name."""
        return await self._client._transport.request(calls.admin.get_template(template))

    async def delete(self, template: str) -> bool:
        """Removes a template, by id or name. Returns False if there is none."""
        try:
            await self._client._transport.request(calls.admin.delete_template(template))
        except NotFoundException:
            return False
        return True

    def list_snapshots(self, sandbox_id: Optional[str] = None) -> AsyncPaginator[TemplateInfo]:
        """Lists the snapshots, of one sandbox if its id is given."""
        return AsyncPaginator(self._client, lambda _: calls.admin.list_snapshots(sandbox_id))

    async def delete_snapshot(self, snapshot_id: str) -> bool:
        """Removes a snapshot, by id or name. Returns False if there is none. Other templates are refused."""
        try:
            found = await self.get(snapshot_id)
        except TemplateNotFoundException:
            return False
        if found.kind != "snapshot":
            raise InvalidArgumentException(
                f"{snapshot_id} is a template and no snapshot; templates.delete removes it", field="snapshot_id"
            )
        return await self.delete(found.template_id)

    async def build(
        self,
        template: Union[Template, str],
        *,
        name: Optional[str] = None,
        mirror: Optional[str] = None,
        image: Optional[str] = None,
        fresh: bool = False,
        on_event: Optional[_io.EventCallback[BuildEvent]] = None,
    ) -> TemplateInfo:
        """Builds a template on the server; needs a key with the role admin. A failed step raises a `BuildException`.

        Args:
            template: A `Template`, or the text of a template file.
            name: Overrides the name in the template.
            mirror: A directory of packages on the server's machine.
            image: An OCI image layout, or a tar of one, on the server's machine.
            fresh: Whether to run steps even if their result is cached.
            on_event: Called with steps, lines of their output, and layers.
        """
        call = calls.admin.build_template(template, name=name, mirror=mirror, image=image, fresh=fresh)
        stream = await self._client._transport.events(call)
        try:
            while True:
                event = await stream.receive()
                if event is None:
                    raise ConnectionException("the connection broke while the template was being built; the build continues")
                if event.name == "error":
                    raise error_from_problem(event.data)
                if event.name == "template":
                    return TemplateInfo.from_json(event.data)
                if on_event is not None:
                    await _io.notify(on_event, BuildEvent.from_json(event.name, event.data))
        finally:
            await stream.close()

    async def export_file(self, template: str, local_path: LocalPath) -> int:
        """Writes a built template to a local file, and returns its size in bytes. Missing directories are created."""
        size = 0
        Path(local_path).parent.mkdir(parents=True, exist_ok=True)
        async with await self._client._transport.stream(calls.admin.export_template(template)) as stream:
            with open(local_path, "wb") as file:
                async for chunk in stream:
                    size += await _io.run_blocking(file.write, chunk)
        return size

    async def import_file(self, local_path: LocalPath, name: Optional[str] = None) -> TemplateInfo:
        """Imports a template from an exported file. A built template with the same name is replaced."""
        with open(local_path, "rb") as file:
            return await self._client._transport.request(calls.admin.import_template(name), _io.body_chunks(file))

    async def import_image(self, local_path: LocalPath, name: Optional[str] = None) -> TemplateInfo:
        """Imports an image from a tar of `docker save`, or of an OCI image layout; needs a key with the role admin.

        The name is that in the file, or `name`; of a file with several images, it selects one. Sandboxes start from the template
        that is returned.
        """
        with open(local_path, "rb") as file:
            return await self._client._transport.request(calls.admin.import_image(name), _io.body_chunks(file))


class AsyncVolumes:
    """Volumes: files that outlive sandboxes and that several sandboxes can mount: `Sandbox.create(volumes=[…])`."""

    def __init__(self, client: AsyncBelljar) -> None:
        """Created by a client."""
        self._client = client

    async def create(self, name: str, size: Optional[Size] = None) -> VolumeInfo:
        """Creates a volume. The name is unique in the tenant. Without a size, such as `1g`, the server's default applies."""
        return await self._client._transport.request(calls.admin.create_volume(name, size))

    async def list(self) -> List[VolumeInfo]:
        """Lists the volumes of the key's tenant, or all with a key of the role `admin`."""
        return await self._client._transport.request(calls.admin.list_volumes())

    async def get(self, volume: str) -> VolumeInfo:
        """Returns a volume by id or name."""
        return await self._client._transport.request(calls.admin.get_volume(volume))

    async def delete(self, volume: str) -> bool:
        """Removes a volume and its files. Returns False if there is none, and fails if a sandbox mounts it."""
        try:
            await self._client._transport.request(calls.admin.delete_volume(volume))
        except NotFoundException:
            return False
        return True

    def files(self, volume: str) -> AsyncVolumeFiles:
        """Returns the files of a volume, by id or name, for use without a sandbox."""
        return AsyncVolumeFiles(self._client._transport, volume_path(volume))


class AsyncKeys:
    """API keys."""

    def __init__(self, client: AsyncBelljar) -> None:
        """Created by a client."""
        self._client = client

    async def create(
        self,
        name: str,
        *,
        role: str = "user",
        tenant: Optional[str] = None,
        expires: Optional[Duration] = None,
        quotas: Optional[Mapping[str, Any]] = None,
        owner: Optional[str] = None,
        approval: Optional[str] = None,
    ) -> KeyInfo:
        """Creates a key. The secret is in `key` of the result, only this once.

        `role` is `admin`, `user`, `approver` or `read`. `expires` is its lifetime; unlimited if not given. `quotas` may contain
        `sandboxes`, `memory_bytes`, `disk_bytes`, `cpu_seconds_per_hour`, `executions_per_minute`, `network`, the
        ceiling of network policies (a mode, or a mapping with `presets` and `allow`), and `stored_secrets`, which is
        False if these may not use secrets stored on the server. `owner` is the person to whom it belongs, who cannot approve
        calls made with it; with `approval="always"` these wait until another person approves them, with
        `"on-risk"` or `"on-medium-risk"` those in which screening finds a high, or at least a medium risk.
        """
        call = calls.admin.create_key(
            name, role=role, tenant=tenant, expires=expires, quotas=quotas, owner=owner, approval=approval
        )
        return await self._client._transport.request(call)

    async def update(
        self,
        key_id: str,
        *,
        name: Optional[str] = None,
        role: Optional[str] = None,
        expires: Optional[Duration] = None,
        quotas: Optional[Mapping[str, Any]] = None,
        owner: Optional[str] = None,
        approval: Optional[str] = None,
    ) -> KeyInfo:
        """Changes a key, from its next request on; what is not given stays.

        `expires` counts from now; 0: it does not expire. `quotas` replace all earlier ones; missing ones are unlimited.
        An empty `owner` is none.
        """
        call = calls.admin.update_key(
            key_id, name=name, role=role, expires=expires, quotas=quotas, owner=owner, approval=approval
        )
        return await self._client._transport.request(call)

    def list(self, *, limit: Optional[int] = None, next_token: Optional[str] = None) -> AsyncPaginator[KeyInfo]:
        """Lists the keys, oldest first, without the secrets.

        `limit` is the page size (1 to 100); without it there is a single page. `next_token` of an earlier list continues it.
        """
        return AsyncPaginator(self._client, lambda cursor: calls.admin.list_keys(limit, cursor), next_token)

    async def revoke(self, key_id: str) -> bool:
        """Revokes a key. Returns False if there is none with this id."""
        try:
            await self._client._transport.request(calls.admin.revoke_key(key_id))
        except NotFoundException:
            return False
        return True


class AsyncApprovals:
    """Calls that wait until a person approves them."""

    def __init__(self, client: AsyncBelljar) -> None:
        """Created by a client."""
        self._client = client

    def list(
        self, *, state: Optional[str] = None, limit: Optional[int] = None, next_token: Optional[str] = None
    ) -> AsyncPaginator[ApprovalInfo]:
        """Lists approvals, newest first: all of the tenant for the role `approver`, else those of one's own calls.

        `state` is `pending`, `approved`, `denied`, `expired`, `cancelled` or `outcome_unknown`; all if not given. `limit` is
        the page size (1 to 100). `next_token` of an earlier list continues it.
        """
        return AsyncPaginator(self._client, lambda cursor: calls.admin.list_approvals(state, limit, cursor), next_token)

    async def get(self, approval_id: str) -> ApprovalInfo:
        """Returns an approval, with the call as it would run."""
        return await self._client._transport.request(calls.admin.get_approval(approval_id))

    async def approve(
        self,
        approval_id: str,
        *,
        note: Optional[str] = None,
        uses: Optional[int] = None,
        within: Optional[Duration] = None,
        scope: Optional[str] = None,
    ) -> ApprovalInfo:
        """Approves a call that waits, which then runs once. Another person than the one who made it has to do that.

        `uses` and `within` allow further calls of that person: so many with the one that waits, within this time. They are
        the same call (`scope="call"`), or any call of the same version of the tool (`scope="tool"`).
        """
        return await self._client._transport.request(calls.admin.approve(approval_id, note, uses, within, scope))

    async def deny(self, approval_id: str, *, note: Optional[str] = None) -> ApprovalInfo:
        """Denies a call that waits, or ends the further calls of an approval. The caller gets the note."""
        return await self._client._transport.request(calls.admin.deny(approval_id, note))


class AsyncSecrets:
    """Secrets on the server. Network policies refer to one as `${secrets.NAME}`; the gateway inserts its value into requests."""

    def __init__(self, client: AsyncBelljar) -> None:
        """Created by a client."""
        self._client = client

    async def create(
        self,
        name: str,
        value: str,
        *,
        hosts: Optional[Sequence[str]] = None,
        header: Optional[str] = None,
        metadata: Optional[Mapping[str, str]] = None,
    ) -> SecretInfo:
        """Stores a secret. No response contains its value.

        `hosts` are the only hosts that it may be sent to, such as `api.example.com` and `*.example.com`, and `header` the only
        header that it may be put into. Without hosts only this key and administrators may use it, for any host.
        """
        return await self._client._transport.request(calls.admin.create_secret(name, value, hosts, header, metadata))

    async def update(
        self,
        secret: str,
        value: str,
        *,
        hosts: Optional[Sequence[str]] = None,
        header: Optional[str] = None,
        metadata: Optional[Mapping[str, str]] = None,
    ) -> SecretInfo:
        """Changes a secret's value, including for running sandboxes that use it.

        `hosts` with their `header`, and `metadata`, are unchanged if not given. Sandboxes that use the secret for another host
        no longer reach that host.
        """
        return await self._client._transport.request(calls.admin.update_secret(secret, value, hosts, header, metadata))

    async def get(self, secret: str) -> SecretInfo:
        """Returns a secret, by name or id."""
        return await self._client._transport.request(calls.admin.get_secret(secret))

    def list(self, *, limit: Optional[int] = None, next_token: Optional[str] = None) -> AsyncPaginator[SecretInfo]:
        """Lists the secrets, sorted by name.

        `limit` is the page size (1 to 100). `next_token` of an earlier list continues it.
        """
        return AsyncPaginator(self._client, lambda cursor: calls.admin.list_secrets(limit, cursor), next_token)

    async def delete(self, secret: str) -> bool:
        """Removes a secret, by name or id. Returns False if there is none."""
        try:
            await self._client._transport.request(calls.admin.delete_secret(secret))
        except NotFoundException:
            return False
        return True


class AsyncNetworkPolicies:
    """Network policies: what they can be made of, and what one would reach."""

    def __init__(self, client: AsyncBelljar) -> None:
        """Created by a client."""
        self._client = client

    async def offer(self) -> NetworkOffer:
        """Returns the presets with their hosts, and the ceilings of the key's policies."""
        return await self._client._transport.request(calls.admin.network_offer())

    async def check(
        self, network: Optional[Network] = None, *, hosts: Sequence[str] = (), sandbox_id: Optional[str] = None
    ) -> NetworkForecast:
        """Decides about destinations by a policy, or by the one in force in a sandbox, given by id or name.

        `hosts` are at most 64, each as `HOST` (on port 443) or `HOST:PORT`. Nothing is connected, and no name is resolved. An
        invalid policy is no error: the result has its `problems`.
        """
        return await self._client._transport.request(calls.admin.check_network(network, hosts, sandbox_id))


class AsyncStoredTools:
    """Tools stored on the server, which models call."""

    def __init__(self, client: AsyncBelljar) -> None:
        """Created by a client."""
        self._client = client

    async def schema(
        self, name: str, vendor: str = "mcp", *, definition: Optional[Mapping[str, Any]] = None
    ) -> Mapping[str, Any]:
        """Returns the description of a tool, `NAME` or `NAME@VERSION`, in the form of `openai`, `anthropic` or `mcp`.

        With a definition it is the one that a tool of that name would have; nothing is stored. A definition is a mapping with
        `description` and `languages`, and optionally `session`, `approval`, `limits`, `network`, `template` and `timeout`.
        """
        return await self._client._transport.request(calls.admin.tool_schema(name, vendor, definition))


class AsyncAudit:
    """The audit log: who did what, in a chain of hashes."""

    def __init__(self, client: AsyncBelljar) -> None:
        """Created by a client."""
        self._client = client

    async def list(
        self,
        *,
        after: Optional[int] = None,
        limit: Optional[int] = None,
        sandbox: Optional[str] = None,
        action: Optional[str] = None,
        tenant: Optional[str] = None,
    ) -> AuditPage:
        """Returns the matching records after number `after`."""
        call = calls.admin.audit(after=after, limit=limit, sandbox=sandbox, action=action, tenant=tenant)
        return await self._client._transport.request(call)

    async def export(self) -> AsyncIterator[Mapping[str, Any]]:
        """Yields all records in order."""
        async with await self._client._transport.stream(calls.admin.export_audit()) as stream:
            rest = b""
            async for chunk in stream:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield json.loads(line)
            if rest.strip():
                yield json.loads(rest)

    async def verify(self) -> AuditVerdict:
        """Verifies the log; the result names the first invalid record, if any."""
        return await self._client._transport.request(calls.admin.verify_audit())
