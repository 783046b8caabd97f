// The server of this user's home, for programs that name none. The program `belljar` finds it, and starts it if none is running.

import { environment } from "./environment.js";
import { AuthenticationError, ConnectionError } from "./errors.js";

/** Timeout for the program, in milliseconds: it waits up to 60 s for a server itself. */
const START_TIMEOUT_MS = 90_000;

const NO_PROGRAM =
  "there is no API key, and no program belljar on this machine that could start a server; give apiKey or set BELLJAR_API_KEY (`belljar key create` makes one), or install the program: `npm install belljar` includes it for Linux on x64";

/** Reports whether this is a system and a runtime that can run a server. */
export function canStart(): boolean {
  return typeof process !== "undefined" && process.platform === "linux" && process.versions?.node !== undefined;
}

/** Returns the path of the program: that in `BELLJAR_BIN`, else the one of the package for this platform, else the one on the PATH. */
export async function findProgram(): Promise<string | undefined> {
  const named = environment("BELLJAR_BIN");
  if (named) {
    return named;
  }
  // A variable, because the package exists only where npm has installed it.
  const platform = `@belljar/${process.platform}-${process.arch}`;
  try {
    return ((await import(platform)) as { program: string }).program;
  } catch {
    const { accessSync, constants } = await import("node:fs");
    const { delimiter, join } = await import("node:path");
    const isProgram = (path: string): boolean => {
      try {
        accessSync(path, constants.X_OK);
        return true;
      } catch {
        return false;
      }
    };
    const folders = (environment("PATH") ?? "").split(delimiter).filter((folder) => folder !== "");
    return folders.map((folder) => join(folder, "belljar")).find(isProgram);
  }
}

const servers = new Map<string, OwnServer>();

/** Returns the server of this user's home, which all clients of a program share. */
export function ownServer(): OwnServer {
  const key = ["BELLJAR_HOME", "HOME", "BELLJAR_BIN"].map((name) => environment(name) ?? "").join("\n");
  const known = servers.get(key) ?? new OwnServer();
  servers.set(key, known);
  return known;
}

/** The server of this user's home. */
export class OwnServer {
  #server: Promise<Found> | undefined;
  #found: Found | undefined;

  /** The path of its socket, once it has been found. */
  get socketPath(): string | undefined {
    return this.#found?.socketPath;
  }

  /** Its address for other programs, once it has been found, if it has one. */
  get address(): string | undefined {
    return this.#found?.address;
  }

  /** Sends a request to the server, which is found, or started, before the first one. Only path and query of the URL are used. */
  async fetch(url: string, init: RequestInit): Promise<Response> {
    this.#server ??= reach();
    try {
      this.#found = await this.#server;
      return await fetchFromSocket(this.#found, url, init);
    } catch (error) {
      // A server in the background ends when it has had no sandboxes for a while. The next attempt starts one.
      if (!(init.signal?.aborted ?? false)) {
        this.#server = undefined;
      }
      throw error;
    }
  }
}

/** Where a server is. */
interface Found {
  socketPath: string;
  /** Its URL, unless it has no address but the socket. */
  address: string | undefined;
}

/** Finds the server, or starts it. */
async function reach(): Promise<Found> {
  const program = await findProgram();
  if (program === undefined) {
    throw new AuthenticationError(NO_PROGRAM, { code: "unauthenticated" });
  }
  const { execFile } = await import("node:child_process");
  return new Promise((resolve, reject) => {
    execFile(program, ["status", "--start", "--format", "json"], { timeout: START_TIMEOUT_MS }, (error, stdout, stderr) => {
      try {
        // A server that cannot create sandboxes says why when it is asked for one.
        const { socket, server } = JSON.parse(stdout) as { socket?: unknown; server?: unknown };
        if (typeof socket === "string") {
          resolve({ socketPath: socket, address: typeof server === "string" && server.startsWith("http") ? server : undefined });
          return;
        }
      } catch {
        // Without an answer the program has printed why.
      }
      const reason = stderr.trim().split("\n").pop() || error?.message;
      reject(new ConnectionError(`no server could be started with ${program}: ${reason}`));
    });
  });
}

/** Does what `fetch` does, through a Unix socket. A connection serves one request. */
async function fetchFromSocket({ socketPath, address }: Found, url: string, init: RequestInit): Promise<Response> {
  const { request } = await import("node:http");
  const { Readable } = await import("node:stream");
  const signal = init.signal ?? undefined;
  signal?.throwIfAborted();
  const { pathname, search } = new URL(url);
  const given = new Request("http://localhost", { ...init, duplex: "half" } as RequestInit);
  // If the server closed the connection, it could do so before all has been written, and the response would be lost.
  const headers: Record<string, string> = { ...Object.fromEntries(given.headers), connection: "keep-alive" };
  // The server names itself in URLs as requests do.
  if (address?.startsWith("http:")) {
    headers["host"] = new URL(address).host;
  }
  return new Promise((resolve, reject) => {
    const fail = (error: unknown): void => reject(signal?.aborted ? signal.reason : error);
    const sent = request({ socketPath, path: `${pathname}${search}`, method: given.method, headers, agent: false, signal }, (message) => {
      // Errors of the body reach its reader.
      sent.off("error", fail).on("error", () => undefined);
      const status = message.statusCode ?? 0;
      const fields = new Headers();
      for (let index = 0; index + 1 < message.rawHeaders.length; index += 2) {
        fields.append(message.rawHeaders[index] as string, message.rawHeaders[index + 1] as string);
      }
      const isEmpty = status === 204 || status === 205 || status === 304 || given.method === "HEAD";
      if (isEmpty) {
        message.resume();
      }
      const body = isEmpty ? null : (Readable.toWeb(message) as unknown as ReadableStream<Uint8Array>);
      resolve(new Response(body, { status, statusText: message.statusMessage ?? "", headers: fields }));
    });
    sent.on("error", fail);
    if (given.body === null || typeof init.body === "string" || init.body instanceof Uint8Array) {
      sent.end(init.body ?? undefined);
    } else {
      const source = Readable.fromWeb(given.body as unknown as Parameters<typeof Readable.fromWeb>[0]);
      source.on("error", (error) => sent.destroy(error));
      source.pipe(sent);
    }
  });
}
