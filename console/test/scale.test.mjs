// A page with 500 sandboxes and 50 events a second: what it costs, and that people and screen readers can use its lists.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { browse, caller, crowded, eventually, exec, serve, signIn, violations, visit, withPage } from "./fixture.mjs";

const SANDBOXES = 500;
const EVENTS_A_SECOND = 50;
/** Longest scripting between two frames, of 95 in 100, as a multiple of what it takes to make a list of rows with plain elements. */
const MAX_SCRIPTING = 6;
/** Number of such lists that are made, and least number of frames in which the page is measured. */
const FRAMES = 100;
/** Memory of the page's process, in bytes. */
const MAX_MEMORY = 200e6;
/** Number of events during which the page is measured. */
const MEASURED = 500;
/** Rows in the page, at most. */
const MAX_ROWS = 110;

let server, crowd, browser, admin;

before(async () => {
  server = await serve();
  browser = await browse();
  admin = caller(server.url, server.key);
  crowd = await crowded(server.url, admin, SANDBOXES, EVENTS_A_SECOND);
});
after(async () => {
  await browser?.close();
  crowd?.close();
  await server?.stop();
});

const inCrowd = (name, act, options) => test(name, () => withPage(browser, crowd.url, act, options));
const list = (page) => page.locator(".scroll").and(page.getByRole("region", { name: "Sandboxes" }));
const atEnd = (page) => page.evaluate(() => scrollTo(0, document.body.scrollHeight));

/** Scripting between each two frames, in milliseconds of processor time: what is in another such entry is not counted again. */
function scripting(trace) {
  const SCRIPTS = new Set(["FunctionCall", "EvaluateScript", "RunMicrotasks", "TimerFire", "FireAnimationFrame", "EventDispatch", "v8.callFunction", "V8.GCScavenger", "MinorGC", "MajorGC", "V8.GCFinalizeMC", "V8.GCIncrementalMarking"]);
  const threads = trace.filter(({ name, args }) => name === "thread_name" && args.name === "CrRendererMain").map(({ pid, tid }) => `${pid} ${tid}`);
  const frames = threads.map((thread) => {
    const own = trace.filter(({ pid, tid, ph, name }) => `${pid} ${tid}` === thread && ph === "X" && SCRIPTS.has(name)).sort((one, other) => one.ts - other.ts);
    const found = [];
    let end = 0;
    for (const { name, ts, dur = 0, tdur = dur } of own) {
      if (name === "FireAnimationFrame") found.push(0);
      if (ts >= end && found.length > 0) {
        found[found.length - 1] += tdur / 1000;
        end = ts + dur;
      }
    }
    return found;
  });
  return frames.sort((one, other) => other.length - one.length)[0] ?? [];
}

/** Memory of a process in bytes, without that of files such as the browser's own. */
function memoryOf(pid) {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  const [own, shared] = ["RssAnon", "RssShmem"].map((name) => Number(new RegExp(`^${name}:\\s+(\\d+) kB`, "m").exec(status)[1]));
  return 1024 * (own + shared);
}

/** Scripting of 50 and of 95 in 100 frames while something is done, in milliseconds of processor time: clocks of a busy machine say nothing. */
async function traced(page, act) {
  await browser.startTracing(page, { categories: ["devtools.timeline", "disabled-by-default-devtools.timeline", "v8"] });
  await act();
  const trace = JSON.parse((await browser.stopTracing()).toString()).traceEvents;
  const frames = scripting(trace).sort((one, other) => one - other);
  const [half, most] = [0.5, 0.95].map((share) => frames[Math.floor(share * (frames.length - 1))]);
  console.log(`${frames.length} frames: scripting of ${half?.toFixed(2)} ms (median), ${most?.toFixed(2)} ms (95%)`);
  return { count: frames.length, half, most };
}

