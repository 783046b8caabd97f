// What goes wrong while somebody uses the console: links that are none, sessions and servers that end, people at the same call, thieves.
import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { browse, caller, eventually, exec, open, serve, signIn, type, visit, withPage } from "./fixture.mjs";

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

const inPage = (name, act, options) => test(name, () => withPage(browser, server.url, act, options));
const makeKey = (name, role, more = {}) => admin("POST", "/v1/keys", { name, role, ...more });
const again = (page) => page.getByRole("dialog", { name: "Sign in again" });

/** Opens a file of a sandbox in the editor. */
async function edit(page, id, name) {
  await page.goto(`${server.url}/console#/sandbox/${id}/files`);
  await page.getByRole("button", { name, exact: true }).click();
  await page.locator(".cm-content").waitFor();
}

inPage("a link that is none leaves screen and session as they are", async (page) => {
  await signIn(page, server.url, server.key);
  await visit(page, "Run");
  await type(page, ["typed = 'before the link'"]);
  for (const link of ["#link=nothing", "#link=", "#link=bjl_zz"]) {
    await page.evaluate((hash) => (location.hash = hash), link);
    await page.locator(".notice.bad", { hasText: "used already" }).waitFor();
    await page.getByRole("button", { name: "Dismiss" }).click();
    assert.equal(new URL(page.url()).hash, "#/run");
    await page.getByRole("heading", { level: 1, name: "Run" }).waitFor();
    assert.match(await page.locator(".cm-content").innerText(), /before the link/);
  }
  // Nor one that was used already: somebody is asked first, and can stay.
  const { path } = await admin("POST", "/v1/session/links");
  await page.evaluate((to) => (location.hash = new URL(to, location.href).hash), path);
  await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
  assert.match(await page.locator(".cm-content").innerText(), /before the link/);
  await page.reload();
  await page.getByRole("heading", { level: 1, name: "Run" }).waitFor();
  // Without a session, it is said where people sign in.
  await page.context().clearCookies();
  await page.evaluate(() => localStorage.clear());
  await page.goto(`${server.url}/console?again#link=nothing`);
  await page.getByRole("alert").filter({ hasText: "used already" }).waitFor();
  await page.getByLabel("API key").waitFor();
});

// Of each kind one, and those that are letters to Unicode though nobody sees them.
const HIDDEN = [0xad, 0x34f, 0x61c, 0x115f, 0x1160, 0x17b4, 0x180b, 0x180e, 0x200b, 0x200d, 0x202e, 0x2060, 0x2065, 0x2066, 0x2800, 0x3164, 0xfe0f, 0xfeff, 0xffa0, 0xfff9, 0x1bca0, 0x1d173, 0xe0001, 0xe0041, 0xe0100];

inPage("names that nobody can see are shown by their numbers", async (page) => {
  const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m" });
  const code = [
    "import os",
    "os.makedirs('names', exist_ok=True)",
    `for one in ${JSON.stringify(HIDDEN)}: open('names/' + chr(one), 'w').close()`,
    "open('text.txt', 'w').write(''.join('<' + chr(one) + '>' for one in " + JSON.stringify(HIDDEN) + "))",
  ].join("\n");
  const done = await admin("POST", `/v1/sandboxes/${id}/code`, { code });
  assert.equal(done.error ?? null, null);
  await signIn(page, server.url, server.key);
  await page.goto(`${server.url}/console#/sandbox/${id}/files`);
  const names = HIDDEN.map((one) => `⟨U+${one.toString(16).toUpperCase().padStart(4, "0")}⟩`);
  // In an editor, and in the output of a cell.
  await page.getByRole("button", { name: "text.txt", exact: true }).click();
  await page.locator(".cm-content").getByText(names[0]).first().waitFor();
  const inEditor = await page.locator(".cm-content").innerText();
  assert.deepEqual(names.filter((name) => !inEditor.includes(`<${name}>`)), []);
  await page.getByRole("button", { name: "names/", exact: true }).click();
  for (const name of names) await page.getByRole("button", { name, exact: true }).waitFor();
  await visit(page, "Run");
  await page.locator(".settings select").first().selectOption(id);
  await type(page, ["print(open('text.txt').read(), 'warning \\u26a0\\ufe0f.')"]);
  await page.keyboard.press("Shift+Enter");
  await page.getByText(/^ok, /).waitFor();
  const output = await page.locator(".output").first().innerText();
  assert.deepEqual(names.filter((name) => !output.includes(`<${name}>`)), []);
  // The selector of a picture belongs to it.
  assert.match(output, /warning \u26a0\./);
  await admin("DELETE", `/v1/sandboxes/${id}`);
});

