// Files, directories, watching, signed addresses.
import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { FileNotFoundError, FilesystemEventType, FileType, InvalidArgumentError, SandboxError } from "e2b";
import { shared, until } from "./shared.mjs";

const box = shared();
let files;
let place;
let number = 0;

beforeEach(async () => {
  ({ files } = box.sandbox);
  number += 1;
  place = `/home/user/${number}`;
  assert.equal(await files.makeDir(place), true);
});

test("write and read, in every format", async () => {
  const info = await files.write(`${place}/a.txt`, "hello ü");
  assert.deepEqual([info.path, info.name, info.type], [`${place}/a.txt`, "a.txt", FileType.FILE]);
  const bytes = new TextEncoder().encode("hello ü");
  assert.equal(await files.read(`${place}/a.txt`), "hello ü");
  assert.deepEqual(await files.read(`${place}/a.txt`, { format: "bytes" }), bytes);
  assert.equal(await (await files.read(`${place}/a.txt`, { format: "blob" })).text(), "hello ü");
  const stream = await files.read(`${place}/a.txt`, { format: "stream" });
  assert.equal(await new Response(stream).text(), "hello ü");
});

const contents = {
  text: () => "text",
  nothing: () => "",
  bytes: () => new Uint8Array([0, 255, 1]).buffer,
  blob: () => new Blob(["from a blob"]),
  stream: () => new Blob(["from a stream"]).stream(),
  large: () => "x".repeat(3_000_000),
};
for (const [name, content] of Object.entries(contents)) {
  test(`contents: ${name}`, async () => {
    const expected = new Uint8Array(await new Response(content()).arrayBuffer());
    for (const options of [{}, { gzip: true }, { useOctetStream: true }]) {
      await files.write(`${place}/content`, content(), options);
      assert.deepEqual(await files.read(`${place}/content`, { format: "bytes", gzip: options.gzip }), expected);
    }
  });
}

test("overwrite", async () => {
  await files.write(`${place}/a.txt`, "a longer text");
  await files.write(`${place}/a.txt`, "short");
  assert.equal(await files.read(`${place}/a.txt`), "short");
});

test("paths", async () => {
  assert.equal((await files.write("relative.txt", "relative")).path, "/home/user/relative.txt");
  assert.equal(await files.read("~/relative.txt"), "relative");
  await files.write(`/tmp/deep/with spaces/ü.txt`, "deep");
  assert.equal(await files.read(`/tmp/deep/with spaces/ü.txt`), "deep");
});

test("many at once", async () => {
  const entries = [0, 1, 2].map((index) => ({ path: `${place}/d${index}/f.txt`, data: `content ${index}` }));
  const written = await files.write(entries);
  assert.deepEqual(written.map((info) => info.path), entries.map((entry) => entry.path));
  assert.equal(await files.read(`${place}/d2/f.txt`), "content 2");
  assert.equal((await files.writeFiles(entries)).length, 3);
  assert.deepEqual(await files.write([]), []);
});

test("a missing file", async () => {
  for (const call of [files.read, files.getInfo, files.list]) {
    await assert.rejects(call.call(files, `${place}/none`), FileNotFoundError);
  }
  await assert.rejects(files.rename(`${place}/none`, `${place}/other`), FileNotFoundError);
  assert.equal(await files.exists(`${place}/none`), false);
});

test("a directory instead of a file", async () => {
  await assert.rejects(files.read(place), SandboxError);
  await assert.rejects(files.write(place, "x"), SandboxError);
});

test("info", async () => {
  await files.write(`${place}/a.txt`, "four");
  const info = await files.getInfo(`${place}/a.txt`);
  assert.deepEqual([info.name, info.type, info.size, info.path], ["a.txt", FileType.FILE, 4, `${place}/a.txt`]);
  assert.deepEqual([info.mode, info.permissions, info.owner, info.group], [0o644, "-rw-r--r--", "user", "user"]);
  assert.ok(Math.abs(info.modifiedTime.getTime() - Date.now()) < 600_000);
  assert.equal((await files.getInfo(place)).type, FileType.DIR);
});

test("metadata", async () => {
  const metadata = { author: "ada" };
  assert.deepEqual((await files.write(`${place}/a.txt`, "x", { metadata })).metadata, metadata);
  assert.deepEqual((await files.getInfo(`${place}/a.txt`)).metadata, metadata);
  assert.deepEqual((await files.list(place)).map((entry) => entry.metadata), [metadata]);
  await files.write(`${place}/a.txt`, "y");
  assert.equal((await files.getInfo(`${place}/a.txt`)).metadata, undefined);
});

test("a symbolic link", async () => {
  await files.write(`${place}/a.txt`, "a");
  await box.sandbox.commands.run(`ln -s a.txt ${place}/link`);
  const info = await files.getInfo(`${place}/link`);
  assert.deepEqual([info.type, info.symlinkTarget], [FileType.FILE, `${place}/a.txt`]);
});

