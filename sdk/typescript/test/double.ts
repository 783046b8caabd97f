// A test server with configurable responses, in the formats of the REST interface.

import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { type WebSocket, WebSocketServer } from "ws";

/** A received request. */
export interface Seen {
  method: string;
  /** Path and query. */
  url: string;
  headers: IncomingMessage["headers"];
  body: string;
}

/** Handles a request. */
export type Handler = (request: Seen, response: ServerResponse, raw: IncomingMessage) => void | Promise<void>;

/** A server on a free port of loopback. */
export class Double implements AsyncDisposable {
  /** Every request so far. */
  readonly seen: Seen[] = [];
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #routes: { method: string; path: string | RegExp; handlers: Handler[] }[] = [];
  readonly #webSockets = new WebSocketServer({ noServer: true });
  #attached: ((socket: WebSocket, request: IncomingMessage) => void) | undefined;

  private constructor() {
    this.#server = createServer((request, response) => void this.#answer(request, response));
    this.#server.on("connection", (socket) => {
      this.#sockets.add(socket);
      socket.on("close", () => this.#sockets.delete(socket));
    });
    this.#server.on("upgrade", (request, socket, head) => {
      if (!this.#attached) {
        socket.end("HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n");
        return;
      }
      const attached = this.#attached;
      this.seen.push({ method: "UPGRADE", url: request.url ?? "", headers: request.headers, body: "" });
      this.#webSockets.handleUpgrade(request, socket, head, (webSocket) => attached(webSocket, request));
    });
  }

  static async start(): Promise<Double> {
    const double = new Double();
    await new Promise<void>((resolve) => double.#server.listen(0, "127.0.0.1", resolve));
    return double;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Sets handlers of a route: the first for the first request and so on, the last for all further ones. */
  on(method: string, path: string | RegExp, ...handlers: Handler[]): this {
    this.#routes.unshift({ method, path, handlers });
    return this;
  }

  /** Accepts WebSockets. */
  onWebSocket(attached: (socket: WebSocket, request: IncomingMessage) => void): this {
    this.#attached = attached;
    return this;
  }

  /** Requests of one route so far. */
  count(method: string, path: string): number {
    return this.seen.filter((request) => request.method === method && request.url.split("?")[0] === path).length;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) {
      socket.destroy();
    }
    this.#webSockets.close();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    try {
      for await (const chunk of request) {
        chunks.push(chunk as Buffer);
      }
    } catch {
      return; // The client went away while it sent.
    }
    const seen = { method: request.method ?? "", url: request.url ?? "", headers: request.headers, body: Buffer.concat(chunks).toString() };
    this.seen.push(seen);
    const path = seen.url.split("?")[0] ?? "";
    const found = this.#routes.find((one) => one.method === seen.method && (typeof one.path === "string" ? one.path === path : one.path.test(path)));
    if (!found) {
      problem(404, "sandbox_not_found", "the double has no such route")(seen, response, request);
      return;
    }
    const handler = found.handlers.length > 1 ? found.handlers.shift() : found.handlers[0];
    await handler?.(seen, response, request);
  }
}

/** Responds with JSON. */
export function json(body: unknown, status = 200, headers: Record<string, string> = {}): Handler {
  return (_request, response) => {
    response.writeHead(status, { "Content-Type": "application/json", "X-Request-Id": "request-1", ...headers });
    response.end(JSON.stringify(body));
  };
}

/** Responds with a problem. */
export function problem(status: number, code: string, detail: string, more: { field?: string; retry_after_s?: number } = {}): Handler {
  const headers: Record<string, string> = more.retry_after_s === undefined ? {} : { "Retry-After": String(more.retry_after_s) };
  return (_request, response) => {
    response.writeHead(status, { "Content-Type": "application/problem+json", "X-Request-Id": "request-1", ...headers });
    response.end(JSON.stringify({ type: `https://belljar.dev/errors/${code}`, title: code, status, code, detail, request_id: "request-1", ...more }));
  };
}

