import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Belljar, ConflictError, InvalidArgumentError, NotFoundError, Sandbox, Volume, type VolumeInfo } from "belljar";
import { LABELS, live, missingVolumes } from "./live.js";

/** Creates a volume for a test, and removes it afterwards. */
async function withVolume(use: (client: Belljar, volume: VolumeInfo) => Promise<void>): Promise<void> {
  const client = new Belljar();
  const volume = await client.volumes.create(`v-${randomUUID().slice(0, 12)}`, { size: "32m" });
  try {
    await use(client, volume);
  } finally {
    assert.equal(await client.volumes.delete(volume.volumeId), true);
  }
}

live(
  "volumes are created, listed and removed",
  () =>
    withVolume(async (client, volume) => {
      assert.deepEqual([volume.size, volume.sandboxes], [32 << 20, []]);
      assert.deepEqual([await client.volumes.get(volume.name), await client.volumes.get(volume.volumeId)], [volume, volume]);
      assert.ok((await client.volumes.list()).some(({ volumeId }) => volumeId === volume.volumeId));
      await assert.rejects(client.volumes.create(volume.name), (error) => error instanceof ConflictError && error.code === "name_taken");
      await assert.rejects(client.volumes.create("a b"), InvalidArgumentError);
      await assert.rejects(client.volumes.get("none"), NotFoundError);
      assert.equal(await client.volumes.delete("none"), false);
    }),
  missingVolumes,
);

live(
  "files of a volume, without a sandbox",
  () =>
    withVolume(async (client, volume) => {
      const files = client.volumes.files(volume.name);
      assert.equal((await files.write("d/a.txt", "hello", { mode: 0o640 })).mode, 0o640);
      assert.equal(await files.read("/d/a.txt", { start: 1, end: 3 }), "el");
      assert.deepEqual([await files.makeDir("d/e"), await files.makeDir("d/e")], [true, false]);
      assert.deepEqual(
        (await files.list(".", { depth: 2 })).map(({ path }) => path),
        ["d", "d/a.txt", "d/e"],
      );
      assert.equal((await files.chmod("d/a.txt", 0o600)).mode, 0o600);
      await files.rename("d/a.txt", "b.txt");
      assert.deepEqual([await files.exists("d/a.txt"), (await files.getInfo("b.txt")).size], [false, 5]);
      const directory = await mkdtemp(join(tmpdir(), "belljar-volumes-"));
      try {
        await writeFile(join(directory, "up"), "x".repeat(100_000));
        await files.upload(directory, "copied");
        await files.download("copied/up", join(directory, "down"));
        assert.equal(await readFile(join(directory, "down"), "utf8"), "x".repeat(100_000));
      } finally {
        await rm(directory, { recursive: true });
      }
      await files.remove("d");
      await assert.rejects(files.list("d"), NotFoundError);
      await assert.rejects(files.read("../etc/passwd"), InvalidArgumentError);
      await assert.rejects(client.volumes.files("none").exists("a"), (error) => error instanceof NotFoundError && error.code === "volume_not_found");
    }),
  missingVolumes,
);

live(
  "sandboxes share a volume",
  () =>
    withVolume(async (client, volume) => {
      {
        await using first = await Sandbox.create({ labels: LABELS, volumes: [{ name: volume.name, path: "/mnt/v" }] });
        assert.deepEqual((await first.getInfo()).volumes, [{ volumeId: volume.volumeId, name: volume.name, path: "/mnt/v", mode: "rw" }]);
        await first.commands.run("echo first > /mnt/v/a");
        await using second = await client.sandboxes.create({ labels: LABELS, volumes: [{ name: volume.volumeId, path: "/mnt/r", mode: "ro" }] });
        assert.equal((await second.commands.run("cat /mnt/r/a; touch /mnt/r/b || echo refused")).stdout, "first\nrefused\n");
        assert.deepEqual((await client.volumes.get(volume.name)).sandboxes.sort(), [first.sandboxId, second.sandboxId].sort());
        await assert.rejects(client.volumes.delete(volume.name), (error) => error instanceof ConflictError && error.code === "volume_in_use");
      }
      assert.equal(await client.volumes.files(volume.name).read("a"), "first\n");
    }),
  missingVolumes,
);

live(
  "volumes without a client",
  async () => {
    const made = await Volume.create(`v-${randomUUID().slice(0, 12)}`, { size: "32m" });
    try {
      assert.deepEqual(await Volume.get(made.name), made);
      assert.ok((await Volume.list()).some(({ volumeId }) => volumeId === made.volumeId));
      await Volume.files(made.name).write("a", "b");
      assert.equal(await Volume.files(made.name).read("a"), "b");
    } finally {
      assert.equal(await Volume.delete(made.name), true);
    }
    assert.equal(await Volume.delete(made.name), false);
  },
  missingVolumes,
);
