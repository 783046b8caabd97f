import "./dispose.js";
import { toBase64 } from "./bytes.js";
import { Code, type CodeContext, type CodeContextOptions, type ContextRef, type Execution, type RunCodeOptions } from "./code.js";
import { Commands } from "./commands.js";
import { type CallOptions, Configuration, ofRequest, type RequestOptions } from "./config.js";
import { limitsToWire, metrics, modeText, sandboxInfo, seconds, templateInfo } from "./convert.js";
import { errorFromProblem, InvalidArgumentError, NotFoundError, type Problem, SandboxError, SandboxGoneError, TimeoutError } from "./errors.js";
import { Files } from "./files.js";
import { errorFromEvent, parseEvent } from "./output.js";
import { Paginator } from "./paginator.js";
import { Ports } from "./ports.js";
import { Pty } from "./pty.js";
import { Sessions } from "./sessions.js";
import { sleep } from "./signal.js";
import { newIdempotencyKey, route, Transport } from "./transport.js";
import type { InitialFile, Limits, LogPage, Metrics, Network, NetworkRecord, OnTimeout, SandboxInfo, SandboxState, Span, TemplateInfo, VolumeMount } from "./types.js";
import type { WireMetrics, WireSandbox, WireTemplate } from "./wire.js";

/** Milliseconds between two looks at a sandbox's ports. */
const PORT_INTERVAL_MS = 50;

/** What a new sandbox is to be. What is not given is the server's choice. */
export interface CreateOptions extends RequestOptions {
  /** The template's name or id; `default` if not given. */
  template?: string;
  /** A name, with which it can be asked for as with its id: `[a-z0-9][a-z0-9-]{0,62}`. */
  name?: string;
  /** What happens if there is a sandbox of that name: an error, or it is handed back. */
  ifExists?: "error" | "return";
  /** Milliseconds that it lives, from 1,000; 300,000 if not given. */
  timeoutMs?: number;
  /** Milliseconds without any activity after which its time is over, too. */
  idleTimeoutMs?: number;
  /** What happens when its time is over; `kill` if not given. */
  onTimeout?: OnTimeout;
  /** Whether using it resumes it when it is paused; yes if not given. */
  autoResume?: boolean;
  /** Words to find it by; 64 at most, keys of 128 and values of 256 bytes. */
  labels?: Record<string, string>;
  /** Another name of `labels`. */
  metadata?: Record<string, string>;
  /** Environment variables of all that runs in it. */
  envs?: Record<string, string>;
  /** What it may use. */
  limits?: Limits;
  /** What it may reach: `disabled` (if not given), `open`, or a policy such as `{ presets: ["pip"] }`. */
  network?: Network;
  /** Which engine builds its walls. */
  engine?: string;
  /** The least grade of walls that will do. */
  grade?: string;
  /** The host name inside. */
  hostname?: string;
  /** Directories of the host that it sees, as `SOURCE:TARGET[:ro|rw]`. Only for admin keys, within the operator's policy. */
  mounts?: string[];
  /** Volumes to mount. */
  volumes?: VolumeMount[];
  /** Files that it has from the beginning. */
  files?: InitialFile[];
  /** Says that this is the same wish as one before, which is then not fulfilled twice. Made by the SDK if not given. */
  idempotencyKey?: string;
}

/** Which sandboxes to list. */
export interface ListOptions extends RequestOptions {
  /** A state, or several; all but `gone` if not given. */
  state?: SandboxState | readonly SandboxState[];
  /** Labels that it must have, all of them. */
  labels?: Record<string, string>;
  /** The name that it must have. */
  name?: string;
  /** Sandboxes a page, from 1 to 100; 50 if not given. */
  limit?: number;
  /** Newest first (`desc`, if not given) or oldest first. */
  order?: "desc" | "asc";
  /** Where to begin: `nextToken` of an earlier list. */
  nextToken?: string;
}

/** How to connect. */
export interface ConnectOptions {
  /** Milliseconds that it is to live at least, from now. */
  timeoutMs?: number;
}

