import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { chmod, mkdir, mkdtemp, readFile, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ConflictError, ForbiddenError, InvalidArgumentError, NotFoundError, SandboxError, type WatchEvent } from "belljar";
import { live, shared } from "./live.js";
import { collect, until } from "./wait.js";

const at = shared();
const sha = (bytes: Uint8Array): string => createHash("sha256").update(bytes).digest("hex");

async function temporary(run: (directory: string) => Promise<void>): Promise<void> {
  const directory = await mkdtemp(join(tmpdir(), "belljar-sdk-"));
  try {
    await run(directory);
  } finally {
    await rm(directory, { recursive: true });
  }
}

live("what is written is read, in every form", async () => {
  const { files } = at.sandbox;
  const info = await files.write("forms/a.txt", "grüße\n");
  assert.deepEqual([info.name, info.kind, info.size, info.mode], ["a.txt", "file", 8, 0o644]);
  assert.equal(await files.read("forms/a.txt"), "grüße\n");
  assert.equal(await files.read("/home/user/forms/a.txt", { format: "text" }), "grüße\n");
  assert.deepEqual(Buffer.from(await files.read("forms/a.txt", { format: "bytes" })), Buffer.from("grüße\n"));
  assert.equal(await (await files.read("forms/a.txt", { format: "blob" })).text(), "grüße\n");
  assert.equal(Buffer.from(await collect(await files.read("forms/a.txt", { format: "stream" }))).toString(), "grüße\n");
});

live("every kind of data is written", async () => {
  const { files } = at.sandbox;
  const bytes = new Uint8Array(randomBytes(1000));
  for (const data of [bytes, bytes.buffer, new Blob([bytes]), new Blob([bytes]).stream()]) {
    await files.write("kinds.bin", data);
    assert.deepEqual(await files.read("kinds.bin", { format: "bytes" }), bytes);
  }
  await files.write("kinds.bin", "");
  assert.equal(await files.read("kinds.bin"), "");
});

live("a large file goes there and back as a stream", async () => {
  const { files } = at.sandbox;
  const piece = new Uint8Array(randomBytes(1024 * 1024));
  const hash = createHash("sha256");
  let left = 24;
  await files.write(
    "large.bin",
    new ReadableStream<Uint8Array>({
      pull(controller) {
        if (left-- > 0) {
          hash.update(piece);
          controller.enqueue(piece.slice());
        } else {
          controller.close();
        }
      },
    }),
  );
  const sum = (await at.sandbox.commands.run("sha256sum large.bin")).stdout.split(" ")[0];
  assert.equal(sum, hash.digest("hex"));
  const back = createHash("sha256");
  for await (const chunk of await files.read("large.bin", { format: "stream" })) {
    back.update(chunk);
  }
  assert.equal(back.digest("hex"), sum);
  await files.remove("large.bin");
});

live("a stream that is left early does no harm", async () => {
  const { files } = at.sandbox;
  await files.write("left.bin", new Uint8Array(4 * 1024 * 1024));
  const reader = (await files.read("left.bin", { format: "stream" })).getReader();
  assert.equal((await reader.read()).done, false);
  await reader.cancel();
  assert.equal((await files.getInfo("left.bin")).size, 4 * 1024 * 1024);
});

live("an upload that breaks leaves the old file", async () => {
  const { files } = at.sandbox;
  await files.write("kept.txt", "old");
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      controller.enqueue(new Uint8Array(100_000));
    },
    pull(controller) {
      controller.error(new RangeError("the source broke"));
    },
  });
  await assert.rejects(files.write("kept.txt", body), SandboxError);
  assert.equal(await files.read("kept.txt"), "old");
});

live("parts of a file", async () => {
  const { files } = at.sandbox;
  await files.write("digits.txt", "0123456789");
  assert.equal(await files.read("digits.txt", { start: 3, end: 6 }), "345");
  assert.equal(await files.read("digits.txt", { start: 8 }), "89");
  assert.equal(await files.read("digits.txt", { end: 2 }), "01");
  await assert.rejects(files.read("digits.txt", { start: 100 }), (error) => error instanceof InvalidArgumentError && error.code === "range_not_satisfiable");
});