test("of two people who decide at once, one decides, and the other one is told", async () => {
  const agent = caller(server.url, (await makeKey("agent", "user", { owner: "agent", approval: "always" })).key);
  const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m" });
  const call = agent("POST", `/v1/sandboxes/${id}/code`, { code: "print('it ran')" }).then((done) => done.stdout.data, String);
  const { id: approval } = await eventually("it waits", async () => (await admin("GET", "/v1/approvals?state=pending")).approvals[0]);
  const people = await Promise.all(["ann", "bob"].map(async (owner) => ({ owner, key: (await makeKey(owner, "approver", { owner })).key, ...(await open(browser, server.url)) })));
  try {
    const [ann, bob] = people;
    let clicked = 0;
    let go;
    const both = new Promise((resolve) => (go = resolve));
    for (const { page, key } of people) {
      await signIn(page, server.url, key);
      await page.goto(`${server.url}/console#/approvals/${approval}`);
      // Neither request is sent before both have clicked.
      await page.route(/\/v1\/approvals\/[^/]+\/(approve|deny)$/, async (route) => {
        clicked += 1;
        if (clicked === 2) go();
        await both;
        await route.continue();
      });
    }
    const answers = people.map(({ page }) => page.waitForResponse(/\/v1\/approvals\/[^/]+\/(approve|deny)$/));
    await Promise.all([ann.page.getByRole("button", { name: "Approve once" }).click(), bob.page.getByRole("button", { name: "Deny" }).click()]);
    const statuses = await Promise.all(answers.map(async (answer) => (await answer).status()));
    assert.deepEqual([...statuses].sort(), [200, 409]);
    const at = statuses.indexOf(200);
    const [winner, loser] = [people[at], people[1 - at]];
    const state = at === 0 ? "approved" : "denied";
    await loser.page.locator(".detail").getByRole("alert").waitFor();
    await loser.page.locator(".detail .state", { hasText: state }).waitFor();
    await loser.page.locator(".facts dd", { hasText: winner.owner }).first().waitFor();
    assert.equal(await loser.page.getByRole("button", { name: /^(Approve once|Deny)$/ }).count(), 0);
    assert.match(await call, at === 0 ? /^it ran\n$/ : /not_approved|denied/);
    assert.equal((await admin("GET", `/v1/approvals/${approval}`)).state, state);
    for (const { trouble } of people) assert.deepEqual(trouble, []);
  } finally {
    await Promise.all(people.map(({ context }) => context.close()));
    await admin("DELETE", `/v1/sandboxes/${id}`);
  }
});

test("a server that restarts under the open page is there again by itself", async () => {
  const own = await serve();
  try {
    await withPage(browser, own.url, async (page) => {
      const call = caller(own.url, own.key);
      await call("POST", "/v1/sandboxes", { timeout: "10m", name: "from-before" });
      await signIn(page, own.url, own.key);
      await page.getByRole("link", { name: "from-before" }).waitFor();
      await visit(page, "Run");
      await type(page, ["typed = 'before the restart'"]);
      await visit(page, "Now");
      await own.restart(async () => {
        await page.locator(".banner", { hasText: "The server cannot be reached" }).waitFor();
        // Lists that cannot be loaded meanwhile do not say it again.
        await visit(page, "Run");
        const unloaded = page.waitForEvent("requestfailed", (request) => request.url().includes("/v1/approvals"));
        await visit(page, "Now");
        await unloaded;
        assert.equal(await page.getByRole("alert").count(), 1);
      });
      await page.locator(".banner", { hasText: "The server cannot be reached" }).waitFor({ state: "hidden" });
      // What ended with it has gone, and what is new appears by itself: the events go on too.
      await page.getByRole("link", { name: "from-before" }).waitFor({ state: "hidden" });
      await call("POST", "/v1/sandboxes", { timeout: "10m", name: "from-after" });
      await page.getByRole("link", { name: "from-after" }).waitFor();
      assert.equal(await again(page).count(), 0);
      await visit(page, "Run");
      await type(page, ["print('after ' + 'the restart')"]);
      await page.keyboard.press("Shift+Enter");
      await page.locator(".output").getByText("after the restart").waitFor();
    });
  } finally {
    await own.stop();
  }
});

