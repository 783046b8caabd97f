// Who is signed in, and whether the server is there.

import { ApiError, call, post, remove, type Schemas, send, token, watch } from "./api";
import { forget } from "./kept";
import { stop } from "./live.svelte";

export const session = $state<{
  state: "unknown" | "out" | "in" | "expired";
  me: Schemas["Me"] | null;
  /** Number of times that the server was reached again: screens load anew. */
  visits: number;
  lost: boolean;
  version: string;
}>({ state: "unknown", me: null, visits: 0, lost: false, version: "" });

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

watch({
  unauthenticated: () => {
    if (session.state === "in") session.state = "expired";
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
  session.lost = false;
  await enter();
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

/** Signs in with a one-time link. */
export async function redeem(link: string) {
  await begun(await post<Schemas["Session"]>("/v1/session/redeem", { link }));
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
  try {
    await remove(`/v1/session?everywhere=${everywhere}`);
  } finally {
    token.remove();
    forget();
    stop();
    location.hash = "";
    location.reload();
  }
}