/** What is to change. What is not given stays. */
export interface UpdateOptions extends RequestOptions {
  /** Labels to set; null takes one away. */
  labels?: Record<string, string | null>;
  /** What it may use. */
  limits?: Pick<Limits, "memory" | "cpus" | "pids">;
  /** Milliseconds without activity; 0 for no such limit. */
  idleTimeoutMs?: number;
  /** What happens when its time is over. */
  onTimeout?: OnTimeout;
  /** Whether using it resumes it when it is paused. */
  autoResume?: boolean;
  /**
   * All that it may reach from now on. Connections that this does not allow are cut. A sandbox that was made with the network
   * `disabled` cannot get another.
   */
  network?: Network;
}

/** Which decisions about connections to hand out. */
export interface NetworkLogOptions extends RequestOptions {
  /** Only those after this number. */
  after?: number;
  /** Whether to go on with what is decided, until the sandbox is gone; no if not given. */
  follow?: boolean;
}

/** What copies are to be. */
export interface ForkOptions extends RequestOptions {
  /** How many, from 1 to 20; 1 if not given. */
  count?: number;
  /** Milliseconds that they live; 300,000 if not given. */
  timeoutMs?: number;
  /** Words to find them by. */
  labels?: Record<string, string>;
  /** Environment variables of all that runs in them. */
  envs?: Record<string, string>;
}

/** A token that opens one sandbox only. */
export interface SandboxToken {
  /** Give it as `apiKey`. */
  token: string;
  /** Until when it is good. */
  expiresAt: Date;
}

/** Not all of the copies of {@link Sandbox.fork} came to be. */
export class ForkError extends SandboxError {
  override name = "ForkError";
  /** Those that did. They run, and are the caller's to end. */
  readonly sandboxes: Sandbox[];
  /** Why the others did not. */
  readonly errors: SandboxError[];

  constructor(sandboxes: Sandbox[], errors: SandboxError[]) {
    super(`${errors.length} of ${sandboxes.length + errors.length} copies could not be made: ${errors[0]?.message ?? ""}`, { code: errors[0]?.code ?? "fork_failed", cause: errors[0] });
    this.sandboxes = sandboxes;
    this.errors = errors;
  }
}

/**
 * A sandbox on a Belljar server.
 *
 * @example
 * ```ts
 * await using sandbox = await Sandbox.create();
 * const { stdout } = await sandbox.commands.run("echo hello");
 * ```
 */
export class Sandbox {
  /** Its id. */
  readonly sandboxId: string;
  /** Commands in it. */
  readonly commands: Commands;
  /** Its files. */
  readonly files: Files;
  /** Terminals in it. */
  readonly pty: Pty;
  /** Shells in it that remember. */
  readonly sessions: Sessions;
  /** Its ports. */
  readonly ports: Ports;
  readonly #transport: Transport;
  readonly #code: Code;
  /** What the server said last. */
  #info: SandboxInfo;

  /** @internal */
  constructor(transport: Transport, info: SandboxInfo) {
    this.#transport = transport;
    this.#info = info;
    this.sandboxId = info.sandboxId;
    const defaultTimeoutMs = info.limits.timeoutMs ?? undefined;
    this.commands = new Commands(transport, info.sandboxId, defaultTimeoutMs);
    this.files = new Files(transport, info.sandboxId);
    this.pty = new Pty(transport, info.sandboxId);
    this.sessions = new Sessions(transport, info.sandboxId, this.commands);
    this.ports = new Ports(transport, info.sandboxId);
    this.#code = new Code(transport, info.sandboxId, defaultTimeoutMs);
  }

  /** Makes a sandbox. */
  static create(options?: CreateOptions & CallOptions): Promise<Sandbox>;
  /** Makes a sandbox of a template. */
  static create(template: string, options?: CreateOptions & CallOptions): Promise<Sandbox>;
  static create(first?: string | (CreateOptions & CallOptions), second?: CreateOptions & CallOptions): Promise<Sandbox> {
    const options = typeof first === "string" ? { ...second, template: first } : (first ?? {});
    return new SandboxApi(transportOf(options)).create(options);
  }