/** Ends without a response. */
export const noContent: Handler = (_request, response) => {
  response.writeHead(204, { "X-Request-Id": "request-1" });
  response.end();
};

/** Breaks the connection before a response. */
export const broken: Handler = (_request, response) => {
  response.socket?.destroy();
};

/** Returns the text of an event. */
export function event(name: string, data: unknown): string {
  return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}

/** Responds with events, and then ends, or breaks the connection, or leaves it open. */
export function events(list: readonly string[], then: "end" | "break" | "open" = "end"): Handler {
  return (_request, response) => {
    response.writeHead(200, { "Content-Type": "text/event-stream", "X-Request-Id": "request-1" });
    response.write(list.join(""), () => {
      if (then === "end") {
        response.end();
      } else if (then === "break") {
        response.socket?.destroy();
      }
    });
  };
}

/** A binary message of an attached process, in the server's format. */
export function frame(stream: 1 | 2 | 3, offset: number, data: string | Uint8Array): Buffer {
  const header = Buffer.alloc(9);
  header.writeUInt8(stream, 0);
  header.writeBigUInt64BE(BigInt(offset), 1);
  return Buffer.concat([header, typeof data === "string" ? Buffer.from(data) : data]);
}

/** A sandbox in the server's format. */
export function wireSandbox(changes: Record<string, unknown> = {}): Record<string, unknown> {
  return {
    id: "k3v9x2m4q8w1z7t5r6p0",
    name: "quiet-harbour",
    state: "running",
    template: "default",
    labels: { job: "42" },
    created_at: "2026-11-21T15:04:05.123456Z",
    started_at: "2026-11-21T15:04:05.223456Z",
    expires_at: "2026-11-21T15:09:05.123456Z",
    idle_timeout_s: null,
    on_timeout: "kill",
    auto_resume: true,
    paused_at: null,
    ended_at: null,
    reason: null,
    engine: "local",
    limits: { memory_bytes: 536870912, cpus: 1, timeout_s: 60, pids: 256, tmp_bytes: 67108864, disk_bytes: 1073741824, inodes: 65536, output_bytes: 1048576, open_files: 1024 },
    network: "disabled",
    isolation: { engine: "local", grade: "cgroup", tree: "host", layers: [{ name: "seccomp", state: "in_force", detail: "" }] },
    home: "/home/user",
    hostname: "sandbox",
    ports: [8000],
    host: null,
    pooled: true,
    start_ms: 3.1,
    tenant: "default",
    key: "key-1",
    ...changes,
  };
}

/** The result of a command in the server's format. */
export function wireResult(stdout = "", changes: Record<string, unknown> = {}): Record<string, unknown> {
  return {
    schema: 1,
    process: 7,
    sandbox: "k3v9x2m4q8w1z7t5r6p0",
    outcome: { kind: "exited", code: 0 },
    exit_code: 0,
    signal: null,
    stdout: wireOutput(stdout),
    stderr: wireOutput(""),
    wall_ms: 3.5,
    cpu_ms: 1.5,
    peak_memory_bytes: 4096,
    left_behind: 0,
    hint: null,
    ...changes,
  };
}

/** A stream of a result in the server's format. */
export function wireOutput(data: string, changes: Record<string, unknown> = {}): Record<string, unknown> {
  const bytes = Buffer.byteLength(data);
  return { encoding: "utf-8", data, bytes, truncated: false, omitted_bytes: 0, head_bytes: bytes, log: null, ...changes };
}

/** A process in the server's format. */
export function wireProcess(changes: Record<string, unknown> = {}): Record<string, unknown> {
  return { process: 7, pid: 12, argv: ["sh", "-c", "x"], running: true, exit_code: null, signal: null, outcome: null, stdout_bytes: 0, stderr_bytes: 0, terminal_bytes: 0, ...changes };
}

/** The id of {@link wireSandbox}. */
export const ID = "k3v9x2m4q8w1z7t5r6p0";
