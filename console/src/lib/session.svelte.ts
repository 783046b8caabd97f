// Who is signed in, and whether the server is there.

import { ApiError, call, post, reason, remove, type Schemas, send, token, watch } from "./api";
import { ask, notify } from "./ask.svelte";
import { forgetForGood } from "./kept";
import { stop } from "./live.svelte";
import { line } from "./plain";
import { t } from "./text";

export const session = $state<{
  state: "unknown" | "out" | "in" | "expired";
  me: Schemas["Me"] | null;
  /** Number of times that the server was reached again: screens load anew. */
  visits: number;
  lost: boolean;
  version: string;
  /** Whether a link is being followed, and why the last one did not sign in. */
  following: boolean;
  linkError: string | null;
}>({ state: "unknown", me: null, visits: 0, lost: false, version: "", following: false, linkError: null });

const LINK = /^bjl_[0-9a-f]+$/;

const RANKS: Record<string, string[]> = {
  read: ["read", "approver", "user", "admin"],
  approver: ["approver", "admin"],
  user: ["user", "admin"],
  admin: ["admin"],
};

/** Reports whether the key's role includes this one. The server decides; the page hides what it would refuse. */
export function may(role: "read" | "approver" | "user" | "admin"): boolean {
  return RANKS[role]?.includes(session.me?.role ?? "") ?? false;
}

/** Whether somebody is signing out, after which the page is loaded again. */
let isLeaving = false;

watch({
  unauthenticated: () => {
    if (session.state === "in" && !isLeaving) session.state = "expired";
    stop();
  },
  unreachable: () => {
    if (!session.lost) {
      session.lost = true;
      void waitForServer();
    }
  },
});

async function waitForServer() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, 1000));
    try {
      const answer = await fetch("/version", { cache: "no-store" });
      if (answer.ok) break;
    } catch {
      // Not there yet.
    }
  }
  await enter();
  session.lost = false;
  session.visits += 1;
}

/** Looks whether the server is there. */
export async function probe() {
  await call("/version").catch(() => {});
}

/** Looks who is signed in. */
export async function enter() {
  try {
    session.version = (await call<Schemas["Version"]>("/version")).version;
    if (!token.get()) {
      session.state = "out";
      return;
    }
    session.me = await call<Schemas["Me"]>("/v1/me");
    session.state = "in";
  } catch (error) {
    if (error instanceof ApiError && error.code !== "unreachable" && session.state === "unknown") {
      session.state = "out";
    }
  }
}

export async function refreshMe() {
  session.me = await call<Schemas["Me"]>("/v1/me");
}

/** Signs in with a key, which is forgotten afterwards. */
export async function signIn(key: string) {
  const response = await send("/v1/session", { method: "POST", headers: { authorization: `Bearer ${key}` } });
  await begun((await response.json()) as Schemas["Session"]);
}

/**
 * Signs in with a one-time link. It does not take the place of a session unnoticed, and a session goes on if nobody wants that, or if the link is
 * none.
 */
export async function followLink(link: string) {
  session.following = true;
  session.linkError = null;
  let failed: string | null = null;
  try {
    if (!LINK.test(link)) throw new ApiError("invalid_link", t.signIn.linkBad);
    const before = token.get() ? await whoIsIn() : null;
    if (before && !(await ask(t.signIn.insteadAsk(line(before.owner ?? before.key, 60)), t.signIn.instead))) return;
    if (before) {
      await remove("/v1/session").catch(() => {});
      token.remove();
      stop();
    }
    if (session.state !== "expired") session.state = "out";
    await begun(await post<Schemas["Session"]>("/v1/session/redeem", { link }));
  } catch (caught) {
    failed = caught instanceof ApiError && caught.status === 401 ? t.signIn.linkBad : reason(caught);
  } finally {
    session.following = false;
    if (session.state === "unknown") await enter();
    if (failed !== null && session.state === "in") notify(failed, true);
    else session.linkError = failed;
  }
}

/** Returns as whom this browser is signed in. Only the service can say that it is not. */
async function whoIsIn(): Promise<Schemas["Me"] | null> {
  try {
    return await call<Schemas["Me"]>("/v1/me");
  } catch (caught) {
    if (caught instanceof ApiError && caught.status === 401) return null;
    throw caught;
  }
}

async function begun(made: Schemas["Session"]) {
  const before = session.me?.key;
  token.set(made.token);
  await enter();
  // Another person sees nothing of what the one before had open.
  if (before && before !== session.me?.key) location.reload();
  session.visits += 1;
}

export async function signOut(everywhere: boolean) {
  isLeaving = true;
  try {
    await remove(`/v1/session?everywhere=${everywhere}`);
  } finally {
    token.remove();
    forgetForGood();
    stop();
    location.hash = "";
    location.reload();
  }
}
