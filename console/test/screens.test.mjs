// What people do on the screens that decide and configure: network policies, copies of runs, approvals, tools, templates, keys, audit.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { browse, caller, eventually, exec, serve, signIn, type, violations, visit, withPage } from "./fixture.mjs";
import { registry } from "./registry.mjs";

const run = promisify(execFile);
let server, browser, admin, images;

before(async () => {
  images = await registry();
  server = await serve("", ["--set", `images.registries=http://${images.host}`]);
  browser = await browse();
  admin = caller(server.url, server.key);
});
after(async () => {
  await browser?.close();
  await server?.stop();
  images?.close();
});

const inPage = (name, act, options) => test(name, () => withPage(browser, server.url, act, options));
const makeKey = (name, role, more = {}) => admin("POST", "/v1/keys", { name, role, ...more });
const mode = (at, name) => at.locator("label.mode").filter({ hasText: name });
const reach = (at) => at.getByLabel("Would this be reached?");
const copied = (page) => page.evaluate(() => navigator.clipboard.readText());

inPage("a policy is made with presets and hosts, checked while it is typed, and is that of the sandbox", async (page) => {
  await signIn(page, server.url, server.key);
  await visit(page, "Run");
  const settings = page.locator(".settings");
  await mode(settings, "Listed hosts only").click();
  await settings.getByRole("button", { name: "pip", exact: true }).click();
  await settings.locator(".preset").getByText(/with a risk/).click();
  await settings.locator(".preset").getByText("files.pythonhosted.org").waitFor();
  const host = settings.getByLabel("Host to allow");
  await host.fill("https://example.com/");
  await settings.getByText(/is not allowed; give/).waitFor();
  assert.ok(await settings.getByRole("button", { name: "Add" }).first().isDisabled());
  await host.fill("*.example.com");
  await host.press("Enter");
  await settings.locator(".rules").getByText("every name below it").waitFor();
  await reach(settings).fill("pypi.org");
  await settings.locator(".verdict .good").waitFor();
  await reach(settings).fill("api.example.org:8080");
  await settings.locator(".verdict .bad").waitFor();
  await settings.getByRole("button", { name: "Allow api.example.org:8080" }).click();
  await settings.locator(".verdict .good").waitFor();
  await type(page, ["print('with a network')"]);
  await page.keyboard.press("Shift+Enter");
  await page.getByText(/^ok, /).waitFor();
  const { sandboxes } = await admin("GET", "/v1/sandboxes?state=running");
  const made = await admin("GET", `/v1/sandboxes/${sandboxes.find((one) => one.labels.from === "console").id}`);
  assert.deepEqual(made.network, { mode: "whitelist", presets: ["pip"], allow: ["*.example.com", "api.example.org:8080"] });
  assert.equal(made.idle_timeout_s, 900);
  await settings.getByRole("button", { name: "End it" }).click();
  await mode(settings, "Open").waitFor();
  assert.equal(await admin("GET", `/v1/sandboxes/${made.id}`).catch(() => "gone"), "gone");
});

inPage("ceilings of a key are shown, and what is beyond them", async (page) => {
  const key = await makeKey("bounded", "user", { quotas: { network: { presets: ["pip"], allow: ["*.corp.example:443"] } } });
  await signIn(page, server.url, key.key);
  await visit(page, "Run");
  const settings = page.locator(".settings");
  await settings.getByText("This key may have at most: pip, *.corp.example:443").waitFor();
  assert.ok(await mode(settings, "Open").getByRole("radio").isDisabled());
  await mode(settings, "Listed hosts only").click();
  await settings.getByLabel("Host to allow").fill("git.corp.example:443");
  await reach(settings).fill("git.corp.example");
  await settings.locator(".verdict .good").waitFor();
  assert.equal(await settings.locator(".failed").count(), 0);
  await settings.getByLabel("Host to allow").fill("other.example:443");
  await settings.locator(".failed").getByText(/more than this key may/).waitFor();
});