live("writing at the end, in place, and only if it is new", async () => {
  const { files } = at.sandbox;
  await files.write("place.txt", "0123456789");
  await files.write("place.txt", "ab", { append: true });
  await files.write("place.txt", "XY", { offset: 2 });
  assert.equal(await files.read("place.txt"), "01XY456789ab");
  await assert.rejects(files.write("place.txt", "x", { exclusive: true }), (error) => error instanceof ConflictError && error.code === "path_exists");
  await files.write("new.txt", "x", { exclusive: true });
  await assert.rejects(files.write("no/such/dir/a", "x", { makeParents: false }), NotFoundError);
});

live("permission bits", async () => {
  const { files, commands } = at.sandbox;
  await files.write("bin/tool", "#!/bin/sh\necho works\n", { mode: 0o755 });
  assert.equal((await commands.run("bin/tool")).stdout, "works\n");
  assert.equal((await files.chmod("bin/tool", "0600")).mode, 0o600);
  assert.equal((await files.getInfo("bin/tool")).mode, 0o600);
});

live("several files at once", async () => {
  const { files } = at.sandbox;
  const entries = Array.from({ length: 25 }, (_, index) => ({ path: `many/${index}/file.txt`, data: `content ${index}` }));
  const infos = await files.write([...entries, { path: "many/run", data: "", mode: 0o700 }]);
  assert.equal(infos.length, 26);
  assert.equal(infos[25]?.mode, 0o700);
  for (const entry of entries) {
    assert.equal(await files.read(entry.path), entry.data);
  }
});

live("directories are made, listed and removed", async () => {
  const { files } = at.sandbox;
  assert.equal(await files.makeDir("tree/a/b"), true);
  assert.equal(await files.makeDir("tree/a/b"), false);
  await files.write("tree/x.txt", "x");
  await files.write("tree/a/y.txt", "yy");
  const flat = await files.list("tree");
  assert.deepEqual(flat.map((entry) => [entry.name, entry.kind, entry.path]), [["a", "directory", "tree/a"], ["x.txt", "file", "tree/x.txt"]]);
  const deep = await files.list("tree", { depth: 5 });
  assert.deepEqual(deep.map((entry) => entry.path).sort(), ["tree/a", "tree/a/b", "tree/a/y.txt", "tree/x.txt"]);
  assert.equal(await files.read(deep.find((entry) => entry.name === "y.txt")?.path ?? ""), "yy");
  await assert.rejects(files.remove("tree", { recursive: false }), SandboxError);
  await files.remove("tree");
  assert.equal(await files.exists("tree"), false);
  await assert.rejects(files.remove("tree"), (error) => error instanceof NotFoundError && error.code === "path_not_found");
});

live("a list of very many entries comes in pages", async () => {
  await at.sandbox.commands.run("mkdir -p crowd && cd crowd && seq 1 250 | xargs touch");
  const names: string[] = [];
  for await (const entry of at.sandbox.files.iterate("crowd", { pageSize: 100 })) {
    names.push(entry.name);
  }
  assert.equal(new Set(names).size, 250);
});

live("what is at a path", async () => {
  const { files } = at.sandbox;
  await at.sandbox.commands.run("mkdir -p kinds && cd kinds && echo x > file && ln -sf file link && ln -sf nowhere dangling && mkfifo -m 600 pipe");
  const kinds = Object.fromEntries((await files.list("kinds")).map((entry) => [entry.name, entry.kind]));
  assert.deepEqual(kinds, { dangling: "symlink", file: "file", link: "symlink", pipe: "fifo" });
  assert.equal((await files.getInfo("kinds/link")).kind, "file");
  const link = await files.getInfo("kinds/link", { follow: false });
  assert.deepEqual([link.kind, link.symlinkTarget], ["symlink", "file"]);
  assert.ok(Math.abs(link.modifiedAt.getTime() - Date.now()) < 600_000);
  assert.equal(await files.exists("kinds/file"), true);
  assert.equal(await files.exists("kinds/dangling"), true);
  assert.equal(await files.exists("kinds/nothing"), false);
  for (const path of ["kinds", "kinds/pipe"]) {
    await assert.rejects(files.read(path), (error) => error instanceof ConflictError && error.code === "not_regular", path);
  }
});