  /** Finds a sandbox by its id or name, and resumes it if it is paused. */
  static connect(id: string, options: ConnectOptions & CallOptions = {}): Promise<Sandbox> {
    return new SandboxApi(transportOf(options)).connect(id, options);
  }

  /** Lists sandboxes, newest first, as they come page by page. */
  static list(options: ListOptions & CallOptions = {}): Paginator<SandboxInfo> {
    return new SandboxApi(transportOf(options)).list(options);
  }

  /** Ends a sandbox. False if there is none, or it had ended. */
  static kill(id: string, options: CallOptions = {}): Promise<boolean> {
    return new SandboxApi(transportOf(options)).kill(id, options);
  }

  /** Asks the server about a sandbox. This does not count as activity. */
  static getInfo(id: string, options: CallOptions = {}): Promise<SandboxInfo> {
    return new SandboxApi(transportOf(options)).getInfo(id, options);
  }

  /** Lets a sandbox live that many milliseconds from now; 0 ends it. */
  static setTimeout(id: string, timeoutMs: number, options: CallOptions = {}): Promise<SandboxInfo> {
    return new SandboxApi(transportOf(options)).setTimeout(id, timeoutMs, options);
  }

  /** Stops a sandbox in its place. False if it is paused already. */
  static pause(id: string, options: CallOptions = {}): Promise<boolean> {
    return new SandboxApi(transportOf(options)).pause(id, options);
  }

  /** Lets a paused sandbox go on. */
  static resume(id: string, options: ConnectOptions & CallOptions = {}): Promise<Sandbox> {
    return new SandboxApi(transportOf(options)).resume(id, options);
  }

  /** Ends it, with all that it holds. False if it had ended already. */
  kill(options?: RequestOptions): Promise<boolean> {
    return this.#api.kill(this.sandboxId, options);
  }

  /** Ends it. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
  }

  /** Asks the server about it. This does not count as activity. */
  async getInfo(options?: RequestOptions): Promise<SandboxInfo> {
    this.#info = await this.#api.getInfo(this.sandboxId, options);
    return this.#info;
  }

  /** Whether it runs. False if it is paused, gone or not there. */
  async isRunning(options?: RequestOptions): Promise<boolean> {
    try {
      return (await this.getInfo(options)).state === "running";
    } catch (error) {
      if (error instanceof NotFoundError || error instanceof SandboxGoneError) {
        return false;
      }
      throw error;
    }
  }

  /** Lets it live that many milliseconds from now; 0 ends it. */
  async setTimeout(timeoutMs: number, options?: RequestOptions): Promise<SandboxInfo> {
    this.#info = await this.#api.setTimeout(this.sandboxId, timeoutMs, options);
    return this.#info;
  }

  /** Changes labels, limits, network, and what happens when its time is over. */
  async update(options: UpdateOptions): Promise<SandboxInfo> {
    const { labels, limits, idleTimeoutMs, onTimeout, autoResume, network, ...request } = options;
    const json = { labels, limits: limitsToWire(limits), idle_timeout: seconds("idleTimeoutMs", idleTimeoutMs), on_timeout: onTimeout, auto_resume: autoResume, network };
    this.#info = sandboxInfo(await this.#transport.json<WireSandbox>({ method: "PATCH", path: this.#route(""), json, options: request }));
    return this.#info;
  }

  /**
   * Runs code in a context, whose variables live on, and waits for its end. An error in the code is no exception here: see `error`
   * and `status` of what comes back.
   */
  runCode(code: string, options: RunCodeOptions = {}): Promise<Execution> {
    return this.#code.run(code, options);
  }

  /** Makes a context beside those that each language has of its own. */
  createCodeContext(options: CodeContextOptions = {}): Promise<CodeContext> {
    return this.#code.create(options);
  }

  /** The contexts, the oldest first. */
  listCodeContexts(options?: RequestOptions): Promise<CodeContext[]> {
    return this.#code.list(options);
  }