test("list", async () => {
  await files.write(`${place}/d/e/f.txt`, "x");
  await files.write(`${place}/a.txt`, "x");
  const names = async (options) => (await files.list(place, options)).map((entry) => entry.path.slice(place.length + 1)).sort();
  assert.deepEqual(await names(), ["a.txt", "d"]);
  assert.deepEqual(await names({ depth: 2 }), ["a.txt", "d", "d/e"]);
  assert.deepEqual(await names({ depth: 3 }), ["a.txt", "d", "d/e", "d/e/f.txt"]);
  await assert.rejects(files.list(`${place}/a.txt`), InvalidArgumentError);
  await assert.rejects(files.list(place, { depth: 0 }), InvalidArgumentError);
});

test("directories", async () => {
  assert.equal(await files.makeDir(`${place}/x/y`), true);
  assert.equal(await files.makeDir(`${place}/x/y`), false);
  assert.equal(await files.exists(`${place}/x/y`), true);
  await files.write(`${place}/file`, "x");
  await assert.rejects(files.makeDir(`${place}/file`), InvalidArgumentError);
});

test("rename and remove", async () => {
  await files.write(`${place}/a.txt`, "moved");
  const info = await files.rename(`${place}/a.txt`, `${place}/b.txt`);
  assert.equal(info.path, `${place}/b.txt`);
  assert.equal(await files.read(`${place}/b.txt`), "moved");
  await files.remove(`${place}/b.txt`);
  assert.equal(await files.exists(`${place}/b.txt`), false);
  await files.remove(`${place}/b.txt`);
  await files.write(`${place}/d/e.txt`, "x");
  await files.remove(`${place}/d`);
  assert.equal(await files.exists(`${place}/d`), false);
});

test("a new file causes three events", async () => {
  const events = [];
  const handle = await files.watchDir(place, (event) => void events.push(event));
  await files.write(`${place}/new.txt`, "x");
  await until("the write", () => events.some((event) => event.type === FilesystemEventType.WRITE));
  assert.deepEqual(events.map((event) => event.type), ["create", "chmod", "write"]);
  assert.ok(events.every((event) => event.name === "new.txt"));
  await handle.stop();
});

test("events of renames and removals", async () => {
  await files.write(`${place}/old.txt`, "x");
  const events = [];
  const handle = await files.watchDir(place, (event) => void events.push(`${event.type} ${event.name}`));
  await files.rename(`${place}/old.txt`, `${place}/new.txt`);
  await files.remove(`${place}/new.txt`);
  await until("the removal", () => events.includes("remove new.txt"));
  assert.ok(events.includes("rename old.txt"));
  await handle.stop();
});

test("events below, with their entries", async () => {
  const events = [];
  await files.makeDir(`${place}/sub`);
  const handle = await files.watchDir(place, (event) => void events.push(event), { recursive: true, includeEntry: true });
  await files.write(`${place}/sub/deep.txt`, "x");
  await until("the event", () => events.some((event) => event.name === "sub/deep.txt" && event.entry?.path === `${place}/sub/deep.txt`));
  await handle.stop();
});

test("a stopped watch", async () => {
  let ended;
  const end = new Promise((resolve) => (ended = resolve));
  const handle = await files.watchDir(place, () => undefined, { onExit: ended });
  await handle.stop();
  await end;
});

test("invalid watches", async () => {
  await assert.rejects(files.watchDir(`${place}/none`, () => undefined), FileNotFoundError);
  await files.write(`${place}/file`, "x");
  await assert.rejects(files.watchDir(`${place}/file`, () => undefined), InvalidArgumentError);
});

test("users", async () => {
  await files.write(`${place}/a.txt`, "x", { user: "user" });
  assert.equal(await files.read(`${place}/a.txt`, { user: "user" }), "x");
  await assert.rejects(files.read(`${place}/a.txt`, { user: "root" }));
});

test("signed addresses", async () => {
  const to = await box.sandbox.uploadUrl(`${place}/up.txt`, { useSignatureExpiration: 600 });
  const form = new FormData();
  form.append("file", new Blob(["uploaded"]), "up.txt");
  assert.equal((await fetch(to, { method: "POST", body: form })).status, 200);
  assert.equal(await files.read(`${place}/up.txt`), "uploaded");
  const from = await box.sandbox.downloadUrl(`${place}/up.txt`);
  assert.equal(await (await fetch(from)).text(), "uploaded");
});

test("invalid signatures", async () => {
  await files.write(`${place}/secret.txt`, "secret");
  const over = await box.sandbox.downloadUrl(`${place}/secret.txt`, { useSignatureExpiration: -60 });
  const good = await box.sandbox.downloadUrl(`${place}/secret.txt`, { useSignatureExpiration: 60 });
  const other = await box.sandbox.downloadUrl(`${place}/other.txt`, { useSignatureExpiration: 60 });
  const unsigned = new URL(good);
  unsigned.searchParams.delete("signature");
  const longer = new URL(good);
  longer.searchParams.set("signature_expiration", `${Math.ceil(Date.now() / 1000) + 6000}`);
  const moved = new URL(other);
  moved.searchParams.set("path", `${place}/secret.txt`);
  for (const address of [over, unsigned, longer, moved]) {
    const answer = await fetch(address);
    assert.equal(answer.status, 401);
    assert.equal((await answer.json()).code, 401);
  }
  // A signature for reading does not allow writing.
  assert.equal((await fetch(good, { method: "POST", body: "x", headers: { "Content-Type": "application/octet-stream" } })).status, 401);
});