live("moving", async () => {
  const { files } = at.sandbox;
  await files.write("from.txt", "1");
  await files.write("taken.txt", "2");
  await assert.rejects(files.rename("from.txt", "taken.txt"), (error) => error instanceof ConflictError && error.code === "path_exists");
  await files.rename("from.txt", "taken.txt", { overwrite: true });
  assert.equal(await files.read("taken.txt"), "1");
  assert.equal(await files.exists("from.txt"), false);
  await assert.rejects(files.rename("from.txt", "other.txt"), NotFoundError);
});

live("what may not be read or written says so", async () => {
  const { files } = at.sandbox;
  await assert.rejects(files.write("/usr/bin/evil", "x"), (error) => error instanceof ForbiddenError || error instanceof SandboxError);
  await assert.rejects(files.read("no-such-file"), (error) => error instanceof NotFoundError && error.code === "path_not_found");
  await assert.rejects(files.read("a\0b"), InvalidArgumentError);
});

live("names of any bytes", async () => {
  const { files } = at.sandbox;
  const odd = ["names/with space", "names/ü€🔔", "names/100%25", "names/a?b#c&d=e+f", 'names/"quoted"', "names/line\nend", "names/-dash"];
  for (const path of odd) {
    await files.write(path, path);
    assert.equal(await files.read(path), path);
  }
  assert.deepEqual((await files.list("names")).map((entry) => entry.path).sort(), [...odd].sort());
  const bytes = Buffer.concat([Buffer.from("names-raw/"), Buffer.from([0xff, 0xfe])]);
  await files.write(new Uint8Array(bytes), "raw");
  const [raw] = await files.list("names-raw");
  assert.deepEqual(Buffer.from(raw?.pathBytes ?? []), bytes);
  assert.equal(await files.read(raw?.pathBytes ?? ""), "raw");
  await files.remove(new Uint8Array(bytes));
});

live("searching by name and by content", async () => {
  const { files } = at.sandbox;
  await files.write([
    { path: "src/a.py", data: "import os\n\ndef needle():\n    pass\n" },
    { path: "src/b.py", data: "NEEDLE = 1\n" },
    { path: "src/c.txt", data: "needle\n" },
  ]);
  const byName = await files.search({ path: "src", name: "*.py" });
  assert.deepEqual(byName.matches.map((match) => match.path).sort(), ["src/a.py", "src/b.py"]);
  const byContent = await files.search({ path: "src", name: "*.py", content: "needle" });
  assert.equal(byContent.matches.length, 1);
  assert.deepEqual([byContent.matches[0]?.lineNumber, byContent.matches[0]?.line?.trim(), byContent.truncated], [3, "def needle():", false]);
  assert.equal((await files.search({ path: "src", content: "needle", ignoreCase: true })).matches.length, 3);
  assert.equal((await files.search({ path: "src", content: "^needle$", regex: true })).matches.length, 1);
  const limited = await files.search({ path: "src", content: "needle", ignoreCase: true, limit: 1 });
  assert.deepEqual([limited.matches.length, limited.truncated], [1, true]);
});

live("a directory as an archive, there and back", async () => {
  const { files, commands } = at.sandbox;
  await files.write([{ path: "pack/a.txt", data: "a" }, { path: "pack/b/c.txt", data: "c" }]);
  for (const format of ["tar", "tar.gz"] as const) {
    const archive = await collect(await files.getArchive("pack", { format }));
    assert.equal(archive[0] === 0x1f && archive[1] === 0x8b, format === "tar.gz");
    await files.remove("unpacked").catch(() => undefined);
    await files.makeDir("unpacked");
    const done = await files.putArchive("unpacked", archive);
    assert.ok(done.entries >= 2 && done.size >= 2);
    const found = (await commands.run("cd unpacked && find . -type f | sort")).stdout;
    assert.match(found, /a\.txt/);
    assert.match(found, /b\/c\.txt/);
  }
});