  /** Ends a context's interpreter and starts a fresh one under the same id. Its variables are lost. */
  restartCodeContext(context: ContextRef, options?: RequestOptions): Promise<CodeContext> {
    return this.#code.restart(context, options);
  }

  /** Interrupts the code that runs in a context, as Ctrl-C does. False: none ran. */
  interruptCodeContext(context: ContextRef, options?: RequestOptions): Promise<boolean> {
    return this.#code.interrupt(context, options);
  }

  /** Ends a context, with everything that was started in it. */
  removeCodeContext(context: ContextRef, options?: RequestOptions): Promise<void> {
    return this.#code.remove(context, options);
  }

  /** Stops it in its place: nothing in it runs, and its clock stands. False if it is paused already. */
  pause(options?: RequestOptions): Promise<boolean> {
    return this.#api.pause(this.sandboxId, options);
  }

  /** Lets it go on. */
  async resume(options: ConnectOptions & RequestOptions = {}): Promise<SandboxInfo> {
    this.#info = await this.#api.resumeInfo(this.sandboxId, options);
    return this.#info;
  }

  /**
   * Makes copies: new sandboxes with the same files. What runs is not copied.
   *
   * @throws {@link ForkError} if some of them could not be made.
   */
  async fork(options: ForkOptions = {}): Promise<Sandbox[]> {
    const { count, timeoutMs, labels, envs, ...request } = options;
    const answer = await this.#transport.json<{ sandboxes: ({ sandbox: WireSandbox } | { error: Problem })[] }>({
      method: "POST",
      path: this.#route("/fork"),
      json: { count: count ?? 1, timeout: seconds("timeoutMs", timeoutMs), labels, env: envs },
      options: request,
    });
    const sandboxes: Sandbox[] = [];
    const errors: SandboxError[] = [];
    for (const one of answer.sandboxes) {
      if ("sandbox" in one) {
        sandboxes.push(new Sandbox(this.#transport, sandboxInfo(one.sandbox)));
      } else {
        errors.push(errorFromProblem(one.error, one.error.status ?? 500));
      }
    }
    if (errors.length > 0) {
      throw new ForkError(sandboxes, errors);
    }
    return sandboxes;
  }

  /** Makes a template of its files: `Sandbox.create` takes its `snapshotId` or its name. */
  async createSnapshot(options: RequestOptions & { name?: string; note?: string } = {}): Promise<TemplateInfo> {
    const { name, note, ...request } = options;
    return templateInfo(await this.#transport.json<WireTemplate>({ method: "POST", path: this.#route("/snapshot"), json: { name, note }, options: request }));
  }

  /**
   * The host name of a port, without asking the server. The port has to be published: {@link Ports.publish} or {@link Sandbox.getUrl}.
   *
   * @throws {@link InvalidArgumentError} if neither the server nor `BELLJAR_DOMAIN` has a domain.
   */
  getHost(port: number): string {
    const { domain } = this.#transport.configuration;
    const host = domain === undefined ? this.#info.host : `{port}-${this.sandboxId}.${domain}`;
    if (host === null) {
      throw new InvalidArgumentError("the server has no domain, so ports have no host names; use getUrl, or set the server's domain", { field: "domain" });
    }
    return host.replace("{port}", String(port));
  }

  /** Publishes a port, and gives its address. If it is not public, there is a token in it that is good for `expires`; 3,600 seconds if not given. */
  async getUrl(port: number, options: RequestOptions & { expires?: Span; public?: boolean } = {}): Promise<string> {
    const { expires, ...rest } = options;
    const published = await this.ports.publish(port, rest);
    if (published.public) {
      return published.url ?? published.pathUrl;
    }
    return (await this.ports.createToken(port, { ...rest, expires })).url;
  }

  /**
   * Waits until something in it listens on a port.
   *
   * @param options `timeoutMs`: how long to wait; 60,000 if not given.
   * @throws {@link TimeoutError} if nothing did.
   */
  async waitForPort(port: number, options: RequestOptions & { timeoutMs?: number } = {}): Promise<void> {
    const { timeoutMs = 60_000, ...request } = options;
    const end = Date.now() + timeoutMs;
    while (!(await this.ports.list(request)).listening.includes(port)) {
      if (Date.now() >= end) {
        throw new TimeoutError(`nothing in the sandbox ${this.sandboxId} listens on port ${port} after ${timeoutMs} ms`);
      }
      await sleep(PORT_INTERVAL_MS, request.signal);
    }
  }

  /** An address to which a file can be sent with PUT, without a key. */
  async uploadUrl(path: string, options?: RequestOptions & { expires?: Span }): Promise<string> {
    return (await this.files.sign(path, "write", options)).url;
  }

  /** An address from which a file can be fetched, without a key. */
  async downloadUrl(path: string, options?: RequestOptions & { expires?: Span }): Promise<string> {
    return (await this.files.sign(path, "read", options)).url;
  }

  /** What it uses. */
  async getMetrics(options?: RequestOptions): Promise<Metrics> {
    return metrics(await this.#transport.json<WireMetrics>({ method: "GET", path: this.#route("/metrics"), options }));
  }

  /** What happened to it, oldest first, after the entry `after`. */
  async logs(options: RequestOptions & { after?: number; limit?: number } = {}): Promise<LogPage> {
    const { after, limit, ...request } = options;
    const page = await this.#transport.json<{ entries: { at: string; seq: number; event: string; process?: number | null; detail: unknown }[]; next: number }>({
      method: "GET",
      path: this.#route("/logs"),
      query: { after, limit },
      options: request,
    });
    return {
      next: page.next,
      entries: page.entries.map(({ at, process, ...entry }) => ({ ...entry, at: new Date(at), ...(typeof process === "number" ? { process } : {}) })),
    };
  }

  /** What was decided about its connections since it was started, the last 1,024 decisions. Leaving the loop ends the request. */
  async *networkLog(options: NetworkLogOptions = {}): AsyncGenerator<NetworkRecord, void, undefined> {
    const { after, follow = false, ...request } = options;
    for await (const event of this.#transport.events({ method: "GET", path: this.#route("/network/log"), query: { after, follow }, options: request })) {
      if (event.event === "error") {
        throw errorFromEvent(event);
      }
      const record = parseEvent<Omit<NetworkRecord, "at"> & { at: string }>(event);
      yield { ...record, at: new Date(record.at) };
    }
  }

  /** Makes a token that opens this sandbox only, and neither ends nor copies it. `expires` is 3,600 seconds if not given. */
  async createToken(options: RequestOptions & { expires?: Span } = {}): Promise<SandboxToken> {
    const { expires, ...request } = options;
    const made = await this.#transport.json<{ token: string; expires_at: string }>({ method: "POST", path: this.#route("/tokens"), json: { expires }, options: request });
    return { token: made.token, expiresAt: new Date(made.expires_at) };
  }

  get #api(): SandboxApi {
    return new SandboxApi(this.#transport);
  }

  #route(rest: string): string {
    return `${route`/v1/sandboxes/${this.sandboxId}`}${rest}`;
  }
}