inPage("a session that ends while somebody types goes on with what was typed", async (page) => {
  const { key } = await makeKey("typist", "user");
  const { id } = await caller(server.url, key)("POST", "/v1/sandboxes", { timeout: "10m" });
  await exec(admin, id, "printf 'first\\n' > notes.txt");
  await signIn(page, server.url, key);
  await edit(page, id, "notes.txt");
  await page.locator(".cm-content").click();
  await page.keyboard.press("Control+End");
  await page.keyboard.type("half of a sen");
  const other = await open(browser, server.url);
  try {
    await signIn(other.page, server.url, key);
    await other.page.getByRole("button", { name: "Sign out everywhere" }).click();
    await other.page.getByRole("dialog").getByRole("button", { name: "Sign out everywhere" }).click();
  } finally {
    await again(page).waitFor();
    await other.context.close();
  }
  await again(page).getByLabel("API key").fill(key);
  await again(page).getByRole("button", { name: "Sign in" }).click();
  await again(page).waitFor({ state: "hidden" });
  await page.getByText("not saved").waitFor();
  await page.locator(".cm-content").click();
  await page.keyboard.press("Control+End");
  await page.keyboard.type("tence");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByText("notes.txt is saved").waitFor();
  assert.equal((await exec(admin, id, "cat notes.txt")).stdout.data, "first\nhalf of a sentence");
  await admin("DELETE", `/v1/sandboxes/${id}`);
});

inPage("a file of 1 GB is not opened, nor one that has grown, and is downloaded past the page", async (page) => {
  const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m" });
  const made = await exec(admin, id, "truncate -s 1G large.bin && echo small > growing.txt");
  assert.equal(made.exit_code, 0, JSON.stringify(made));
  await signIn(page, server.url, server.key);
  await page.goto(`${server.url}/console#/sandbox/${id}/files`);
  await page.getByRole("button", { name: "large.bin", exact: true }).click();
  await page.getByRole("alert").filter({ hasText: "1.0 GiB, which is too much" }).waitFor();
  await exec(admin, id, "truncate -s 1G growing.txt");
  await page.getByRole("button", { name: "growing.txt", exact: true }).click();
  await page.getByRole("alert").filter({ hasText: "1.0 MiB, which is too much" }).waitFor();
  assert.equal(await page.locator(".cm-content").count(), 0);
  const started = page.waitForEvent("download");
  await page.getByRole("row", { name: /large\.bin/ }).getByRole("button", { name: "Download" }).click();
  const download = await started;
  assert.equal(download.suggestedFilename(), "large.bin");
  await download.cancel();
  const all = page.waitForEvent("download");
  await page.getByRole("button", { name: "Download all as tar.gz" }).click();
  const archive = await all;
  assert.equal(archive.suggestedFilename(), "user.tar.gz");
  await archive.cancel();
  const heap = await page.evaluate(() => performance.memory.usedJSHeapSize);
  assert.ok(heap < 50e6, `${heap} bytes`);
  await admin("DELETE", `/v1/sandboxes/${id}`);
});