live("files and directories of this machine, there and back", async () => {
  await temporary(async (directory) => {
    const { files, commands } = at.sandbox;
    const big = new Uint8Array(randomBytes(3 * 1024 * 1024));
    await mkdir(join(directory, "src/deep/er"), { recursive: true });
    await mkdir(join(directory, "src/empty"));
    await writeFile(join(directory, "src/a.txt"), "a");
    await writeFile(join(directory, "src/deep/er/big.bin"), big);
    await writeFile(join(directory, "src/run.sh"), "#!/bin/sh\necho ran\n");
    await chmod(join(directory, "src/run.sh"), 0o755);
    await symlink("/etc/passwd", join(directory, "src/link"));

    const progress: number[] = [];
    const infos = await files.upload(join(directory, "src"), "copied", { onProgress: (one) => void (one.path === "deep/er/big.bin" && progress.push(one.bytes)) });
    assert.equal(infos.length, 3);
    assert.equal(progress.at(-1), big.length);
    assert.equal((await commands.run("copied/run.sh; sha256sum copied/deep/er/big.bin | cut -d' ' -f1; find copied | sort | tr '\\n' ' '")).stdout.trim(), `ran\n${sha(big)}\ncopied copied/a.txt copied/deep copied/deep/er copied/deep/er/big.bin copied/empty copied/run.sh`);

    await commands.run("cd copied && ln -s /etc/passwd evil && mkfifo pipe");
    const written = await files.download("copied", join(directory, "back"));
    assert.equal(written.length, 3);
    assert.deepEqual(new Uint8Array(await readFile(join(directory, "back/deep/er/big.bin"))), big);
    assert.ok((await stat(join(directory, "back/empty"))).isDirectory());

    await files.upload(join(directory, "src/a.txt"), "single.txt");
    await files.download("single.txt", join(directory, "single.txt"));
    await files.download("single.txt", join(directory, "new/deep/single.txt"));
    assert.deepEqual(await readFile(join(directory, "new/deep/single.txt")), await readFile(join(directory, "single.txt")));
    assert.equal(await readFile(join(directory, "single.txt"), "utf8"), "a");
  });
});

live("a watch tells what changes", async () => {
  const { files, commands } = at.sandbox;
  await files.makeDir("watched/below");
  const heard: WatchEvent[] = [];
  await using watch = await files.watchDir("watched", (event) => void heard.push(event), { recursive: true });
  const has = (type: string, path: string) => (): boolean => heard.some((event) => event.type === type && "path" in event && event.path === path);
  await files.write("watched/a.txt", "1");
  await until("a.txt is told", () => has("created", "a.txt")() || has("moved_to", "a.txt")());
  await commands.run("echo 2 >> watched/a.txt");
  await until("the change is told", has("changed", "a.txt"));
  await files.rename("watched/a.txt", "watched/below/b.txt");
  await until("the move is told", () => has("moved_from", "a.txt")() && has("moved_to", "below/b.txt")());
  await files.remove("watched/below/b.txt");
  await until("the removal is told", has("removed", "below/b.txt"));
  await watch.stop();
  const before = heard.length;
  await files.write("watched/c.txt", "1");
  assert.equal(heard.length, before);
  await assert.rejects(files.watchDir("no-such-directory", () => undefined), NotFoundError);
});

live("signed addresses work without a key, for one file and one deed", async () => {
  const { files } = at.sandbox;
  await files.write("signed.txt", "signed content");
  const down = await at.sandbox.downloadUrl("signed.txt", { expires: 60 });
  const answer = await fetch(down);
  assert.deepEqual([answer.status, await answer.text()], [200, "signed content"]);
  const part = await fetch(down, { headers: { Range: "bytes=0-5" } });
  assert.deepEqual([part.status, await part.text()], [206, "signed"]);
  assert.ok(!(await fetch(down, { method: "PUT", body: "x" })).ok);
  const up = await at.sandbox.uploadUrl("sent.txt", { expires: "1m" });
  assert.ok((await fetch(up, { method: "PUT", body: "sent" })).ok);
  assert.equal(await files.read("sent.txt"), "sent");
  assert.ok(!(await fetch(up)).ok);
  assert.ok(!(await fetch(`${down}x`)).ok);
});