inPage("commands that run and have ended, and builds that go on, are on the first screen", async (page) => {
  const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m" });
  await signIn(page, server.url, server.key);
  const commands = page.getByRole("region", { name: "Last commands" });
  const { process } = await admin("POST", `/v1/sandboxes/${id}/processes`, { argv: ["sleep", "1000"] });
  const row = commands.getByRole("listitem").filter({ hasText: `process ${process} of ${id}` });
  await row.getByText("running", { exact: true }).waitFor();
  await admin("POST", `/v1/sandboxes/${id}/processes/${process}/signal`, { signal: 9 });
  await row.getByText(/signal|killed/).waitFor();
  assert.equal(await row.count(), 1);
  await exec(admin, id, "exit 3");
  await commands.getByText("exit code 3").first().waitFor();
  const at = new Date().toISOString();
  const builds = [{ id: "bld_1", name: "first", state: "running", created_at: at, started_at: at }, { id: "bld_2", name: "second", state: "queued", created_at: at, ahead: 1 }];
  await page.route("**/v1/builds", (route) => route.fulfill({ json: { builds } }));
  await page.reload();
  const queue = page.getByRole("region", { name: "Builds" });
  await queue.getByRole("listitem").filter({ hasText: "first" }).getByText(/running for/).waitFor();
  await queue.getByRole("listitem").filter({ hasText: "second" }).getByText("1 before it").waitFor();
  assert.deepEqual(await violations(page), []);
  await admin("DELETE", `/v1/sandboxes/${id}`);
});

inPage("a denial becomes the narrowest rule by one click, and secrets keep their values", async (page) => {
  const secret = { host: "allowed.invalid", header: "authorization", value: "a-value-of-the-secret" };
  const network = { mode: "whitelist", allow: ["allowed.invalid"], secrets: { API_KEY: secret } };
  const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m", network });
  await exec(admin, id, "python3 -c 'import socket; socket.create_connection((\"denied.invalid\", 443), 3)' 2>&1 | tail -1");
  await signIn(page, server.url, server.key);
  await page.goto(`${server.url}/console#/sandbox/${id}/network`);
  const policy = page.locator(".in-force");
  await policy.getByText("Listed hosts only").waitFor();
  await policy.getByText("API_KEY in authorization to allowed.invalid").waitFor();
  assert.ok(!(await policy.innerText()).includes("{"), "no JSON for people");
  await reach(policy).fill("denied.invalid");
  await policy.locator(".verdict .bad").first().waitFor();
  // The policy and the gateway agree.
  await policy.getByLabel("Probe from inside").fill("denied.invalid");
  await policy.getByRole("button", { name: "Probe", exact: true }).click();
  await policy.getByText("Inside it is the same: denied").waitFor();
  await page.getByRole("row", { name: /denied\.invalid/ }).first().getByRole("button", { name: "Allow denied.invalid", exact: true }).click();
  await page.getByRole("row", { name: /denied\.invalid/ }).first().getByText("allows it now").waitFor();
  const changed = await admin("GET", `/v1/sandboxes/${id}`);
  assert.deepEqual(changed.network.allow, ["allowed.invalid", "denied.invalid"]);
  assert.deepEqual(changed.network.secrets, { API_KEY: { host: secret.host, header: secret.header } });
  // By hand, with a mistake first.
  await policy.getByRole("button", { name: "Change" }).click();
  await policy.getByLabel("Host to allow").fill("a_b.example");
  await policy.getByText(/a name without _/).waitFor();
  await policy.getByLabel("Host to allow").fill("third.invalid");
  await policy.getByRole("button", { name: "Remove denied.invalid", exact: true }).click();
  await policy.getByRole("button", { name: "Save" }).click();
  await policy.getByRole("button", { name: "Change" }).waitFor();
  assert.deepEqual((await admin("GET", `/v1/sandboxes/${id}`)).network.allow, ["allowed.invalid", "third.invalid"]);
  await admin("DELETE", `/v1/sandboxes/${id}`);
});

