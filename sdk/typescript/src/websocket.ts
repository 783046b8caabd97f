// WebSockets: the runtime's own, or those of the package ws if it has none.

import { ConnectionError } from "./errors.js";

/** The parts of a WebSocket in use, common to the runtimes' own and ws. */
export interface Socket {
  binaryType: string;
  readonly bufferedAmount: number;
  readonly readyState: number;
  send(data: string | Uint8Array): void;
  close(code?: number): void;
  addEventListener(type: "open", listener: () => void): void;
  addEventListener(type: "error", listener: () => void): void;
  addEventListener(type: "message", listener: (event: { data: unknown }) => void): void;
  addEventListener(type: "close", listener: (event: { code: number }) => void): void;
}

/** `headers` in the second argument is an extension of the standard that Node, Bun, Deno and ws share. */
type SocketConstructor = new (url: string, options: { headers: Record<string, string>; createConnection?: () => unknown }) => Socket;

/** The state of an open socket. */
export const OPEN = 1;

/**
 * Opens a WebSocket. Rejects if that fails, without the reason, which the runtimes do not report. `listen` is called before it is
 * open, because the first message may arrive at the same moment. With `socketPath` it is opened through that Unix socket.
 */
export async function openSocket(url: string, headers: Record<string, string>, timeoutMs: number, signal: AbortSignal, listen: (socket: Socket) => void, socketPath?: string): Promise<Socket> {
  signal.throwIfAborted();
  const socket = await construct(url, headers, socketPath);
  socket.binaryType = "arraybuffer";
  listen(socket);
  return new Promise((resolve, reject) => {
    const fail = (reason: unknown): void => {
      finish();
      reject(reason);
      socket.close();
    };
    const abort = (): void => fail(signal.reason);
    const timer = timeoutMs > 0 ? setTimeout(() => fail(new ConnectionError("the WebSocket was not opened in time")), timeoutMs) : undefined;
    const finish = (): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", abort);
    };
    signal.addEventListener("abort", abort, { once: true });
    socket.addEventListener("open", () => {
      finish();
      resolve(socket);
    });
    // Stays for the socket's lifetime: with ws, an error without a listener would end the program.
    socket.addEventListener("error", () => {
      finish();
      reject(new ConnectionError("the WebSocket could not be opened"));
    });
  });
}

async function construct(url: string, headers: Record<string, string>, socketPath: string | undefined): Promise<Socket> {
  if (socketPath !== undefined) {
    const [{ WebSocket: packaged }, { connect }] = await Promise.all([import("ws"), import("node:net")]);
    return new (packaged as unknown as SocketConstructor)(url, { headers, createConnection: () => connect(socketPath) });
  }
  const own = (globalThis as { WebSocket?: unknown }).WebSocket as SocketConstructor | undefined;
  if (own) {
    try {
      return new own(url, { headers });
    } catch (error) {
      // A runtime that accepts only protocol names as the second argument.
      if (!(error instanceof DOMException && error.name === "SyntaxError")) {
        throw error;
      }
    }
  }
  const { WebSocket: packaged } = await import("ws");
  return new (packaged as unknown as SocketConstructor)(url, { headers });
}
