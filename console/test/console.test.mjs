// What people do with the console, in a browser, against a server with sandboxes.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { browse, caller, DEADLINE, elsewhere, eventually, exec, linkOf, open, serve, signIn, type, violations, visit, withPage } from "./fixture.mjs";

let server, browser, admin;

before(async () => {
  server = await serve();
  browser = await browse();
  admin = caller(server.url, server.key);
});
after(async () => {
  await browser?.close();
  await server?.stop();
});

/** Runs a test in a page of its own, which must stay whole. */
const inPage = (name, act, options) => test(name, () => withPage(browser, server.url, act, options));

const makeKey = (name, role, more = {}) => admin("POST", "/v1/keys", { name, role, ...more });

inPage("a link signs in once", async (page) => {
  const link = linkOf(server);
  await page.goto(link);
  await page.getByRole("heading", { level: 1, name: "Now" }).waitFor();
  assert.ok(!page.url().includes("bjl_"), page.url());
  await page.reload();
  await page.getByRole("heading", { level: 1, name: "Now" }).waitFor();
  await page.getByRole("button", { name: "Sign out", exact: true }).click();
  await page.getByLabel("API key").waitFor();
  await page.goto(`${server.url}/console?again#${new URL(link).hash.slice(1)}`);
  await page.getByRole("alert").filter({ hasText: "used already" }).waitFor();
});

inPage("a key signs in and is not kept", async (page) => {
  await page.goto(`${server.url}/console`);
  await page.getByLabel("API key").fill("bj_wrong");
  await page.getByRole("button", { name: "Sign in", exact: true }).click();
  await page.getByRole("alert").filter({ hasText: "does not know this key" }).waitFor();
  await signIn(page, server.url, server.key);
  const stored = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie]));
  assert.ok(!stored.includes("bj_") && !stored.includes("bjc_"), stored);
  const [cookie] = (await page.context().cookies(`${server.url}/v1/me`)).filter(({ name }) => name === "belljar_session");
  assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.path], [true, "Strict", "/v1"]);
});

