"""Volumes and secrets without a client of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Mapping, Optional, Sequence

from .._calls._call import Size
from ..models import SecretInfo, VolumeInfo
from .client import Leased, shared_client
from .files import AsyncVolumeFiles

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._config import ConnectionOptions


class AsyncVolume:
    """Volumes: the methods of `AsyncBelljar.volumes`, which take the connection settings as arguments."""

    @staticmethod
    async def create(name: str, size: Optional[Size] = None, **connection: Unpack[ConnectionOptions]) -> VolumeInfo:
        """Creates a volume. Without a size, such as `1g`, the server's default applies."""
        async with Leased(None, connection) as client:
            return await client.volumes.create(name, size)

    @staticmethod
    async def list(**connection: Unpack[ConnectionOptions]) -> List[VolumeInfo]:
        """Lists the volumes."""
        async with Leased(None, connection) as client:
            return await client.volumes.list()

    @staticmethod
    async def get(volume: str, **connection: Unpack[ConnectionOptions]) -> VolumeInfo:
        """Returns a volume by id or name."""
        async with Leased(None, connection) as client:
            return await client.volumes.get(volume)

    @staticmethod
    async def delete(volume: str, **connection: Unpack[ConnectionOptions]) -> bool:
        """Removes a volume and its files. Returns False if there is none, and fails if a sandbox mounts it."""
        async with Leased(None, connection) as client:
            return await client.volumes.delete(volume)

    @staticmethod
    def files(volume: str, **connection: Unpack[ConnectionOptions]) -> AsyncVolumeFiles:
        """Returns the files of a volume, by id or name, for use without a sandbox."""
        return shared_client(connection).volumes.files(volume)


class AsyncSecret:
    """Secrets on the server: the methods of `AsyncBelljar.secrets`, which take the connection settings as arguments."""

    @staticmethod
    async def create(
        name: str,
        value: str,
        *,
        hosts: Optional[Sequence[str]] = None,
        header: Optional[str] = None,
        metadata: Optional[Mapping[str, str]] = None,
        **connection: Unpack[ConnectionOptions],
    ) -> SecretInfo:
        """Stores a secret for these hosts and this header. No response contains its value."""
        async with Leased(None, connection) as client:
            return await client.secrets.create(name, value, hosts=hosts, header=header, metadata=metadata)

    @staticmethod
    async def update(
        secret: str,
        value: str,
        *,
        hosts: Optional[Sequence[str]] = None,
        header: Optional[str] = None,
        metadata: Optional[Mapping[str, str]] = None,
        **connection: Unpack[ConnectionOptions],
    ) -> SecretInfo:
        """Changes a secret's value, including for running sandboxes that use it. The rest is unchanged if not given."""
        async with Leased(None, connection) as client:
            return await client.secrets.update(secret, value, hosts=hosts, header=header, metadata=metadata)

    @staticmethod
    async def get(secret: str, **connection: Unpack[ConnectionOptions]) -> SecretInfo:
        """Returns a secret, by name or id."""
        async with Leased(None, connection) as client:
            return await client.secrets.get(secret)

    @staticmethod
    async def list(**connection: Unpack[ConnectionOptions]) -> List[SecretInfo]:
        """Lists all secrets, sorted by name."""
        async with Leased(None, connection) as client:
            return await client.secrets.list().all()

    @staticmethod
    async def delete(secret: str, **connection: Unpack[ConnectionOptions]) -> bool:
        """Removes a secret, by name or id. Returns False if there is none."""
        async with Leased(None, connection) as client:
            return await client.secrets.delete(secret)