inPage("a denial that hosts and rules do not decide is not said to be allowed now", async (page) => {
  const network = { mode: "whitelist", allow: ["named.example", "other.example"], deny: ["198.41.0.4/32"] };
  const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m", network });
  // Names that resolve to such addresses, as the log has them.
  const denied = [
    { host: "named.example", address: "203.0.113.80", rule: "always denied: 203.0.113.0/24", reason: "203.0.113.80:443 is denied in every mode" },
    { host: "named.example", address: "198.41.0.4", rule: "deny: 198.41.0.4/32", reason: "198.41.0.4:443 is denied by a rule" },
    { host: "other.example", rule: "not in the requests of this host", reason: "GET /x is in no rule" },
    { host: "other.example", address: "198.41.0.5", rule: "not in the allow list", reason: "it was not allowed then" },
  ];
  const records = denied.map((one, at) => ({ number: at + 1, at: new Date().toISOString(), event: "connection", flow: at, port: 443, allowed: false, ...one }));
  await page.route("**/network/log?*", (route) => route.fulfill({ contentType: "text/event-stream", body: records.map((one) => `event: network\ndata: ${JSON.stringify(one)}\n\n`).join("") }));
  await signIn(page, server.url, server.key);
  await page.goto(`${server.url}/console#/sandbox/${id}/network`);
  const rows = page.getByRole("region", { name: "Decisions" }).locator("tbody tr");
  await rows.first().getByText("it was not allowed then").waitFor();
  await rows.first().getByText("The policy in force allows it now.").waitFor();
  assert.equal(await rows.count(), denied.length);
  assert.equal(await page.getByText("The policy in force allows it now.").count(), 1);
  assert.equal(await page.getByRole("button", { name: /^Allow / }).count(), 0);
  await admin("DELETE", `/v1/sandboxes/${id}`);
});

