import assert from "node:assert/strict";
import { test } from "node:test";
import { parseStatus } from "../src/git.js";
import { InvalidArgumentError, ProgramNotFoundError, Sandbox, ServerError, waitForFile, waitForPort, waitForProcess, waitForTimeout, waitForURL } from "../src/index.js";
import { Double, ID, json, problem, wireResult, wireSandbox } from "./double.js";

const EXEC = `/v1/sandboxes/${ID}/exec`;

test("what git says is parsed", () => {
  const hashes = `${"0".repeat(40)} ${"1".repeat(40)}`;
  const records = [
    `# branch.oid ${"a".repeat(40)}`,
    "# branch.head main",
    "# branch.upstream origin/main",
    "# branch.ab +2 -1",
    `1 .M N... 100644 100644 100644 ${hashes} with space`,
    `1 A. N... 000000 100644 100644 ${hashes} new`,
    `2 R. N... 100644 100644 100644 ${hashes} R100 now`,
    "before",
    `u UU N... 100644 100644 100644 100644 ${hashes} ${"2".repeat(40)} both`,
    "? un tracked",
  ];
  const status = parseStatus(`${records.join("\0")}\0`);
  assert.deepEqual([status.currentBranch, status.upstream, status.ahead, status.behind, status.detached], ["main", "origin/main", 2, 1, false]);
  assert.deepEqual(
    status.fileStatus.map((file) => [file.name, file.status, file.staged, file.renamedFrom]),
    [
      ["with space", "modified", false, undefined],
      ["new", "added", true, undefined],
      ["now", "renamed", true, "before"],
      ["both", "conflict", false, undefined],
      ["un tracked", "untracked", false, undefined],
    ],
  );
  assert.deepEqual([status.isClean, status.hasStaged, status.hasUntracked, status.hasConflicts], [false, true, true, true]);
  assert.equal(parseStatus("# branch.head (detached)\0").detached, true);
  assert.throws(() => parseStatus("1 M"), ServerError);
});

test("a sandbox without git", async () => {
  await using double = await Double.start();
  double.on("POST", "/v1/sandboxes", json(wireSandbox(), 201)).on("POST", EXEC, problem(404, "program_not_found", "git: not found"));
  const { git } = await Sandbox.create({ apiUrl: double.url, apiKey: "bj_test" });
  await assert.rejects(git.status("r"), (error) => error instanceof ProgramNotFoundError && error.code === "program_not_found" && /there is no git .*git: not found/.test(error.message));
});

test("credentials are in variables of one command alone", async () => {
  await using double = await Double.start();
  double.on("POST", "/v1/sandboxes", json(wireSandbox(), 201)).on("POST", EXEC, json(wireResult("https://example.org:8443/r.git\n")));
  const { git } = await Sandbox.create({ apiUrl: double.url, apiKey: "bj_test" });
  const last = (): { argv: string[]; env: Record<string, string> } => JSON.parse(double.seen.at(-1)?.body ?? "") as { argv: string[]; env: Record<string, string> };
  await git.clone("https://ada:p%40ss@example.org:8443/r.git", { path: "copy" });
  await git.clone("https://example.org:8443/r.git", { username: "ada", password: "p@ss", path: "copy" });
  await git.push("copy", { username: "ada", password: "p@ss" });
  for (const request of double.seen.slice(-4)) {
    const { argv, env } = JSON.parse(request.body) as { argv: string[]; env: Record<string, string> };
    assert.ok(!JSON.stringify(argv).match(/p@ss|p%40ss|ada/), argv.join(" "));
    if (!argv.includes("ls-remote")) {
      assert.deepEqual([env["BELLJAR_GIT_USERNAME"], env["BELLJAR_GIT_PASSWORD"]], ["ada", "p@ss"]);
      assert.ok(argv.includes("credential.https://example.org:8443.helper="));
    }
  }
  assert.deepEqual(last().argv.slice(-1), ["push"]);
  await git.pull("copy");
  assert.deepEqual(last(), { argv: ["git", "-C", "copy", "pull"], env: { GIT_TERMINAL_PROMPT: "0", LC_ALL: "C.UTF-8" } });
});

test("arguments that git must not get are refused", async () => {
  await using double = await Double.start();
  double.on("POST", "/v1/sandboxes", json(wireSandbox(), 201));
  const { git } = await Sandbox.create({ apiUrl: double.url, apiKey: "bj_test" });
  for (const call of [
    () => git.clone("--upload-pack=x"),
    () => git.clone("https://example.org/r.git", { password: "p" }),
    () => git.clone("ssh://git@example.org/r.git", { username: "u", password: "p" }),
    () => git.clone("https://example.org/r.git", { username: "u\nhost=other", password: "p" }),
    () => git.remoteAdd("r", "origin", "https://u:p@example.org/r.git"),
    () => git.createBranch("r", "-D"),
    () => git.commit("r", "m", { authorName: "only" }),
    () => git.getConfig("a.b", { path: "r" }),
  ]) {
    await assert.rejects(call, InvalidArgumentError);
  }
  assert.equal(double.seen.length, 1);
});

test("commands that tell when a template is ready", () => {
  assert.match(waitForPort(8000), /':1F40 /);
  assert.equal(waitForFile("/it's"), `test -e '/it'"'"'s'`);
  assert.equal(waitForTimeout(1500), "sleep 1.5");
  assert.match(waitForURL("http://localhost/?a=1&b=2", 204), /'http:\/\/localhost\/\?a=1&b=2'\)" = 204$/);
  assert.match(waitForProcess("nginx"), /^pgrep -x 'nginx'/);
});