/** @internal What can be done without a {@link Sandbox}; its static methods and {@link Belljar.sandboxes} share it. */
export class SandboxApi {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  async create(options: CreateOptions): Promise<Sandbox> {
    const json = {
      template: options.template,
      name: options.name,
      if_exists: options.ifExists,
      timeout: seconds("timeoutMs", options.timeoutMs),
      idle_timeout: seconds("idleTimeoutMs", options.idleTimeoutMs),
      on_timeout: options.onTimeout,
      auto_resume: options.autoResume,
      labels: options.labels || options.metadata ? { ...options.metadata, ...options.labels } : undefined,
      env: options.envs,
      limits: limitsToWire(options.limits),
      network: options.network,
      engine: options.engine,
      grade: options.grade,
      hostname: options.hostname,
      mounts: options.mounts,
      volumes: options.volumes,
      files: options.files?.map(({ path, data, mode }) => ({
        path,
        ...(typeof data === "string" ? { content: data } : { content_base64: toBase64(data) }),
        mode: modeText(mode),
      })),
    };
    const idempotencyKey = options.idempotencyKey ?? newIdempotencyKey();
    const made = await this.#transport.json<WireSandbox>({ method: "POST", path: "/v1/sandboxes", json, idempotencyKey, options: ofRequest(options) });
    return new Sandbox(this.#transport, sandboxInfo(made));
  }

