// A server, a browser, and people who use the console.
import assert from "node:assert/strict";
import { createServer, request as ask } from "node:http";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";
import { startServer } from "../../sdk/typescript/scripts/server.mjs";

export const DEADLINE = 30_000;
const CHROMIUM = process.env.BELLJAR_CHROMIUM ?? "/usr/bin/chromium";
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Starts a server, without the protections of the service that are named, and with more arguments. */
export async function serve(without = "", more = []) {
  const before = process.env.BELLJAR_TEST_WITHOUT;
  if (without) process.env.BELLJAR_TEST_WITHOUT = without;
  try {
    return await startServer(process.env.BELLJAR_BIN, more);
  } finally {
    if (before === undefined) delete process.env.BELLJAR_TEST_WITHOUT;
    else process.env.BELLJAR_TEST_WITHOUT = before;
  }
}

export const browse = () =>
  chromium.launch({ executablePath: CHROMIUM, args: process.getuid?.() === 0 ? ["--no-sandbox"] : [] });

/** Calls the REST interface with a key. */
export function caller(url, key) {
  return async (method, path, body) => {
    const response = await fetch(url + path, {
      method,
      headers: { authorization: `Bearer ${key}`, ...(body === undefined ? {} : { "content-type": "application/json" }) },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await response.text();
    assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
    return text ? JSON.parse(text) : null;
  };
}

/** The link that a server has printed. */
export const linkOf = (server) => /console (\S+#link=bjl_[0-9a-f]{64})/.exec(server.output())?.[1];

/** Opens a page that fails the test on dialogs, errors of scripts, and requests to other origins. */
export async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  context.setDefaultTimeout(DEADLINE);
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: url });
  const page = await context.newPage();
  const trouble = [];
  page.on("dialog", (dialog) => (trouble.push(`dialog: ${dialog.message()}`), void dialog.dismiss()));
  page.on("pageerror", (error) => trouble.push(`error: ${error.message}`));
  page.on("console", (message) => {
    // Chromium itself writes style attributes into an editor whose text is replaced.
    const own = !message.text().startsWith("Applying inline style");
    if (own && /Content Security Policy/i.test(message.text())) trouble.push(`policy: ${message.text()}`);
  });
  page.on("request", (request) => {
    const to = new URL(request.url());
    if (!["data:", "blob:", "about:"].includes(to.protocol) && to.origin !== url) trouble.push(`request: ${to}`);
  });
  return { page, context, trouble };
}

/** Uses a page of its own, which must stay whole. */
export async function withPage(browser, url, act, options) {
  const { page, context, trouble } = await open(browser, url, options);
  try {
    await act(page, trouble);
    assert.deepEqual(trouble, []);
  } finally {
    await context.close();
  }
}

/** Replaces the code of the first cell. */
export async function type(page, lines) {
  const editor = page.locator(".cm-content").first();
  await editor.click();
  await page.keyboard.press("Control+a");
  await page.keyboard.insertText(lines.join("\n"));
}

export const exec = (call, id, command) => call("POST", `/v1/sandboxes/${id}/exec`, { command });

export async function signIn(page, url, key) {
  await page.goto(`${url}/console`);
  await page.getByLabel("API key").fill(key);
  await page.getByRole("button", { name: "Sign in", exact: true }).click();
  await page.getByRole("heading", { level: 1, name: "Now" }).waitFor();
}

/** Opens a screen by its link. */
export async function visit(page, name) {
  await page.getByRole("navigation", { name: "Screens" }).getByRole("link", { name, exact: true }).click();
  await page.getByRole("heading", { level: 1, name }).waitFor();
}

/** Violations of WCAG 2.2 AA that axe finds in the page. */
export async function violations(page) {
  await page.evaluate(axe);
  return page.evaluate(async () => {
    const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
    const { violations } = await globalThis.axe.run(document, { runOnly: { type: "tag", values: tags }, iframes: false });
    return violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => `${node.target} ${node.failureSummary}`).join("; ")}`);
  });
}

/** Waits until a function returns something, and returns that. */
export async function eventually(what, act) {
  const end = Date.now() + DEADLINE;
  for (;;) {
    const found = await act();
    if (found) return found;
    assert.ok(Date.now() < end, `not in time: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Serves a page at another origin of the same host, to which browsers send the same cookies. */
export async function elsewhere(html) {
  const server = createServer((_, response) => response.setHeader("content-type", "text/html").end(html));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
}

/**
 * Serves a server's pages as if it had `count` sandboxes, copies of one of its own, and so many events a second, about them: each pauses or resumes
 * one, or is one of a process or a denial.
 */
export async function crowded(to, call, count, rate) {
  const { id } = await call("POST", "/v1/sandboxes", { timeout: "30m", name: "original", labels: { job: "0" } });
  const original = await call("GET", `/v1/sandboxes/${id}`);
  const { sandboxes: [listed] } = await call("GET", "/v1/sandboxes?limit=1");
  assert.deepEqual(Object.keys(listed).sort(), Object.keys(original).sort());
  const { version } = await call("GET", "/version");
  const rows = [...Array(count).keys()].map((at) => ({ ...listed, id: listed.id.slice(0, -4) + String(at).padStart(4, "0"), name: `sandbox-${at}`, labels: { job: String(at) } }));
  const KINDS = ["sandbox.paused", "process.started", "process.exited", "network.deny", "sandbox.resumed"];
  let sent = 0;
  function next() {
    sent += 1;
    const kind = KINDS[sent % KINDS.length];
    const row = rows[Math.floor((sent * 7) % count)];
    if (kind === "sandbox.paused") row.state = "paused";
    else if (kind === "sandbox.resumed") row.state = "running";
    const data = { id: `${version}-${sent}`, at: new Date().toISOString(), kind, tenant: "default", sandbox: row.id, detail: kind === "network.deny" ? `host-${sent}.example:443: no rule allows it` : "" };
    return `event: ${kind}\nid: ${data.id}\ndata: ${JSON.stringify(data)}\n\n`;
  }
  const server = createServer((request, response) => {
    const { pathname, searchParams } = new URL(request.url, to);
    if (request.method === "GET" && pathname === "/v1/sandboxes") {
      const [from, limit] = [Number(searchParams.get("cursor") ?? 0), Number(searchParams.get("limit") ?? 20)];
      const more = from + limit < count ? { next_cursor: String(from + limit) } : {};
      response.setHeader("content-type", "application/json").end(JSON.stringify({ sandboxes: rows.slice(from, from + limit), ...more }));
    } else if (pathname === "/v1/events" && searchParams.get("follow") !== "false") {
      response.setHeader("content-type", "text/event-stream").flushHeaders();
      const began = Date.now();
      let own = 0;
      // As many as the time has brought, also on a busy machine.
      const timer = setInterval(() => {
        for (const due = ((Date.now() - began) * rate) / 1000; own < due; own += 1) response.write(next());
      }, 1000 / rate);
      response.on("close", () => clearInterval(timer));
    } else {
      const { hostname, port } = new URL(to);
      const onwards = ask({ hostname, port, path: request.url, method: request.method, headers: request.headers }, (answer) => {
        response.writeHead(answer.statusCode, answer.headers);
        answer.pipe(response);
      });
      onwards.on("error", () => response.destroy());
      response.on("close", () => onwards.destroy());
      request.pipe(onwards);
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const close = () => (server.closeAllConnections(), server.close());
  return { url: `http://127.0.0.1:${server.address().port}`, sent: () => sent, close };
}