inPage("code shows text, a table and a picture", async (page) => {
  await signIn(page, server.url, server.key);
  await visit(page, "Run");
  await type(page, [
    "import matplotlib.pyplot as plt, pandas as pd",
    "print('hello from a cell')",
    "display(pd.DataFrame({'a': [1, 2], 'b': [3, 4]}))",
    "_ = plt.plot([1, 3, 2]); plt.show()",
    "6 * 7",
  ]);
  await page.keyboard.press("Shift+Enter");
  await page.getByText("hello from a cell").last().waitFor();
  await page.getByText(/^ok, /).waitFor();
  const picture = page.locator(".result img").first();
  assert.ok(await picture.evaluate((image) => image.naturalWidth > 100));
  const frame = page.frameLocator(".result iframe").first();
  assert.equal(await frame.locator("tbody tr").count(), 2);
  await page.locator(".result pre", { hasText: "42" }).waitFor();
  await page.getByLabel("Copy as", { exact: false }).selectOption("curl");
  await page.getByText("Copied").waitFor();
  assert.match(await page.evaluate(() => navigator.clipboard.readText()), /\/code --json '\{"code":"import matplotlib/);
  // An error with its hint.
  await type(page, ["1/0"]);
  await page.keyboard.press("Shift+Enter");
  await page.locator(".trouble").getByText("ZeroDivisionError").first().waitFor();
});

inPage("a sandbox shows its files, which can be edited", async (page) => {
  const { id } = await admin("POST", "/v1/sandboxes", { name: "files-here", timeout: "10m" });
  await exec(admin, id, "printf 'one line\\n' > notes.txt; head -c 3000 /dev/urandom > raw.bin; mkdir sub");
  await signIn(page, server.url, server.key);
  await page.getByRole("link", { name: "files-here" }).click();
  await page.getByRole("button", { name: "raw.bin", exact: true }).click();
  await page.getByRole("alert").filter({ hasText: "not text" }).waitFor();
  await page.getByRole("button", { name: "notes.txt", exact: true }).click();
  const editor = page.locator(".cm-content");
  await editor.click();
  await page.keyboard.press("Control+End");
  await page.keyboard.insertText("another");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByText("notes.txt is saved").waitFor();
  assert.equal((await exec(admin, id, "cat notes.txt")).stdout.data, "one line\nanother");
  const download = page.waitForEvent("download");
  await page.getByRole("row", { name: /notes\.txt/ }).getByRole("button", { name: "Download" }).click();
  assert.equal((await download).suggestedFilename(), "notes.txt");
  // A terminal, in its frame.
  await page.getByRole("link", { name: "Terminal" }).click();
  await page.getByRole("button", { name: "Open a terminal" }).click();
  const terminal = page.frameLocator("iframe.terminal");
  await terminal.locator(".xterm-helper-textarea").waitFor({ state: "attached" });
  await eventually("the shell answers", async () => {
    await terminal.locator(".xterm-helper-textarea").focus();
    await page.keyboard.type("echo $((6*7))from-terminal\n");
    return terminal.locator(".xterm-rows, .xterm-accessibility").getByText("42from-terminal").first().waitFor({ timeout: 3000 }).then(() => true, () => false);
  });
  await page.getByRole("button", { name: "End", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "End" }).click();
  await page.getByRole("heading", { level: 1, name: "Now" }).waitFor();
  assert.equal((await admin("GET", `/v1/sandboxes/${id}`).catch(() => ({ state: "gone" }))).state, "gone");
});

inPage("a second person approves a call that waits", async (page) => {
  const agent = caller(server.url, (await makeKey("agent", "user", { owner: "agent", approval: "always" })).key);
  const ann = (await makeKey("ann", "approver", { owner: "ann" })).key;
  const { id } = await agent("POST", "/v1/sandboxes", { timeout: "10m" });
  await signIn(page, server.url, ann);
  await page.getByText("No call waits.").waitFor();
  const first = agent("POST", `/v1/sandboxes/${id}/code`, { code: "print('approved ' + 'code')" });
  // It appears by itself.
  await page.getByRole("link", { name: "Decide" }).click();
  await page.locator(".detail .cm-content").getByText("approved ").waitFor();
  await page.getByText("for agent", { exact: false }).or(page.getByText(/agent \(key_/)).first().waitFor();
  await page.getByRole("heading", { level: 1, name: "Approvals" }).focus();
  let done = false;
  const output = first.then((result) => ((done = true), result.stdout.data));
  await eventually("the key decides", async () => {
    await page.keyboard.press("a");
    return done;
  });
  assert.equal(await output, "approved code\n");
  await page.locator(".detail .state", { hasText: "approved" }).waitFor();
  const second = agent("POST", `/v1/sandboxes/${id}/code`, { code: "print('never')" }).catch((error) => error);
  await page.locator(".card.urgent").click();
  await page.getByLabel(/^Note/).fill("not this one");
  await page.getByRole("button", { name: "Deny" }).click();
  assert.match(String(await second), /not this one/);
});

inPage("each call is shown as a whole, and a key that is held decides one", async (page) => {
  const agent = caller(server.url, (await makeKey("many", "user", { owner: "agent", approval: "always" })).key);
  const approver = (await makeKey("bea", "approver", { owner: "bea" })).key;
  const allow = [...Array(20).keys()].map((index) => `registry-mirror-${index}.packages.example.org`).concat("zz-last.example");
  const filler = "# an ordinary comment line\n".repeat(3000);
  // A sandbox is frozen while a call waits in it.
  const waiting = [1, 2, 3, 4].map(async (number) => {
    const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m", network: { mode: "whitelist", allow } });
    const argv = ["sh", "-c", `${filler}echo in-the-middle ${number}\n${filler}`];
    await agent("POST", `/v1/sandboxes/${id}/exec`, { argv }).catch(() => null);
  });
  const pending = async () => (await admin("GET", "/v1/approvals?state=pending")).approvals.filter((one) => one.request.argv);
  await eventually("four calls wait", async () => (await pending()).length === 4);
  await signIn(page, server.url, approver);
  await visit(page, "Approvals");
  await page.locator(".card.urgent").first().click();
  await page.getByLabel("Arguments 3").getByText("echo in-the-middle").waitFor();
  await page.getByLabel("Network").getByText("zz-last.example").waitFor();
  // Not at once: a call has to be in view for a moment.
  await eventually("a key decides", async () => {
    await page.keyboard.press("a");
    return (await pending()).length < 4;
  });
  const before = (await pending()).length;
  await page.locator(".detail .state", { hasText: "pending" }).waitFor();
  for (let repeat = 0; repeat < 60; repeat += 1) await page.keyboard.down("a");
  await page.keyboard.up("a");
  assert.ok(before - (await pending()).length <= 1);
  // Nor does a second click at the same place decide the next call, which has just come into view.
  const left = (await pending()).length;
  const button = page.getByRole("button", { name: "Approve once" });
  await button.click();
  await button.click({ force: true });
  await eventually("one is approved", async () => (await pending()).length < left);
  assert.equal(left - (await pending()).length, 1);
  for (const one of await pending()) await admin("POST", `/v1/approvals/${one.id}/deny`, {});
  await Promise.all(waiting);
});

inPage("a link does not take the place of a session unnoticed", async (page) => {
  const other = caller(server.url, (await makeKey("elsewhere", "user", { owner: "mallory" })).key);
  await signIn(page, server.url, (await makeKey("here", "user", { owner: "hanna" })).key);
  const person = () => page.locator(".person summary");
  await person().getByText("hanna").waitFor();
  const follow = async () => {
    const { path } = await other("POST", "/v1/session/links");
    await page.evaluate((to) => (location.hash = new URL(to, location.href).hash), path);
    await page.getByRole("dialog").getByText("signed in as hanna").waitFor();
    assert.ok(!page.url().includes("bjl_"), page.url());
  };
  await follow();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
  await person().getByText("hanna").waitFor();
  await follow();
  await page.getByRole("dialog").getByRole("button", { name: "Use the link" }).click();
  await person().getByText("mallory").waitFor();
});

inPage("a denial appears by itself", async (page) => {
  await signIn(page, server.url, server.key);
  await page.getByText("No sandbox was denied").waitFor();
  const network = { mode: "whitelist", allow: ["allowed.invalid"] };
  const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m", network });
  await exec(admin, id, "python3 -c 'import socket; socket.create_connection((\"denied.invalid\", 443), 3)' 2>&1 | tail -1");
  await page.getByText(/denied\.invalid/).waitFor();
  await page.getByRole("region", { name: "Last denials" }).getByRole("link", { name: id }).click();
  await page.getByRole("row", { name: /denied\.invalid/ }).first().getByText("denied", { exact: true }).waitFor();
  await admin("DELETE", `/v1/sandboxes/${id}`);
});

const MARKUP = `<img src=x onerror="window.hostile=1;alert(1)"><script>window.hostile=1</script><style>*{display:none}</style>`;
const HOSTILE = `
import sys
from IPython.display import HTML, SVG, display
markup = ${JSON.stringify(MARKUP)}
print(markup, '\\x1b[31mred\\x1b]8;;javascript:alert(1)\\x07link\\x1b[2J', 'user\\u202eecilA', 'zero\\u200bwidth')
print('x' * 1_000_000)
for at in range(3000): print(at, markup)
print(markup, file=sys.stderr)
display(HTML(markup + '<p id=shown>shown</p><a href="https://example.com/" target=_top>top</a><meta http-equiv=refresh content="0;url=https://example.com/"><form action=/v1/gc method=post><button>go</button></form><iframe src=/console></iframe><link rel=stylesheet href=https://example.com/a.css>'))
display(SVG('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9" onload="parent.hostile=1"><script>parent.hostile=1</script><rect width="9" height="9"/></svg>'))
class Odd:
    def __repr__(self): return markup
Odd()
`;

inPage("hostile text leaves the page whole", async (page, trouble) => {
  const name = "<img src=x onerror=alert(1)>\u202e.txt";
  const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m", labels: { note: "<b onmouseover=alert(1)>\u202elabel" } });
  await admin("POST", `/v1/sandboxes/${id}/files/mkdir`, { path: `dir-${name.replaceAll("/", "")}` });
  await exec(admin, id, `cat > '${name}' <<'END'\n${MARKUP}\nEND\n'${name}' 2>/dev/null; exit 0`);
  await signIn(page, server.url, server.key);
  await page.getByText("note=").first().waitFor();
  await visit(page, "Run");
  await page.locator(".settings select").first().selectOption(id);
  await type(page, HOSTILE.split("\n"));
  await page.keyboard.press("Control+Enter");
  await page.getByText(/^ok, /).waitFor();
  assert.match(await page.locator(".output").first().innerText(), /<img src=x.*red.*link.*⟨U\+202E⟩ecilA.*⟨U\+200B⟩/);
  assert.ok((await page.locator("main").innerText()).length < 400_000);
  const frame = await eventually("the frame of the result", () => page.frames().find((one) => one.url().endsWith("/console/result")));
  // Its own style hides it, in the frame alone.
  await frame.locator("#shown").waitFor({ state: "attached" });
  const inside = await frame.evaluate(() => [origin, document.body.querySelectorAll("script, iframe, form, link, meta").length, window.hostile ?? null]);
  assert.deepEqual(inside, ["null", 0, null]);
  await frame.evaluate(() => document.querySelector("a").click());
  await type(page, [`raise ValueError(${JSON.stringify(MARKUP)} + chr(0x202e))`]);
  await page.keyboard.press("Control+Enter");
  await page.locator(".trouble").getByText("ValueError").first().waitFor();
  await page.getByRole("link", { name: "Open the sandbox" }).click();
  await page.getByRole("button", { name: /^<img src=x onerror=alert\(1\)>\.txt$/ }).click();
  await page.locator(".cm-content:visible").getByText("window.hostile").first().waitFor();
  for (const tab of ["Processes", "Network", "Events", "Walls"]) {
    await page.getByRole("navigation", { name: "Sandbox" }).getByRole("link", { name: tab }).click();
  }
  await visit(page, "Audit");
  await page.getByRole("row", { name: /sandbox\.create/ }).first().waitFor();
  assert.equal(await page.evaluate(() => window.hostile ?? null), null);
  assert.ok(page.url().startsWith(`${server.url}/console`), page.url());
  // What the result tried in its frame was blocked there, and nothing else was tried.
  const blocked = /^policy: (Executing inline event handler|Loading the image '\S+\/console\/x')/;
  assert.equal(trouble.filter((one) => blocked.test(one)).length, 2, trouble.join("\n"));
  trouble.splice(0, trouble.length, ...trouble.filter((one) => !blocked.test(one)));
});

/** A page of another origin that sends what it can with the cookies of the browser. */
const attack = (url, [paused, other, used]) => `<!doctype html><body>
<iframe name=out></iframe><iframe name=jacked src="${url}/console"></iframe>
<form method=post target=out enctype=text/plain action="${url}/v1/sandboxes/${paused}/pause"></form>
<script>
document.forms[0].submit();
const sent = fetch("${url}/v1/sandboxes/${other}/pause", { method: "POST", credentials: "include" }).then((answer) => answer.status, String);
const read = fetch("${url}/v1/me", { credentials: "include" }).then((answer) => answer.text(), String);
const socket = new Promise((done) => {
  const one = new WebSocket("${url}/v1/sandboxes/${used}/terminal".replace("http", "ws"), ["belljar.session", "${"0".repeat(64)}"]);
  one.onopen = () => done("open");
  one.onclose = () => done("closed");
});
Promise.all([sent, read, socket]).then((all) => { window.sent = all; });
</script>`;

/** Signs in at a server, lets a page of another origin attack three sandboxes, and returns the states of two and what the page has got. */
async function attacked(at) {
  const call = caller(at.url, at.key);
  const ids = await Promise.all([1, 2, 3].map(async () => (await call("POST", "/v1/sandboxes", { timeout: "10m" })).id));
  const { page, context } = await open(browser, at.url);
  const other = await elsewhere(attack(at.url, ids));
  try {
    await signIn(page, at.url, at.key);
    const posted = page.waitForResponse((answer) => answer.url().endsWith("/pause") && answer.request().method() === "POST" && answer.frame() !== page.mainFrame());
    await page.goto(other.url);
    const form = (await posted).status();
    await page.waitForFunction(() => window.sent);
    const sent = await page.evaluate(() => window.sent);
    const framed = page.frame("jacked").url();
    const state = (id) => call("GET", `/v1/sandboxes/${id}`).then((sandbox) => sandbox.state, () => "gone");
    return { states: await Promise.all(ids.slice(0, 2).map(state)), form, sent, framed };
  } finally {
    other.close();
    await context.close();
  }
}

test("pages of other origins can do nothing with the session", async () => {
  const { states, form, sent, framed } = await attacked(server);
  assert.deepEqual([...states, form], ["running", "running", 403]);
  assert.equal(sent.at(-1), "closed");
  assert.ok(sent.slice(0, -1).every((one) => /TypeError/.test(one)), JSON.stringify(sent));
  assert.ok(!framed.startsWith(server.url), framed);
});

test("without the check of origins, the token still stops them; without both, the attack succeeds", async () => {
  for (const [without, form] of [["service:origins", 401], ["service:cross-site-requests", 403], ["service:origins,service:cross-site-requests", null]]) {
    const weak = await serve(without);
    try {
      const found = await attacked(weak);
      const said = `${without}: ${JSON.stringify(found)}`;
      const done = [...found.states, found.sent.at(-1), found.form];
      assert.deepEqual(done, form === null ? ["paused", "paused", "open", 200] : ["running", "running", "closed", form], said);
    } finally {
      await weak.stop();
    }
  }
});

inPage("a role sees and can do no more than its key", async (page) => {
  const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m", name: "not-for-readers" });
  await admin("POST", "/v1/tools", { name: "here", description: "Is there.", languages: ["bash"] });
  await signIn(page, server.url, (await makeKey("reader", "read")).key);
  const links = await page.getByRole("navigation", { name: "Screens" }).getByRole("link").allInnerTexts();
  assert.deepEqual(links, ["Now", "Approvals", "Tools", "Templates", "Volumes", "Secrets", "Engines"]);
  await page.getByRole("link", { name: "not-for-readers" }).click();
  await page.getByText("files-here").or(page.locator(".big")).first().waitFor();
  assert.equal(await page.getByRole("button", { name: /^(End|Pause|Fork)$/ }).count(), 0);
  const hidden = [
    ["POST", "/v1/sandboxes"], ["POST", `/v1/sandboxes/${id}/pause`], ["POST", `/v1/sandboxes/${id}/resume`], ["POST", `/v1/sandboxes/${id}/fork`],
    ["POST", `/v1/sandboxes/${id}/timeout`, { timeout: 60 }], ["DELETE", `/v1/sandboxes/${id}`], ["POST", `/v1/sandboxes/${id}/code`, { code: "1" }],
    ["POST", `/v1/sandboxes/${id}/ports`, { port: 80 }], ["POST", `/v1/sandboxes/${id}/files/mkdir`, { path: "a" }],
    ["GET", "/v1/keys"], ["POST", "/v1/keys", { name: "a" }], ["DELETE", "/v1/keys/key_0"], ["GET", "/v1/audit"], ["GET", "/v1/audit/export"],
    ["POST", "/v1/audit/verify"], ["POST", "/v1/tools", { name: "a", description: "a", languages: ["bash"] }],
    ["PUT", "/v1/tools/here", { description: "a", languages: ["bash"] }], ["DELETE", "/v1/tools/here"], ["POST", "/v1/tools/here/test", { code: "" }],
    ["POST", "/v1/volumes", { name: "a" }], ["POST", "/v1/secrets", { name: "a", value: "b" }], ["POST", "/v1/screen", { language: "python", code: "1" }],
    ["POST", "/v1/templates", { definition: "name = 'a'" }], ["POST", "/v1/approvals/apr_0/approve"], ["POST", "/v1/session"], ["POST", "/v1/session/links"],
  ];
  const statuses = await page.evaluate(async (calls) => {
    const token = localStorage.getItem("belljar.session");
    const headers = { "x-belljar-session": token, "content-type": "application/json" };
    const ask = ([method, path, body]) => fetch(path, { method, headers, body: method === "GET" || method === "DELETE" ? undefined : JSON.stringify(body ?? {}) });
    return Promise.all(calls.map((one) => ask(one).then((answer) => answer.status)));
  }, hidden);
  assert.deepEqual(statuses.map((status, at) => (status === 403 ? null : `${hidden[at].slice(0, 2)}: ${status}`)).filter(Boolean), []);
});

inPage("an ended session asks for the key, and nothing typed is lost", async (page) => {
  const key = await makeKey("short", "user");
  await signIn(page, server.url, key.key);
  await visit(page, "Run");
  await type(page, ["kept = 'what was typed'"]);
  await admin("DELETE", `/v1/keys/${key.id}`);
  const dialog = page.getByRole("dialog", { name: "Sign in again" });
  await dialog.waitFor();
  await page.keyboard.press("Escape");
  assert.ok(await dialog.isVisible());
  assert.match(await page.locator(".cm-content").innerText(), /what was typed/);
});

inPage("a server that was away is there again by itself", async (page, trouble) => {
  await signIn(page, server.url, server.key);
  await page.context().setOffline(true);
  await visit(page, "Engines");
  await page.getByText("The server cannot be reached").first().waitFor();
  await page.context().setOffline(false);
  await page.getByText("Isolation:").first().waitFor();
  await page.getByText("The server cannot be reached").waitFor({ state: "hidden" });
  trouble.length = 0;
});

describe("every screen in both themes", () => {
  const SCREENS = ["Now", "Run", "Approvals", "Tools", "Templates", "Volumes", "Secrets", "Keys", "Audit", "Engines"];
  const shots = process.env.BELLJAR_SCREENSHOTS;
  let pending;

  before(async () => {
    const agent = caller(server.url, (await makeKey("waiting", "user", { owner: "agent", approval: "always" })).key);
    const { id } = await agent("POST", "/v1/sandboxes", { name: "analysis", timeout: "20m", labels: { job: "42" } });
    const code = "import subprocess\n\n# Deletes what the last run left.\nsubprocess.run(['rm', '-rf', 'build'])\n";
    pending = agent("POST", `/v1/sandboxes/${id}/code`, { code }).catch(() => null);
    const report = await admin("POST", "/v1/sandboxes", { name: "report", timeout: "20m" });
    await exec(admin, report.id, "mkdir data; printf 'print(1)\\n' > main.py; printf 'a,b\\n1,2\\n' > data.csv");
    const network = { mode: "whitelist", presets: ["pip"], allow: ["api.example.com:443", "*.corp.example"], deny: ["admin.corp.example"] };
    const fetching = await admin("POST", "/v1/sandboxes", { name: "fetching", timeout: "20m", network });
    await exec(admin, fetching.id, "python3 -c 'import socket; socket.create_connection((\"files.example\", 443), 3)' 2>&1 | tail -1");
    const tool = { description: "Analyses data.", languages: ["python"], limits: { memory: "512m" }, network: { presets: ["pip"] } };
    await admin("POST", "/v1/tools", { name: "analyse", ...tool });
    await admin("PUT", "/v1/tools/analyse", { ...tool, approval: "on-risk", limits: { memory: "1g" } });
    await admin("POST", "/v1/volumes", { name: "data", size: "64m" });
    await admin("POST", "/v1/secrets", { name: "example-key", value: "a value", hosts: ["api.example.com"] });
    await eventually("a call waits", async () => (await admin("GET", "/v1/approvals?state=pending")).approvals[0]);
  });
  after(async () => {
    const [waiting] = (await admin("GET", "/v1/approvals?state=pending")).approvals;
    if (waiting) await admin("POST", `/v1/approvals/${waiting.id}/deny`, {});
    await pending;
  });

  for (const [theme, width] of [["light", 1440], ["dark", 1440], ["light", 390], ["dark", 390]]) {
    inPage(`${theme} at ${width} pixels`, async (page) => {
      const found = [];
      const look = async (name) => {
        // Widths that do not fit would move the whole page.
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        if (overflow > 0) found.push(`${name}: ${overflow} pixels too wide`);
        if (width === 1440) found.push(...(await violations(page)).map((one) => `${name}: ${one}`));
        if (shots) await page.screenshot({ path: `${shots}/${name.toLowerCase()}-${theme}-${width}.png`, fullPage: true });
      };
      await page.goto(`${server.url}/console`);
      await page.getByLabel("API key").waitFor();
      await look("SignIn");
      await signIn(page, server.url, server.key);
      for (const name of SCREENS) {
        await visit(page, name);
        await page.getByText("Loading…").waitFor({ state: "hidden" });
        if (name === "Run") {
          await page.locator(".settings select").first().selectOption({ label: "report" });
          await page.getByRole("button", { name: "Run", exact: true }).click();
          await page.getByText(/^ok, /).waitFor();
        }
        if (name === "Approvals") {
          await page.locator(".card.urgent").click();
          await page.locator(".detail .cm-content").waitFor();
          await page.locator(".findings").waitFor();
        }
        await look(name);
      }
      await visit(page, "Now");
      await page.getByRole("link", { name: "report" }).click();
      await page.getByRole("button", { name: "main.py" }).click();
      await page.getByRole("textbox", { name: "main.py" }).waitFor();
      await look("Sandbox");
      await visit(page, "Now");
      await page.getByRole("link", { name: "fetching" }).click();
      await page.getByRole("navigation", { name: "Sandbox" }).getByRole("link", { name: "Network" }).click();
      await page.getByRole("button", { name: "Allow files.example", exact: true }).first().waitFor();
      await page.getByLabel("Would this be reached?").fill("files.pythonhosted.org");
      await page.locator(".verdict .good").waitFor();
      await look("Network");
      await page.getByRole("button", { name: "Change" }).click();
      await page.locator(".modes").waitFor();
      await look("NetworkEdit");
      await visit(page, "Tools");
      const card = page.locator(".cards li", { has: page.getByText("analyse", { exact: true }) });
      await card.getByRole("button", { name: "Dry test" }).click();
      await card.locator(".diff").waitFor();
      await card.getByRole("button", { name: "Change" }).click();
      await page.getByText('"description": "Analyses data."').waitFor();
      await look("ToolEdit");
      await visit(page, "Keys");
      await page.getByRole("button", { name: "Change" }).first().click();
      await look("KeyEdit");
      assert.deepEqual(found, []);
    }, { colorScheme: theme, viewport: { width, height: 900 } });
  }
});

inPage("signing out everywhere ends other browsers' sessions and streams", async (page) => {
  const key = (await makeKey("twice", "user")).key;
  const other = await open(browser, server.url);
  try {
    await signIn(other.page, server.url, key);
    await signIn(page, server.url, key);
    await page.getByRole("button", { name: "Sign out everywhere" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Sign out everywhere" }).click();
    await page.getByLabel("API key").waitFor();
    // Its stream of events ends, and it is refused a new one.
    await other.page.getByRole("dialog", { name: "Sign in again" }).waitFor({ timeout: DEADLINE });
  } finally {
    await other.context.close();
  }
});
