// Templates built with the client: steps, files, logs, tags, and refused features.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { BuildError, Sandbox, Template, TemplateError, waitForFile } from "e2b";
import { until } from "./shared.mjs";

/** Returns the output of a command in a sandbox of a template. */
async function outputOf(template, command) {
  const sandbox = await Sandbox.create(template);
  try {
    return (await sandbox.commands.run(command)).stdout;
  } finally {
    await sandbox.kill();
  }
}

const fresh = (name) => `${name}-js-${randomUUID().slice(0, 8)}`;

describe("templates", () => {
  let context;
  before(async () => {
    context = await mkdtemp(join(tmpdir(), "belljar-e2b-"));
    await mkdir(join(context, "src/deep"), { recursive: true });
    await writeFile(join(context, "src/main.mjs"), "console.log('main');\n");
    await writeFile(join(context, "src/deep/data.txt"), "deep\n");
    await writeFile(join(context, "run.sh"), "#!/bin/sh\necho ran\n");
  });
  after(() => rm(context, { recursive: true }));

  const start = () => Template({ fileContextPath: context }).fromBaseImage();

  test("a build with all steps", async () => {
    const name = fresh("app");
    const logs = [];
    const template = start()
      .setWorkdir("app")
      .setEnvs({ GREETING: "hello", WHERE: "$HOME/app" })
      .copy("src/*", "code/")
      .copy("run.sh", "bin/", { mode: 0o700 })
      .runCmd("echo $GREETING from $WHERE > made.txt; echo warned >&2")
      .setStartCmd("touch started; exec sleep 600", waitForFile("started"));
    const info = await Template.build(template, name, { cpuCount: 1, memoryMB: 256, onBuildLogs: (entry) => logs.push(entry) });
    assert.deepEqual([info.name, info.tags], [name, ["default"]]);
    assert.ok(logs.some((entry) => entry.level === "warn" && entry.message === "warned"));
    assert.ok(logs.some((entry) => entry.message === "[finalize] the template is ready"));
    assert.equal(await Template.exists(name), true);
    const all = await outputOf(name, "pwd; cat made.txt code/deep/data.txt; bin/run.sh; ls started; echo $WHERE");
    assert.equal(all, "/home/user/app\nhello from /home/user/app\ndeep\nran\nstarted\n/home/user/app\n");
  });

  test("uploads are cached", async () => {
    const uploads = async () => {
      const messages = [];
      await Template.build(start().copy("run.sh", "run.sh"), fresh("cached"), { onBuildLogs: (entry) => messages.push(entry.message) });
      return messages.filter((message) => message.includes("'run.sh'"));
    };
    assert.deepEqual(await uploads(), ["Uploaded 'run.sh'"]);
    assert.deepEqual(await uploads(), ["Skipping upload of 'run.sh', already cached"]);
  });

  test("a build in the background", async () => {
    const info = await Template.buildInBackground(Template().fromTemplate("base").runCmd("echo told"), fresh("slow"));
    const status = await until("the end of the build", async () => {
      const now = await Template.getBuildStatus(info);
      return now.status !== "building" && now.status !== "waiting" && now;
    });
    assert.equal(status.status, "ready");
    const { logEntries } = status;
    assert.ok(logEntries.some((entry) => entry.message === "told"));
    assert.equal((await Template.getBuildStatus(info, { logsOffset: logEntries.length })).logEntries.length, 0);
  });

  test("a failing step is reported with its output", async () => {
    const name = fresh("broken");
    const template = Template().fromTemplate("base").runCmd("true").runCmd("echo broken >&2; exit 3");
    await assert.rejects(Template.build(template, name), (error) => {
      assert.ok(error instanceof BuildError);
      assert.match(error.message, /step 2 of 2 \(RUN\)[^]*exit code 3[^]*broken/);
      assert.match(error.stack, /templates\.test\.mjs/);
      return true;
    });
    assert.equal(await Template.exists(name), false);
  });

  const refused = {
    "another user": [(template) => template.fromTemplate("base").runCmd("id", { user: "root" }), /"root" is not offered/],
    "an image of a registry": [(template) => template.fromNodeImage("24"), /not on this server; its operator can pull it/],
    "an unknown template": [(template) => template.fromTemplate("no-such-template"), /template "no-such-template" not found/],
  };
  for (const [what, [make, message]] of Object.entries(refused)) {
    test(`refused: ${what}`, async () => {
      await assert.rejects(Template.build(make(Template()), fresh("refused")), (error) => {
        assert.ok(error instanceof BuildError);
        assert.match(error.message, message);
        return true;
      });
    });
  }

  test("names and tags", async () => {
    const name = fresh("tagged");
    const build = (text, ...given) => Template.build(Template().fromTemplate("base").runCmd(`echo ${text} > v`), ...given);
    const content = async (of) => (await outputOf(of, "cat v")).trim();
    const first = await build("one", `${name}:v1`);
    const second = await build("two", name);
    assert.deepEqual([await content(name), await content(`${name}:v1`)], ["two", "one"]);
    const assigned = await Template.assignTags(`${name}:v1`, "stable");
    assert.deepEqual([assigned.buildId, assigned.tags], [first.buildId, ["stable"]]);
    assert.equal(await content(`${name}:stable`), "one");
    const tags = await Template.getTags(name);
    const expected = { default: second.buildId, stable: first.buildId, v1: first.buildId };
    assert.deepEqual(Object.fromEntries(tags.map(({ tag, buildId }) => [tag, buildId])), expected);
    await Template.removeTags(name, ["stable"]);
    assert.equal(await Template.exists(`${name}:stable`), false);
    await assert.rejects(Template.removeTags(name, "stable"), TemplateError);
  });

  test("a template that starts from another", async () => {
    const [first, second] = [fresh("first"), fresh("second")];
    await Template.build(Template().fromTemplate("base").setWorkdir("work").setEnvs({ A: "1" }).runCmd("echo 1 > one"), first);
    await Template.build(Template().fromTemplate(first).runCmd("pwd > two; cat one >> two; echo $A >> two"), second);
    assert.equal(await outputOf(second, "cat two"), "/home/user/work\n1\n1\n");
  });
});