inCrowd("scripting stays in bounds", async (page) => {
  await signIn(page, crowd.url, server.key);
  await list(page).getByRole("link", { name: "sandbox-0", exact: true }).waitFor();
  // A frame as often as there can be one, as if something moved all the time.
  await page.evaluate(() => {
    globalThis.frames = 0;
    const frame = () => {
      globalThis.frames++;
      requestAnimationFrame(frame);
    };
    frame();
  });
  await page.mouse.move(700, 600);
  const own = await traced(page, async () => {
    const [before, first] = [crowd.sent(), await page.evaluate(() => globalThis.frames)];
    await eventually("the events and frames", async () => {
      await page.mouse.wheel(0, 400 * (Math.floor(Math.random() * 5) - 1));
      const count = await page.evaluate(() => globalThis.frames);
      return crowd.sent() - before >= MEASURED && count - first > FRAMES;
    });
  });
  await page.goto("about:blank");
  const peer = await traced(page, () => page.evaluate(async ([rows, frames]) => {
    const element = (name, ...children) => {
      const made = document.createElement(name);
      made.append(...children);
      return made;
    };
    const cell = (text) => element("td", element("span", text));
    const row = (index) => element("tr", ...Array.from({ length: 8 }, (_, place) => cell(`sandbox-${index}-${place}`)));
    for (let frame = 0; frame < frames; frame++) {
      await new Promise(requestAnimationFrame);
      document.body.replaceChildren(element("table", ...Array.from({ length: rows }, (_, index) => row(index))));
    }
  }, [MAX_ROWS, FRAMES]));
  assert.ok(own.count > FRAMES && peer.count >= FRAMES && peer.half > 0.1, JSON.stringify({ own, peer }));
  console.log(`scripting of ${(own.most / peer.half).toFixed(2)} lists`);
  assert.ok(own.most < MAX_SCRIPTING * peer.half, JSON.stringify({ own, peer }));
});

test("memory stays in bounds", async () => {
  // A page that nobody looks into: tools for that keep all answers in its memory.
  const session = await browser.newBrowserCDPSession();
  const { browserContextId } = await session.send("Target.createBrowserContext");
  const { path } = await admin("POST", "/v1/session/links");
  const { targetId } = await session.send("Target.createTarget", { url: crowd.url + path, browserContextId });
  await eventually("the page", async () => (await session.send("Target.getTargets")).targetInfos.some((one) => one.targetId === targetId && one.title.startsWith("Now")));
  const before = crowd.sent();
  await eventually("the events", () => crowd.sent() - before >= 2 * MEASURED);
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  const used = Math.max(...processInfo.filter(({ type }) => type === "renderer").map(({ id }) => memoryOf(id)));
  await session.send("Target.disposeBrowserContext", { browserContextId });
  await session.detach();
  console.log(`memory of ${Math.round(used / 1e6)} MB`);
  assert.ok(used > 20e6 && used < MAX_MEMORY, `${used}`);
});

inCrowd("a long list has its rows in view alone, all of them by scrolling, and does not move", async (page) => {
  await page.addInitScript(() => {
    globalThis.shifts = 0;
    // What is below it moves as denials appear.
    const isOfList = ({ node }) => node?.closest?.(".scroll") || node?.parentElement?.closest(".scroll");
    new PerformanceObserver((all) => all.getEntries().filter(({ sources }) => sources.some(isOfList)).forEach((one) => (globalThis.shifts += one.value))).observe({ type: "layout-shift", buffered: true });
  });
  await signIn(page, crowd.url, server.key);
  await list(page).getByRole("link", { name: "sandbox-0", exact: true }).waitFor();
  const rows = () => list(page).locator("tbody tr").count();
  assert.ok((await rows()) < MAX_ROWS, `${await rows()}`);
  const table = list(page).getByRole("table");
  assert.equal(await table.getAttribute("aria-rowcount"), String(SANDBOXES + 1));
  assert.deepEqual(await violations(page), []);
  const widths = () => list(page).locator("th").evaluateAll((all) => all.map((one) => one.getBoundingClientRect().width));
  const heightOf = () => list(page).evaluate((one) => one.scrollHeight);
  const [before, height] = [await widths(), await heightOf()];
  await page.evaluate(() => (globalThis.shifts = 0));
  // All rows come by, in order.
  const seen = new Set();
  for (let top = 0; top < height + 1000; top += 500) {
    await page.evaluate((to) => scrollTo(0, to), top);
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    for (const name of await list(page).locator("tbody a").evaluateAll((all) => all.filter((one) => one.getBoundingClientRect().top < innerHeight && one.getBoundingClientRect().bottom > 0).map((one) => one.textContent))) seen.add(name);
    assert.ok((await rows()) < MAX_ROWS);
  }
  assert.deepEqual([...seen], [...Array(SANDBOXES).keys()].map((at) => `sandbox-${at}`));
  const last = list(page).getByRole("row", { name: /sandbox-499/ });
  assert.equal(await last.getAttribute("aria-rowindex"), String(SANDBOXES + 1));
  assert.deepEqual(await widths(), before);
  // Less than a row, of 500.
  assert.ok(Math.abs((await heightOf()) - height) < 36, `${await heightOf()}, not ${height}`);
  const shifts = await page.evaluate(() => globalThis.shifts);
  assert.ok(shifts < 0.01, `layout shifts of ${shifts}`);
  await list(page).getByRole("link", { name: "sandbox-499" }).click();
  await page.getByRole("heading", { level: 1, name: "Sandbox" }).waitFor();
});

