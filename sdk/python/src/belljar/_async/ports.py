"""Ports of a sandbox that can be reached from outside."""

from __future__ import annotations

from .. import _calls as calls
from .._calls._call import Duration
from ..errors import PortNotFoundException
from ..models import PortInfo, PortList, Token
from ._transport import AsyncTransport


class AsyncPorts:
    """The ports of a sandbox. A port can be reached only after it is published."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str) -> None:
        """Created by a sandbox."""
        self._transport = transport
        self._sandbox_id = sandbox_id

    async def publish(self, port: int, *, public: bool = False) -> PortInfo:
        """Publishes a port: with a credential, or without one if `public`."""
        return await self._transport.request(calls.sandboxes.publish_port(self._sandbox_id, port, public))

    async def list(self) -> PortList:
        """Returns the published ports, and the listening ones."""
        return await self._transport.request(calls.sandboxes.list_ports(self._sandbox_id))

    async def unpublish(self, port: int) -> bool:
        """Unpublishes a port. Returns False if it was not published."""
        try:
            await self._transport.request(calls.sandboxes.unpublish_port(self._sandbox_id, port))
        except PortNotFoundException:
            return False
        return True

    async def create_token(self, port: int, expires: Duration = 3600) -> Token:
        """Creates a temporary token for this port only. Its `url` contains it."""
        return await self._transport.request(calls.sandboxes.port_token(self._sandbox_id, port, expires))
