// Volumes: files that outlive sandboxes, mounted into several.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, describe, test } from "node:test";
import { AuthenticationError, Sandbox, Volume, VolumeError, VolumeNotFoundError, VolumePathNotFoundError } from "e2b";
import { MISSING } from "./shared.mjs";

const fresh = () => `volume-js-${randomUUID().slice(0, 8)}`;

/** Returns a predicate for errors of a class with a message. */
const matches = (kind, text) => (error) => error instanceof kind && text.test(error.message);

describe("volumes", () => {
  let volume;
  before(async () => {
    volume = await Volume.create(fresh());
  });
  after(() => Volume.destroy(volume.volumeId));

  test("volume lifecycle", async () => {
    const name = fresh();
    const made = await Volume.create(name);
    assert.equal(made.name, name);
    assert.ok((await Volume.list()).some((one) => one.volumeId === made.volumeId && one.name === name));
    assert.equal((await Volume.getInfo(made.volumeId)).name, name);
    await made.writeFile("a.txt", "hello");
    assert.equal(await (await Volume.connect(made.volumeId)).readFile("/a.txt"), "hello");
    assert.equal(await Volume.destroy(made.volumeId), true);
    assert.equal(await Volume.destroy(made.volumeId), false);
    await assert.rejects(Volume.connect(made.volumeId), VolumeNotFoundError);
    await assert.rejects(made.readFile("a.txt"), VolumePathNotFoundError);
  });

  test("names", async () => {
    await assert.rejects(Volume.create(volume.name), matches(VolumeError, /already exists/));
    for (const name of ["", "a b", "../up", "x".repeat(129)]) {
      await assert.rejects(Volume.create(name), matches(VolumeError, /name/));
    }
  });

  test("sandboxes share a volume", async () => {
    const first = await Sandbox.create({ volumeMounts: { "/mnt/data": volume } });
    const second = await Sandbox.create({ volumeMounts: { "/home/user/shared": volume.name } });
    try {
      await first.commands.run("echo first > /mnt/data/a");
      await second.commands.run("echo second >> shared/a");
      assert.equal(await first.files.read("/mnt/data/a"), "first\nsecond\n");
      assert.equal(await volume.readFile("a"), "first\nsecond\n");
      assert.deepEqual((await first.getInfo()).volumeMounts, [{ name: volume.name, path: "/mnt/data" }]);
      await assert.rejects(Volume.destroy(volume.volumeId), matches(VolumeError, /in use/));
    } finally {
      await Promise.all([first.kill(), second.kill()]);
    }
  });

  test("invalid mounts are refused", async () => {
    for (const [path, name] of [["/mnt/a", "none"], ["relative", volume], ["/", volume], ["/usr/a", volume], ["/a/../b", volume]]) {
      await assert.rejects(Sandbox.create({ volumeMounts: { [path]: name } }), /400: .*volume/);
    }
  });

  test("contents", async () => {
    const bytes = new Uint8Array([0, 255, 10, 13]);
    const large = "x".repeat(3_000_000);
    for (const data of ["", "text ü", large, bytes.buffer, new Blob([bytes]), new Blob(["in pieces"]).stream()]) {
      const written = await volume.writeFile("deep/er/content", data);
      assert.deepEqual([written.path, written.name, written.type], ["/deep/er/content", "content", "file"]);
    }
    assert.equal(await volume.readFile("deep/er/content"), "in pieces");
    await volume.writeFile("content", bytes.buffer);
    assert.deepEqual(await volume.readFile("content", { format: "bytes" }), bytes);
    assert.deepEqual(new Uint8Array(await (await volume.readFile("content", { format: "blob" })).arrayBuffer()), bytes);
    const pieces = [];
    for await (const piece of await volume.readFile("content", { format: "stream" })) {
      pieces.push(...piece);
    }
    assert.deepEqual(pieces, [...bytes]);
    await assert.rejects(volume.writeFile("content", "no", { force: false }), matches(VolumeError, /exists/));
  });

  test("directories and entry metadata", async () => {
    const made = await volume.makeDir("d", { mode: 0o750, uid: 5, gid: 6 });
    assert.deepEqual([made.path, made.type, made.mode, made.uid, made.gid], ["/d", "directory", 0o750, 5, 6]);
    await assert.rejects(volume.makeDir("d"), matches(VolumeError, /exists/));
    await assert.rejects(volume.makeDir("d/e/f"), VolumePathNotFoundError);
    await volume.makeDir("d/e/f", { force: true });
    await volume.writeFile("d/a", "x", { mode: 0o600 });
    const paths = (entries) => entries.map(({ path }) => path);
    assert.deepEqual(paths(await volume.list("d")), ["/d/a", "/d/e"]);
    assert.deepEqual(paths(await volume.list("/d", { depth: 2 })), ["/d/a", "/d/e", "/d/e/f"]);
    const changed = await volume.updateMetadata("d/a", { mode: 0o444, uid: 7 });
    assert.deepEqual([changed.mode, changed.uid, changed.gid], [0o444, 7, 1000]);
    const info = await volume.getInfo("d/a");
    assert.ok(info.mtime instanceof Date && Math.abs(info.mtime.getTime() - Date.now()) < 60_000);
    assert.deepEqual(info, changed);
    assert.deepEqual([await volume.exists("d/a"), await volume.exists("d/none")], [true, false]);
    await volume.remove("d/a");
    await volume.remove("d");
    await assert.rejects(volume.remove("d"), VolumePathNotFoundError);
    await assert.rejects(volume.list("d"), VolumePathNotFoundError);
    await assert.rejects(volume.updateMetadata("d", { mode: 0o700 }), VolumePathNotFoundError);
  });

  test("bad input", async () => {
    for (const path of ["../etc/passwd", "/../../etc/passwd", "a/../../b"]) {
      for (const attempt of [() => volume.readFile(path), () => volume.writeFile(path, "x"), () => volume.list(path), () => volume.getInfo(path), () => volume.makeDir(path), () => volume.remove(path)]) {
        await assert.rejects(attempt(), matches(VolumeError, /lead out of the volume/));
      }
    }
    const other = await Volume.create(fresh());
    try {
      await volume.writeFile("secret", "secret");
      await assert.rejects(new Volume(volume.volumeId, volume.name, "junk").readFile("secret"), AuthenticationError);
      await assert.rejects(new Volume(volume.volumeId, volume.name, other.token).readFile("secret"), VolumePathNotFoundError);
    } finally {
      await Volume.destroy(other.volumeId);
    }
    await assert.rejects(Volume.getInfo(MISSING), VolumeNotFoundError);
    assert.equal(await Volume.destroy(MISSING), false);
  });

  test("an interrupted upload keeps the old file", async () => {
    await volume.writeFile("kept", "old");
    const broken = new ReadableStream({
      pull(controller) {
        controller.enqueue(new Uint8Array(1000));
        controller.error(new Error("interrupted"));
      },
    });
    await assert.rejects(volume.writeFile("kept", broken));
    assert.equal(await volume.readFile("kept"), "old");
  });
});