inCrowd("the keyboard goes through a long list, and does not lose its place", async (page) => {
  await signIn(page, crowd.url, server.key);
  const first = list(page).getByRole("link", { name: "sandbox-0", exact: true });
  await first.focus();
  const focused = () => page.evaluate(() => document.activeElement?.textContent ?? "");
  for (let at = 1; at <= 120; at += 1) {
    await page.keyboard.press("Tab");
    assert.equal(await focused(), `sandbox-${at}`);
  }
  // Away from it, it is still there.
  await atEnd(page);
  await list(page).getByRole("link", { name: "sandbox-499" }).waitFor();
  assert.equal(await focused(), "sandbox-120");
  await page.keyboard.press("Shift+Tab");
  assert.equal(await focused(), "sandbox-119");
  await eventually("it is in view", () => page.evaluate(() => document.activeElement.getBoundingClientRect().top > 0 && document.activeElement.getBoundingClientRect().bottom < innerHeight));
  await page.keyboard.press("Tab");
  await page.keyboard.press("Tab");
  assert.equal(await focused(), "sandbox-121");
});

inCrowd("a long list fits a telephone", async (page) => {
  await signIn(page, crowd.url, server.key);
  await list(page).getByRole("link", { name: "sandbox-0", exact: true }).waitFor();
  await eventually("the end", async () => {
    await atEnd(page);
    return list(page).getByRole("link", { name: "sandbox-499" }).isVisible();
  });
  assert.ok((await list(page).locator("tbody tr").count()) < MAX_ROWS);
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0);
}, { viewport: { width: 390, height: 900 } });

test("a directory of 1,500 files is a list of its own height", () =>
  withPage(browser, server.url, async (page) => {
    const { id } = await admin("POST", "/v1/sandboxes", { timeout: "10m" });
    await exec(admin, id, "mkdir many && cd many && seq -f 'file-%04g.txt' 1500 | xargs touch && echo found > file-1500.txt");
    await signIn(page, server.url, server.key);
    await page.goto(`${server.url}/console#/sandbox/${id}/files`);
    await page.getByRole("button", { name: "many/", exact: true }).click();
    await page.getByRole("button", { name: "file-0001.txt", exact: true }).waitFor();
    const files = page.getByRole("region", { name: "Files" });
    assert.ok((await files.locator("tbody tr").count()) < MAX_ROWS);
    const last = page.getByRole("button", { name: "file-1500.txt", exact: true });
    await eventually("the end", async () => {
      await files.evaluate((one) => (one.scrollTop = one.scrollHeight));
      return last.isVisible();
    });
    await last.click();
    await page.locator(".cm-content").getByText("found").waitFor();
    await visit(page, "Now");
    await admin("DELETE", `/v1/sandboxes/${id}`);
  }));

test("of 150 tools those in view are in the page, and one that is opened stays", () =>
  withPage(browser, server.url, async (page) => {
    const names = [...Array(150).keys()].map((at) => `tool-${String(at).padStart(3, "0")}`);
    for (const name of names) await admin("POST", "/v1/tools", { name, description: `Does ${name}.`, languages: ["python"] });
    await signIn(page, server.url, server.key);
    await visit(page, "Tools");
    const tools = page.getByRole("list", { name: "Tools" }).locator("> li:not(.room)");
    await page.getByText("Does tool-000.").waitFor();
    assert.ok((await tools.count()) < MAX_ROWS, `${await tools.count()}`);
    await tools.first().getByRole("button", { name: "Dry test" }).click();
    await tools.first().locator(".cm-content").waitFor();
    await eventually("the end", async () => {
      await atEnd(page);
      return page.getByText("Does tool-149.").isVisible();
    });
    assert.ok((await tools.count()) < MAX_ROWS, `${await tools.count()}`);
    assert.equal(await tools.first().getByRole("button", { name: "Dry test" }).getAttribute("aria-expanded"), "true");
    for (const name of names) await admin("DELETE", `/v1/tools/${name}`);
  }));
