import assert from "node:assert/strict";
import { CommandExitError, FileNotFoundError, GitAuthError, type Sandbox } from "belljar";
import { live, shared } from "./live.js";

const at = shared();
const AUTHOR = { authorName: "Ada Lovelace", authorEmail: "ada@example.org" };
const PASSWORD = "p@ss:wörd/1'$HOME";

/** Serves a directory over HTTP on loopback to one user. */
const SERVER = `
import base64, functools, http.server, sys
wanted = "Basic " + base64.b64encode(sys.argv[1].encode()).decode()
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.headers.get("Authorization") == wanted:
            return super().do_GET()
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="r"')
        self.send_header("Content-Length", "0")
        self.end_headers()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=sys.argv[2]))
print(server.server_port, flush=True)
server.serve_forever()
`;

async function withCommit(sandbox: Sandbox, path: string): Promise<void> {
  await sandbox.git.init(path, { initialBranch: "main" });
  await sandbox.files.write(`${path}/a.txt`, "1\n");
  await sandbox.git.add(path);
  await sandbox.git.commit(path, "First\n\nWith a body.", AUTHOR);
}

const withGit = (name: string, run: (sandbox: Sandbox) => Promise<void>): void =>
  live(name, async (context) => {
    if ((await at.sandbox.commands.run("command -v git", { check: false })).exitCode !== 0) {
      context.skip("SKIPPED: the sandbox has no git");
      return;
    }
    await run(at.sandbox);
  });

withGit("a repository", async (sandbox) => {
  const { git, files } = sandbox;
  await withCommit(sandbox, "repo");
  assert.equal((await git.status("repo")).isClean, true);
  const [commit] = await git.log("repo");
  assert.deepEqual([commit?.subject, commit?.message, commit?.authorName, commit?.authorEmail], ["First", "First\n\nWith a body.", "Ada Lovelace", "ada@example.org"]);
  await files.write("repo/a.txt", "2\n");
  await files.write("repo/ü b.txt", "new");
  await git.add("repo", { files: ["a.txt"] });
  const status = await git.status("repo");
  assert.deepEqual(status.fileStatus, [
    { name: "a.txt", status: "modified", indexStatus: "M", workingTreeStatus: " ", staged: true },
    { name: "ü b.txt", status: "untracked", indexStatus: "?", workingTreeStatus: "?", staged: false },
  ]);
  await git.reset("repo", { paths: ["a.txt"] });
  await git.restore("repo", { paths: ["a.txt"] });
  assert.equal(await files.read("repo/a.txt"), "1\n");
  await git.createBranch("repo", "topic/one");
  assert.deepEqual(await git.branches("repo"), { branches: ["main", "topic/one"], currentBranch: "topic/one" });
  await git.configureUser("Grace", "grace@example.org", { scope: "local", path: "repo" });
  await git.commit("repo", "on the topic", { allowEmpty: true });
  assert.deepEqual((await git.log("repo", { ref: "main..topic/one" })).map((one) => one.authorName), ["Grace"]);
  await git.checkoutBranch("repo", "main");
  await assert.rejects(git.deleteBranch("repo", "topic/one"), CommandExitError);
  await git.deleteBranch("repo", "topic/one", { force: true });
  assert.equal(await git.getConfig("pull.rebase", { scope: "local", path: "repo" }), undefined);
  await git.setConfig("pull.rebase", "true", { scope: "local", path: "repo" });
  assert.equal(await git.getConfig("pull.rebase", { scope: "local", path: "repo" }), "true");
});

withGit("remotes", async (sandbox) => {
  const { git } = sandbox;
  await withCommit(sandbox, "local");
  await git.init("remote.git", { bare: true, initialBranch: "main" });
  const home = (await sandbox.commands.run("pwd")).stdout.trim();
  await git.remoteAdd("local", "origin", `${home}/elsewhere.git`);
  await git.remoteAdd("local", "origin", `${home}/remote.git`, { overwrite: true });
  assert.deepEqual([await git.remoteGet("local", "origin"), await git.remoteGet("local", "other")], [`${home}/remote.git`, undefined]);
  await git.push("local", { setUpstream: true });
  await git.clone(`${home}/remote.git`, { path: "other", branch: "main" });
  await git.commit("other", "Second", { allowEmpty: true, ...AUTHOR });
  assert.equal((await git.status("other")).ahead, 1);
  await git.push("other");
  await git.pull("local");
  const { upstream, ahead, behind } = await git.status("local");
  assert.deepEqual([upstream, ahead, behind, (await git.log("local")).length], ["origin/main", 0, 0, 2]);
});

withGit("credentials are used and not stored", async (sandbox) => {
  const { git } = sandbox;
  await withCommit(sandbox, "secret");
  await sandbox.commands.run("mkdir www && git clone -q --bare secret www/private.git && git -C www/private.git update-server-info");
  await sandbox.files.write("server.py", SERVER);
  const server = await sandbox.commands.run(["python3", "-u", "server.py", `ada:${PASSWORD}`, "www"], { background: true });
  let port = "";
  for await (const { data } of sandbox.commands.output(server)) {
    port += Buffer.from(data).toString();
    if (port.includes("\n")) {
      break;
    }
  }
  const url = `http://127.0.0.1:${port.trim()}/private.git`;
  await assert.rejects(git.clone(url, { path: "refused" }), GitAuthError);
  await assert.rejects(git.clone(url, { path: "refused", username: "ada", password: "wrong" }), GitAuthError);
  await git.clone(url, { path: "first", username: "ada", password: PASSWORD });
  await git.clone(url.replace("//", `//ada:${encodeURIComponent(PASSWORD)}@`), { path: "second" });
  assert.deepEqual([await git.remoteGet("first", "origin"), await git.remoteGet("second", "origin")], [url, url]);
  await assert.rejects(git.pull("second"), GitAuthError);
  await git.pull("second", { username: "ada", password: PASSWORD });
  const found = await sandbox.commands.run(["grep", "-rlF", "-e", "wörd", "-e", "w%C3%B6rd", "."], { check: false });
  assert.deepEqual([found.exitCode, found.stdout], [1, ""]);
  await server.kill();
});

live("a sandbox without git", async () => {
  await assert.rejects(at.sandbox.git.status("repo", { envs: { PATH: "/nowhere" } }), (error) => error instanceof FileNotFoundError && /install it in its template/.test(error.message));
});