  async connect(id: string, options: ConnectOptions & RequestOptions): Promise<Sandbox> {
    let info = await this.getInfo(id, ofRequest(options));
    if (info.state === "gone" || info.state === "stopping") {
      throw new SandboxGoneError(`the sandbox ${id} has ended${info.reason === null ? "" : ` (${info.reason})`}; make a new one`, { code: "sandbox_gone" });
    }
    if (info.state === "paused" || options.timeoutMs !== undefined) {
      info = await this.resumeInfo(info.sandboxId, options);
    }
    return new Sandbox(this.#transport, info);
  }

  list(options: ListOptions): Paginator<SandboxInfo> {
    const query = {
      state: options.state === undefined ? undefined : [options.state].flat().join(","),
      label: Object.entries(options.labels ?? {}).map(([key, value]) => `${key}=${value}`),
      name: options.name,
      limit: options.limit,
      order: options.order,
    };
    return new Paginator(async (cursor) => {
      const page = await this.#transport.json<{ sandboxes: WireSandbox[]; next_cursor: string | null }>({
        method: "GET",
        path: "/v1/sandboxes",
        query: { ...query, cursor },
        options: ofRequest(options),
      });
      return { items: page.sandboxes.map(sandboxInfo), nextToken: page.next_cursor ?? undefined };
    }, options.nextToken);
  }

  async getInfo(id: string, options?: RequestOptions): Promise<SandboxInfo> {
    return sandboxInfo(await this.#transport.json<WireSandbox>({ method: "GET", path: route`/v1/sandboxes/${id}`, options: ofRequest(options) }));
  }

  async kill(id: string, options?: RequestOptions): Promise<boolean> {
    try {
      await this.#transport.delete(route`/v1/sandboxes/${id}`, undefined, ofRequest(options));
      return true;
    } catch (error) {
      if (error instanceof NotFoundError || error instanceof SandboxGoneError) {
        return false;
      }
      throw error;
    }
  }

  async setTimeout(id: string, timeoutMs: number, options?: RequestOptions): Promise<SandboxInfo> {
    const json = { timeout: seconds("timeoutMs", timeoutMs) };
    return sandboxInfo(await this.#transport.json<WireSandbox>({ method: "POST", path: route`/v1/sandboxes/${id}/timeout`, json, options: ofRequest(options) }));
  }

  async pause(id: string, options?: RequestOptions): Promise<boolean> {
    try {
      await this.#transport.json<WireSandbox>({ method: "POST", path: route`/v1/sandboxes/${id}/pause`, json: {}, options: ofRequest(options) });
      return true;
    } catch (error) {
      // The same status also says that it is on its way up or down, which is no success.
      if (error instanceof SandboxError && error.code === "wrong_state" && (await this.getInfo(id, options)).state === "paused") {
        return false;
      }
      throw error;
    }
  }

  async resume(id: string, options: ConnectOptions & RequestOptions): Promise<Sandbox> {
    return new Sandbox(this.#transport, await this.resumeInfo(id, options));
  }

  async resumeInfo(id: string, options: ConnectOptions & RequestOptions): Promise<SandboxInfo> {
    const json = { timeout: seconds("timeoutMs", options.timeoutMs) };
    return sandboxInfo(await this.#transport.json<WireSandbox>({ method: "POST", path: route`/v1/sandboxes/${id}/resume`, json, options: ofRequest(options) }));
  }
}

function transportOf(options: CallOptions): Transport {
  return new Transport(new Configuration(options));
}
