"""Volumes, with both clients."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any, AsyncIterator

import pytest
import pytest_asyncio

from belljar import ConflictException, InvalidArgumentException, NotFoundException, VolumeInfo

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def volume(client: Any, real: None) -> AsyncIterator[VolumeInfo]:
    """A volume for one test."""
    if os.geteuid() != 0:
        pytest.skip("SKIPPED: volumes are mounted by a server of root")
    made = await client.volumes.create(f"v-{uuid.uuid4().hex[:12]}", "32m")
    yield made
    assert await client.volumes.delete(made.volume_id) is True


async def test_life(client: Any, volume: VolumeInfo) -> None:
    assert (volume.size, volume.tenant, volume.sandboxes) == (32 << 20, "default", ())
    assert await client.volumes.get(volume.name) == await client.volumes.get(volume.volume_id) == volume
    assert volume in await client.volumes.list()
    with pytest.raises(ConflictException) as refused:
        await client.volumes.create(volume.name)
    assert refused.value.code == "name_taken"
    with pytest.raises(InvalidArgumentException):
        await client.volumes.create("a b")
    with pytest.raises(NotFoundException):
        await client.volumes.get("none")
    assert await client.volumes.delete("none") is False


async def test_without_a_client(api: Any, real: None) -> None:
    if os.geteuid() != 0:
        pytest.skip("SKIPPED: volumes are mounted by a server of root")
    name = f"v-{uuid.uuid4().hex[:12]}"
    made = await api.Volume.create(name, "32m")
    try:
        assert await api.Volume.get(name) == made and made in await api.Volume.list()
        files = api.Volume.files(name)
        await files.write("a", "b")
        assert await files.read("a") == "b"
    finally:
        assert await api.Volume.delete(name) is True
    assert await api.Volume.delete(name) is False


async def test_files(client: Any, volume: VolumeInfo, tmp_path: Path) -> None:
    files = client.volumes.files(volume.name)
    assert (await files.write("d/a.txt", "hello", mode=0o640)).mode == 0o640
    assert await files.read("d/a.txt") == "hello"
    assert await files.read("/d/a.txt", "bytes", start=1, end=3) == b"el"
    assert await files.make_dir("d/e") is True
    assert await files.make_dir("d/e") is False
    assert [entry.path for entry in await files.list(".", depth=2)] == ["d", "d/a.txt", "d/e"]
    assert (await files.chmod("d/a.txt", 0o600)).permissions == "rw-------"
    await files.rename("d/a.txt", "b.txt")
    assert not await files.exists("d/a.txt") and (await files.get_info("b.txt")).size == 5
    (tmp_path / "up").write_bytes(b"x" * 100_000)
    await files.upload(tmp_path / "up", "up")
    assert await files.download("up", tmp_path / "down") == 100_000
    assert (tmp_path / "down").read_bytes() == b"x" * 100_000
    await files.remove("d")
    with pytest.raises(NotFoundException):
        await files.list("d")
    with pytest.raises(InvalidArgumentException, match="lead out of the volume"):
        await files.read("../etc/passwd")
    with pytest.raises(NotFoundException) as missing:
        await client.volumes.files("none").exists("a")
    assert missing.value.code == "volume_not_found"


async def test_in_sandboxes(api: Any, client: Any, volume: VolumeInfo) -> None:
    mounts = [{"name": volume.name, "path": "/mnt/v"}]
    async with await api.Sandbox.create(timeout=60, volumes=mounts) as first:
        await first.commands.run("echo first > /mnt/v/a")
        [mounted] = first.info.volumes
        assert (mounted.volume_id, mounted.name, mounted.path, mounted.mode) == (volume.volume_id, volume.name, "/mnt/v", "rw")
        reading = [{"name": volume.volume_id, "path": "/mnt/r", "mode": "ro"}]
        async with await client.sandboxes.create(timeout=60, volumes=reading) as second:
            assert (await second.commands.run("cat /mnt/r/a; touch /mnt/r/b || echo refused")).stdout == "first\nrefused\n"
            assert set((await client.volumes.get(volume.name)).sandboxes) == {first.sandbox_id, second.sandbox_id}
        with pytest.raises(ConflictException) as refused:
            await client.volumes.delete(volume.name)
        assert refused.value.code == "volume_in_use"
    assert await client.volumes.files(volume.name).read("a") == "first\n"
    with pytest.raises(NotFoundException):
        await client.sandboxes.create(timeout=60, volumes=[{"name": "none", "path": "/mnt/v"}])