inPage("copies are the same run", async (page) => {
  const directory = await mkdtemp(join(tmpdir(), "belljar-copies-"));
  try {
    await signIn(page, server.url, server.key);
    await visit(page, "Run");
    const settings = page.locator(".settings");
    await settings.getByLabel("Memory").fill("300m");
    await settings.getByLabel("Processors").fill("0.5");
    await settings.getByLabel("Time for a cell").fill("40s");
    await mode(settings, "Listed hosts only").click();
    await settings.getByRole("button", { name: "npm", exact: true }).click();
    await settings.getByLabel("Host to allow").fill("api.example.com");
    await writeFile(join(directory, "in put.txt"), "from the file");
    await settings.locator("input[type=file]").setInputFiles(join(directory, "in put.txt"));
    await page.getByText("in put.txt is in the sandbox").waitFor();
    await type(page, ["it = 'it''s'", "print(open('in put.txt').read(), it, 'done')"]);
    await page.keyboard.press("Shift+Enter");
    await page.locator(".output").getByText("from the file its done").waitFor();
    const copy = async (client) => {
      await page.getByLabel("Copy as").selectOption({ label: client });
      return eventually(`the copy for ${client}`, async () => {
        const text = await copied(page);
        return text !== last && (last = text);
      });
    };
    let last = await copied(page);
    const [original] = (await admin("GET", "/v1/sandboxes?state=running")).sandboxes;
    const wanted = await admin("GET", `/v1/sandboxes/${original.id}`);
    const wantedOf = ({ limits, network }) => ({ memory: limits.memory_bytes, cpus: limits.cpus, network });
    const env = { ...process.env, PATH: `${dirname(process.env.BELLJAR_BIN)}:${process.env.PATH}`, BELLJAR_API_KEY: server.key };
    for (const client of ["Command line", "curl"]) {
      const { stdout } = await run("bash", ["-euc", await copy(client)], { cwd: directory, env });
      assert.match(stdout, /from the file its done/, client);
      const [same] = (await admin("GET", "/v1/sandboxes?state=gone&limit=1")).sandboxes;
      assert.notEqual(same.id, wanted.id);
      assert.deepEqual(wantedOf(same), wantedOf(wanted), client);
    }
    const python = await copy("Python");
    await run("python3", ["-c", "import ast, sys; ast.parse(sys.argv[1])", python]);
    for (const text of [python, await copy("TypeScript")]) {
      for (const part of [/300m/, /"npm"/, /"api\.example\.com"/, /in put\.txt/, /40s|timeoutMs: 40000/, /0\.5/]) assert.match(text, part);
    }
    // In a sandbox that somebody has chosen, they run there.
    const { id } = await admin("POST", "/v1/sandboxes", { name: "chosen-one", timeout: "10m" });
    await page.reload();
    await settings.locator("select").first().selectOption({ label: "chosen-one" });
    await type(page, ["print('its ' + 'done')"]);
    const { stdout } = await run("bash", ["-euc", await copy("Command line")], { cwd: directory, env });
    assert.match(stdout, /its done/);
    assert.equal((await admin("GET", `/v1/sandboxes/${id}`)).state, "running");
    for (const client of ["Python", "TypeScript", "curl"]) assert.ok((await copy(client)).includes(id), client);
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
});

inPage("a reload keeps code and sandbox, and nothing of it is there for another person", async (page) => {
  const hanna = (await makeKey("hanna", "user", { owner: "hanna" })).key;
  await signIn(page, server.url, hanna);
  await visit(page, "Run");
  await type(page, ["kept = 'a secret result'[::-1]", "print(kept)"]);
  await page.keyboard.press("Shift+Enter");
  await page.getByText("tluser terces a").waitFor();
  const stored = await eventually("the code is kept", async () => {
    const text = await page.evaluate(() => JSON.stringify({ ...sessionStorage }));
    return /a secret result.*"chosen":"[a-z]/.test(text.replaceAll("\\", "")) && text;
  });
  assert.ok(!stored.includes("tluser") && !stored.includes("bj_"), stored);
  await page.reload();
  await page.locator(".cm-content").getByText("a secret result").waitFor();
  assert.equal(await page.getByText("tluser").count(), 0);
  // The interpreter goes on in the same sandbox.
  await page.getByRole("link", { name: "Open the sandbox" }).waitFor();
  await type(page, ["print(kept.upper())"]);
  await page.keyboard.press("Shift+Enter");
  await page.getByText("TLUSER TERCES A").waitFor();
  // The page goes on for a moment, and what was typed last would be stored then.
  await page.route(`${server.url}/console`, async (loading) => {
    await new Promise((resolve) => setTimeout(resolve, 1000));
    await loading.continue();
  });
  await type(page, ["print('typed last')"]);
  await page.getByRole("button", { name: "Sign out", exact: true }).click();
  await page.getByLabel("API key").waitFor();
  await page.unroute(`${server.url}/console`);
  assert.equal(await page.evaluate(() => sessionStorage.getItem("belljar.run")), null);
  // Also if the session has ended in another way.
  await page.evaluate(() => sessionStorage.setItem("belljar.run", JSON.stringify({ key: "key_another", cells: [{ code: "of another", language: "python" }] })));
  await signIn(page, server.url, (await makeKey("mallory", "user")).key);
  await visit(page, "Run");
  await page.locator(".cm-content").getByText("import sys").waitFor();
  assert.equal(await page.getByText("of another").count(), 0);
});

inPage("an approver sees findings, and the difference to what was approved last", async (page) => {
  const agent = caller(server.url, (await makeKey("agent", "user", { owner: "agent" })).key);
  const network = { mode: "whitelist", allow: ["a.example"] };
  await admin("POST", "/v1/tools", { name: "cleaner", description: "Cleans.", languages: ["bash"], approval: "on-risk", network });
  const call = (code) => agent("POST", "/v1/tools/cleaner/call", { code }).catch((error) => error);
  const waiting = () => eventually("it waits", async () => (await admin("GET", "/v1/approvals?state=pending")).approvals[0]);
  const first = call("cd /tmp\nrm -rf / # old\necho done\n");
  await admin("POST", `/v1/approvals/${(await waiting()).id}/approve`, {});
  await first;
  await admin("PUT", "/v1/tools/cleaner", { description: "Cleans.", languages: ["bash"], approval: "on-risk", network: { ...network, allow: ["a.example", "b.example"] } });
  const second = call("cd /tmp\nrm -rf / # new\necho done\n");
  const { id } = await waiting();
  await signIn(page, server.url, (await makeKey("ann", "approver", { owner: "ann" })).key);
  await page.goto(`${server.url}/console#/approvals/${id}`);
  const findings = page.getByRole("region", { name: "What the code seems to do" });
  await findings.getByText("risk high").waitFor();
  await findings.getByText("command, line 2").or(findings.getByText("code, line 2")).first().waitFor();
  const changes = page.getByRole("region", { name: "Difference to what was approved last", exact: true });
  await changes.locator("mark").first().waitFor();
  assert.deepEqual(await changes.locator("mark").allInnerTexts().then((all) => all.slice(0, 2)), ["old", "new"]);
  await changes.locator(".added", { hasText: "network.allow: b.example" }).waitFor();
  await changes.locator(".added", { hasText: "tool: cleaner@2" }).waitFor();
  const policy = page.getByRole("region", { name: "Network", exact: true });
  await policy.locator(".rules").getByText("b.example").waitFor();
  assert.ok(!(await policy.innerText()).includes("{"), "no JSON for people");
  assert.deepEqual(await violations(page), []);
  await page.getByLabel(/^Note/).fill("not again");
  await page.getByRole("button", { name: "Deny" }).click();
  assert.match(String(await second), /not again/);
}, { colorScheme: "dark" });

inPage("an approver sees the code that calls, and that its sandbox is frozen", async (page) => {
  const coder = caller(server.url, (await makeKey("coder", "user", { owner: "coder" })).key);
  await admin("POST", "/v1/tools", { name: "publish", description: "Publishes.", languages: ["bash"], approval: "always" });
  const { id } = await coder("POST", "/v1/sandboxes", {});
  const code = `import belljar\nbelljar.tools.publish(code="echo out")["stdout"] # \u202ehidden\n${"# more\n".repeat(6000)}`;
  const run = coder("POST", `/v1/sandboxes/${id}/code`, { code, tools: ["publish"] });
  const { id: approval } = await eventually("it waits", async () => (await admin("GET", "/v1/approvals?state=pending")).approvals[0]);
  await signIn(page, server.url, (await makeKey("mary", "approver", { owner: "mary" })).key);
  await page.goto(`${server.url}/console#/approvals/${approval}`);
  const calling = page.getByRole("region", { name: "The code that calls", exact: true });
  await calling.getByText("frozen until the decision").waitFor();
  await calling.locator(".cm-content").getByText("belljar.tools.publish").waitFor();
  await calling.getByText(/^The first 32\d{3} of 42\d{3} bytes\.$/).waitFor();
  assert.equal(await calling.getByRole("link", { name: id, exact: true }).getAttribute("href"), `#/sandbox/${id}`);
  await page.locator(".card.urgent", { hasText: "publish@1" }).getByText(`by code in ${id}`).waitFor();
  assert.deepEqual(await violations(page), []);
  await page.getByRole("button", { name: "Approve once" }).click();
  assert.equal((await run).results[0].data["text/plain"], "'out\\n'");
  await calling.getByText("frozen until the decision").waitFor({ state: "detached" });
  await coder("DELETE", `/v1/sandboxes/${id}`);
});

inPage("an edit of a tool keeps its rule, and versions are compared", async (page) => {
  const definition = { name: "an3", description: "Analyses.", languages: ["python"], approval: "on-risk", limits: { memory: "600m", open_files: 200 }, network: { presets: ["pip"] } };
  await admin("POST", "/v1/tools", definition);
  await signIn(page, server.url, server.key);
  await visit(page, "Tools");
  const card = page.locator(".cards li", { has: page.getByText("an3", { exact: true }) });
  await card.getByText("waits on a high risk").waitFor();
  await card.getByText(/memory 600 MiB.*Network: pip/).waitFor();
  await card.getByRole("button", { name: "Change" }).click();
  const form = page.locator("form.fields");
  await form.getByLabel("Description, for the model").fill("Analyses data.");
  await form.getByText('"description": "Analyses data."').waitFor();
  await form.getByRole("button", { name: "Anthropic" }).click();
  await form.getByText('"input_schema"').waitFor();
  await form.getByRole("button", { name: "Save" }).click();
  await page.getByText("an3 is stored as version 2").waitFor();
  const { limits, approval, network } = await admin("GET", "/v1/tools/an3");
  const one = await admin("GET", "/v1/tools/an3@1");
  assert.deepEqual({ limits, approval, network }, { limits: one.limits, approval: "on-risk", network: one.network });
  await card.getByRole("button", { name: "Dry test" }).click();
  const compared = card.getByRole("region", { name: "Compare" });
  await compared.locator(".removed", { hasText: "description: Analyses." }).waitFor();
  assert.equal(await compared.locator("td.added mark").innerText(), " data");
  await card.locator(".versions summary").last().click();
  await card.getByLabel("Definition of version 1").getByText("limit memory: 600 MiB").waitFor();
  await makeKey("judge", "approver", { owner: "judge" });
  await card.locator(".cm-content").click();
  await page.keyboard.insertText("import os; os.system('rm -rf /')");
  await card.getByRole("button", { name: "Decide" }).click();
  await card.locator(".state.waiting", { hasText: "would wait for a person" }).waitFor();
  await admin("DELETE", "/v1/tools/an3");
});

inPage("what code shows is shown in its order, and who may not read files is not asked to", async (page) => {
  await signIn(page, server.url, server.key);
  await visit(page, "Run");
  await type(page, ["print('first')", "display('second')", "_ = input('go on?')", "print('third')", "'fourth'"]);
  await page.keyboard.press("Shift+Enter");
  const answer = page.locator("input[name=answer]");
  await answer.fill("yes");
  await answer.press("Enter");
  await page.getByText(/^ok, /).waitFor();
  assert.match(await page.locator("section.cell").first().innerText(), /first[\s\S]*second[\s\S]*third[\s\S]*fourth/);
  const { sandboxes } = await admin("GET", "/v1/sandboxes?state=running");
  const reader = await makeKey("reader", "read");
  await page.getByRole("button", { name: "Sign out", exact: true }).click();
  // The page loads itself again.
  await page.getByLabel("API key").waitFor();
  await signIn(page, server.url, reader.key);
  await page.goto(`${server.url}/console#/sandbox/${sandboxes[0].id}`);
  await page.getByRole("navigation", { name: "Sandbox" }).getByRole("link", { name: "Network" }).waitFor();
  assert.equal(await page.getByText(/needs a key with the role/).count(), 0);
});

inPage("a template is built with its log, and an image is pulled, shown and removed", async (page) => {
  await signIn(page, server.url, server.key);
  await visit(page, "Templates");
  await page.getByText("Build a template").click();
  await page.getByRole("button", { name: "Build", exact: true }).click();
  const log = page.getByLabel("Build log");
  await page.getByText("The template is built.").waitFor();
  const text = await log.innerText();
  assert.match(text, /\[1\/1\] run/);
  assert.ok(!/[{}]|undefined/.test(text), text);
  await page.getByRole("row", { name: /data/ }).first().waitFor();
  const image = page.getByLabel("Image of a registry");
  await image.fill(`${images.host}/team/missing`);
  await page.getByRole("button", { name: "Pull" }).click();
  await page.getByRole("alert").filter({ hasText: "team/missing" }).waitFor();
  assert.ok(!(await page.getByRole("alert").innerText()).startsWith("base"));
  await image.fill(`${images.host}/team/tiny:1.0`);
  await page.getByRole("button", { name: "Pull" }).click();
  await page.getByText("/team/tiny:1.0 is there").waitFor();
  const region = page.locator("section", { has: page.getByRole("heading", { name: "Images" }) });
  await region.getByRole("button", { name: "Details" }).click();
  await region.getByText("GREETING").waitFor();
  const { image: config } = (await admin("GET", "/v1/templates")).templates.find((one) => one.image);
  await region.getByText(config.digest, { exact: true }).waitFor();
  await region.getByRole("button", { name: "Remove" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
  await page.getByText("No image was pulled.").waitFor();
});

inPage("a key's role, rule and expiry are changed", async (page) => {
  const { id } = await makeKey("changing", "user", { expires: "1h" });
  await signIn(page, server.url, server.key);
  await visit(page, "Keys");
  await page.getByRole("row", { name: /^changing/ }).getByRole("button", { name: "Change" }).click();
  const form = page.getByRole("form", { name: "Change changing" });
  await form.getByLabel("Role").selectOption("read");
  await form.getByLabel("Approval by another person").selectOption("on-risk");
  await form.getByLabel(/^New time from now/).fill("soon");
  await form.getByRole("button", { name: "Save" }).click();
  await form.getByRole("alert").waitFor();
  await form.getByLabel("without end").check();
  await form.getByRole("button", { name: "Save" }).click();
  await page.getByText("changing is changed").waitFor();
  const key = (await admin("GET", "/v1/keys?limit=100")).keys.find((one) => one.id === id);
  assert.deepEqual([key.role, key.approval, key.expires_at ?? null, key.name], ["read", "on-risk", null, "changing"]);
});

inPage("the audit log says what became of code, and of connections", async (page) => {
  const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m", network: { mode: "whitelist", allow: ["a.example"] } });
  await admin("POST", `/v1/sandboxes/${id}/code`, { code: "1 / 0" });
  await exec(admin, id, "python3 -c 'import socket; socket.create_connection((\"denied.invalid\", 443), 3)' 2>&1 | tail -1");
  await signIn(page, server.url, server.key);
  const outcome = (action) => page.getByRole("row", { name: new RegExp(` ${action} `) }).first().locator(".state");
  await eventually("the records", async () => {
    await visit(page, "Now");
    await visit(page, "Audit");
    await outcome("sandbox.create").waitFor();
    return (await outcome("network.deny").count()) > 0;
  });
  for (const [action, text] of [["code", "error"], ["network.deny", "denied"]]) assert.deepEqual([await outcome(action).innerText(), await outcome(action).getAttribute("class")], [text, "state bad"], action);
  assert.equal(await outcome("exec").innerText(), "ok");
  await admin("DELETE", `/v1/sandboxes/${id}`);
});

inPage("on a telephone the current screen is in view, and messages are above the page", async (page) => {
  const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m" });
  await signIn(page, server.url, server.key);
  const isInView = (link) => link.evaluate((one) => one.getBoundingClientRect().left >= 0 && one.getBoundingClientRect().right <= innerWidth);
  for (const name of ["Audit", "Now", "Keys"]) {
    await visit(page, name);
    const link = page.getByRole("navigation", { name: "Screens" }).getByRole("link", { name, exact: true });
    await eventually(`${name} is in view`, () => isInView(link));
  }
  await page.getByText("Create a key").click();
  await page.getByLabel("Name").fill("telephone");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  const copy = page.getByRole("button", { name: "Copy", exact: true });
  for (let time = 0; time < 3; time += 1) await copy.click();
  // It goes by itself, so that all of it is looked at in one instant.
  const seen = await page.waitForFunction(() => {
    const notices = [...document.querySelectorAll(".notice")].filter((one) => one.textContent.includes("Copied"));
    if (notices.length === 0) return null;
    const header = document.querySelector("header").getBoundingClientRect();
    return { count: notices.length, bottom: notices[0].getBoundingClientRect().bottom, top: header.top, scrolled: scrollY > 0 };
  });
  const { count, bottom, top, scrolled } = await seen.jsonValue();
  assert.equal(count, 1);
  assert.ok(bottom <= top + 1 || scrolled, JSON.stringify({ bottom, top }));
  await page.goto(`${server.url}/console#/sandbox/${id}/walls`);
  const tab = page.getByRole("navigation", { name: "Sandbox" }).getByRole("link", { name: "Walls" });
  await eventually("the tab is in view", () => isInView(tab));
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0);
  await admin("DELETE", `/v1/sandboxes/${id}`);
}, { viewport: { width: 390, height: 900 } });

inPage("the audit log is filtered by the beginning of words, and says so", async (page) => {
  await makeKey("frida", "read", { owner: "frida" });
  await signIn(page, server.url, server.key);
  await visit(page, "Audit");
  await page.getByLabel("Action").fill("key.cre");
  await page.getByRole("button", { name: "Show" }).click();
  await page.getByText(/No record has exactly this. Of the last \d+ records/).waitFor();
  const actions = await page.locator("tbody strong").allInnerTexts();
  assert.ok(actions.length > 0 && actions.every((one) => one === "key.create"), actions.join());
  await page.getByLabel("Action").fill("key.create");
  await page.getByRole("button", { name: "Show" }).click();
  await page.getByText(/No record has exactly this/).waitFor({ state: "hidden" });
  await page.getByLabel("Action").fill("nosuch");
  await page.getByRole("button", { name: "Show" }).click();
  await page.getByText(/none begins with it/).waitFor();
});

inPage("a screen that is not there, or not for the role, says so", async (page) => {
  await signIn(page, server.url, (await makeKey("looking", "read")).key);
  await page.goto(`${server.url}/console#/nosuch`);
  await page.getByRole("alert").filter({ hasText: "There is no screen nosuch" }).waitFor();
  await page.goto(`${server.url}/console#/keys`);
  await page.getByRole("alert").filter({ hasText: "not for the role read" }).waitFor();
  await page.getByRole("heading", { level: 1, name: "Now" }).waitFor();
});