inPage("rows of a directory are gone once another one is entered", async (page) => {
  const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m" });
  await exec(admin, id, "mkdir -p src/tests tests && touch src/inner tests/of-the-first");
  await signIn(page, server.url, server.key);
  await page.goto(`${server.url}/console#/sandbox/${id}/files`);
  await page.getByRole("button", { name: "tests/", exact: true }).waitFor();
  // The answer about the next directory is held back, and then refused.
  let answer;
  const held = new Promise((resolve) => (answer = resolve));
  await page.route(/files\?path=[^&]*src&/, async (route) => {
    await held;
    await route.abort();
  });
  await page.getByRole("button", { name: "src/", exact: true }).click();
  await page.getByText("/home/user/src", { exact: true }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Remove" }).count(), 0);
  answer();
  await page.locator(".banner").waitFor();
  assert.equal(await page.getByRole("button", { name: "Remove" }).count(), 0);
  await page.unroute(/files\?path=[^&]*src&/);
  // The page comes back by itself, with what is there.
  await page.getByRole("button", { name: "inner", exact: true }).waitFor();
  await page.getByRole("row", { name: /tests/ }).getByRole("button", { name: "Remove" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
  await page.getByRole("button", { name: "tests/", exact: true }).waitFor({ state: "hidden" });
  assert.equal((await exec(admin, id, "ls . src")).stdout.data, ".:\nsrc\ntests\n\nsrc:\ninner\n");
  await admin("DELETE", `/v1/sandboxes/${id}`);
});

inPage("a cell is interrupted and answered where it runs, whichever sandbox is chosen since", async (page) => {
  const [first, second] = await Promise.all(["first", "second"].map((name) => admin("POST", "/v1/sandboxes", { timeout: "10m", name })));
  await signIn(page, server.url, server.key);
  await visit(page, "Run");
  const choose = (one) => page.locator(".settings select").first().selectOption(one.id);
  await choose(first);
  await page.locator(".cell select").first().selectOption("bash");
  await type(page, ["echo begun; sleep 600"]);
  await page.keyboard.press("Shift+Enter");
  await page.locator(".output").getByText("begun").waitFor();
  await choose(second);
  await page.getByRole("button", { name: "Interrupt" }).click();
  await page.getByRole("button", { name: "Run", exact: true }).waitFor();
  // Its context is in the other sandbox.
  assert.equal(await page.getByRole("button", { name: "Restart" }).count(), 0);
  await choose(first);
  await page.getByRole("button", { name: "Restart" }).waitFor();
  for (const { id } of [first, second]) await admin("DELETE", `/v1/sandboxes/${id}`);
});

inPage("an upload for which there is no room says so", async (page) => {
  const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m", limits: { disk: "16m" } });
  await signIn(page, server.url, server.key);
  await page.goto(`${server.url}/console#/sandbox/${id}/files`);
  const directory = await mkdtemp(join(tmpdir(), "belljar-upload-"));
  const upload = async (name, size) => {
    await writeFile(join(directory, name), Buffer.alloc(size, "x"));
    await page.getByLabel("Upload").setInputFiles(join(directory, name));
  };
  await upload("too-large.txt", 40 << 20);
  await page.getByRole("alert").first().waitFor();
  assert.equal(await page.getByRole("button", { name: "too-large.txt", exact: true }).count(), 0);
  await upload("fits.txt", 1000);
  await page.getByRole("button", { name: "fits.txt", exact: true }).waitFor();
  assert.equal(await page.getByRole("alert").count(), 0);
  await rm(directory, { recursive: true });
  await admin("DELETE", `/v1/sandboxes/${id}`);
});

inPage("a terminal says that its shell, or its sandbox, has ended", async (page) => {
  const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m" });
  await signIn(page, server.url, server.key);
  await page.goto(`${server.url}/console#/sandbox/${id}/terminal`);
  const terminal = page.frameLocator("iframe.terminal");
  const says = (text) => terminal.locator(".xterm-rows, .xterm-accessibility").getByText(text).first();
  const enter = (text, answer) =>
    eventually(answer, async () => {
      await terminal.locator(".xterm-helper-textarea").focus();
      await page.keyboard.type(`${text}\n`);
      return says(answer).waitFor({ timeout: 3000 }).then(() => true, () => false);
    });
  await page.getByRole("button", { name: "Open a terminal" }).click();
  await enter("exit", "[ended]");
  await page.getByRole("button", { name: "Open a terminal" }).click();
  await says("[ended]").waitFor({ state: "hidden" });
  await enter("echo $((6*7))again", "42again");
  // The screen takes its part away as soon as it knows; the terminal itself says so too.
  const alone = await page.context().newPage();
  await alone.goto(`${server.url}/console/terminal#${id}`);
  await eventually("the shell answers", async () => {
    await alone.locator(".xterm-helper-textarea").focus();
    await alone.keyboard.type("echo $((6*7))alone\n");
    return alone.locator(".xterm-rows, .xterm-accessibility").getByText("42alone").first().waitFor({ timeout: 3000 }).then(() => true, () => false);
  });
  await admin("DELETE", `/v1/sandboxes/${id}`);
  await alone.locator(".xterm-rows, .xterm-accessibility").getByText(/\[(ended|disconnected|[^\]]*(ended|gone)[^\]]*)\]/).first().waitFor();
  await page.locator(".head .state", { hasText: "gone" }).waitFor();
  assert.equal(await page.locator("iframe.terminal").count(), 0);
  assert.equal(await page.getByRole("button", { name: "Open a terminal" }).count(), 0);
  await visit(page, "Now");
});

inPage("a stolen cookie is worth nothing without the page, nor with its token from another origin", async (page) => {
  const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m" });
  await signIn(page, server.url, server.key);
  const [cookie] = (await page.context().cookies(`${server.url}/v1/me`)).filter(({ name }) => name === "belljar_session");
  const token = await page.evaluate(() => localStorage.getItem("belljar.session"));
  const act = async (headers) => (await fetch(`${server.url}/v1/sandboxes/${id}/pause`, { method: "POST", headers: { cookie: `belljar_session=${cookie.value}`, ...headers } })).status;
  const elsewhere = { origin: "https://elsewhere.example" };
  const [own, wrong] = [{ "x-belljar-session": token }, { "x-belljar-session": "0".repeat(token.length) }];
  assert.deepEqual([await act({}), await act(wrong), await act({ ...elsewhere }), await act({ ...elsewhere, ...own })], [401, 401, 403, 403]);
  assert.equal((await admin("GET", `/v1/sandboxes/${id}`)).state, "running");
  // Both halves are the session; and it ends for a thief too.
  assert.equal(await act(own), 200);
  await page.getByRole("button", { name: "Sign out", exact: true }).click();
  await page.getByLabel("API key").waitFor();
  assert.equal(await act(own), 401);
  await admin("DELETE", `/v1/sandboxes/${id}`);
});

/** Calls behind what each role does not see. */
const BEYOND = {
  user: [
    ["GET", "/v1/keys"], ["POST", "/v1/keys", { name: "a" }], ["PATCH", "/v1/keys/key_0", { role: "admin" }], ["DELETE", "/v1/keys/key_0"],
    ["GET", "/v1/audit"], ["GET", "/v1/audit/export"], ["POST", "/v1/audit/verify"],
    ["POST", "/v1/tools", { name: "a", description: "a", languages: ["bash"] }], ["PUT", "/v1/tools/beyond", { description: "a", languages: ["bash"] }], ["DELETE", "/v1/tools/beyond"],
    ["POST", "/v1/templates", { definition: "name = 'a'" }], ["POST", "/v1/approvals/APPROVAL/approve"], ["POST", "/v1/approvals/APPROVAL/deny"],
  ],
  approver: [
    ["POST", "/v1/sandboxes"], ["POST", "/v1/sandboxes/SANDBOX/pause"], ["DELETE", "/v1/sandboxes/SANDBOX"], ["PATCH", "/v1/sandboxes/SANDBOX", { network: "open" }],
    ["POST", "/v1/sandboxes/SANDBOX/code", { code: "1" }], ["POST", "/v1/sandboxes/SANDBOX/exec", { command: "true" }], ["GET", "/v1/keys"], ["GET", "/v1/audit"],
    ["PUT", "/v1/tools/beyond", { description: "a", languages: ["bash"] }], ["POST", "/v1/volumes", { name: "a" }], ["POST", "/v1/secrets", { name: "a", value: "b" }],
    ["POST", "/v1/screen", { language: "python", code: "1" }], ["POST", "/v1/templates", { definition: "name = 'a'" }],
  ],
};
const SCREENS = {
  user: ["Now", "Run", "Approvals", "Tools", "Templates", "Volumes", "Secrets", "Engines"],
  approver: ["Now", "Approvals", "Tools", "Templates", "Volumes", "Secrets", "Engines"],
};
for (const role of ["user", "approver"]) {
  inPage(`the role ${role} sees and can do no more than its key`, async (page) => {
    const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m" });
    const agent = caller(server.url, (await makeKey(`waits-for-${role}`, "user", { owner: "agent", approval: "always" })).key);
    await admin("POST", "/v1/tools", { name: "beyond", description: "Is there.", languages: ["bash"] });
    const call = agent("POST", `/v1/sandboxes/${id}/code`, { code: "1" }).catch(() => null);
    const { id: approval } = await eventually("it waits", async () => (await admin("GET", "/v1/approvals?state=pending")).approvals[0]);
    await signIn(page, server.url, (await makeKey(`a-${role}`, role)).key);
    assert.deepEqual(await page.getByRole("navigation", { name: "Screens" }).getByRole("link").allInnerTexts(), SCREENS[role]);
    if (role === "user") {
      // Nor does it see calls of others.
      await page.goto(`${server.url}/console#/approvals/${approval}`);
      await page.locator(".detail").getByRole("alert").waitFor();
      assert.equal(await page.getByRole("button", { name: /^(Approve|Deny)/ }).count(), 0);
    }
    const calls = BEYOND[role].map(([method, path, body]) => [method, path.replace("SANDBOX", id).replace("APPROVAL", approval), body]);
    const statuses = await page.evaluate(async (all) => {
      const headers = { "x-belljar-session": localStorage.getItem("belljar.session"), "content-type": "application/json" };
      const ask = ([method, path, body]) => fetch(path, { method, headers, body: ["GET", "DELETE"].includes(method) ? undefined : JSON.stringify(body ?? {}) });
      return Promise.all(all.map((one) => ask(one).then((answer) => answer.status)));
    }, calls);
    assert.deepEqual(statuses.map((status, at) => (status === 403 ? null : `${calls[at].slice(0, 2)}: ${status}`)).filter(Boolean), []);
    assert.equal((await admin("GET", `/v1/approvals/${approval}`)).state, "pending");
    await admin("POST", `/v1/approvals/${approval}/deny`, {});
    await call;
    await admin("DELETE", "/v1/tools/beyond");
    await admin("DELETE", `/v1/sandboxes/${id}`);
  });
}
