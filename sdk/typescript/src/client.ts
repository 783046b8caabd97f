import { Audit } from "./audit.js";
import { Configuration, type ConnectionOptions, type RequestOptions } from "./config.js";
import { quotas } from "./convert.js";
import { UnavailableError } from "./errors.js";
import { Keys } from "./keys.js";
import type { Paginator } from "./paginator.js";
import { type ConnectOptions, type CreateOptions, type ListOptions, type Sandbox, SandboxApi } from "./sandbox.js";
import { Secrets } from "./secrets.js";
import { Templates } from "./templates.js";
import { Transport } from "./transport.js";
import type { Quotas, Role, SandboxInfo } from "./types.js";
import { Volumes } from "./volumes.js";
import type { WireQuotas } from "./wire.js";

/** Who the key belongs to, and what it uses. */
export interface Me {
  /** The key's id. */
  key: string;
  /** Whose it is. */
  tenant: string;
  /** What it may do. */
  role: Role;
  /** How much it may use. */
  quotas: Quotas;
  /** How much it uses. */
  usage: Usage;
}

/** What a key uses. */
export interface Usage {
  /** Sandboxes at once. */
  sandboxes: number;
  /** Sum of their memory limits. */
  memoryBytes: number;
  /** Sum of their disk limits. */
  diskBytes: number;
  /** Processor seconds within the last hour. */
  cpuSeconds: number;
}

/** Which server it is. */
export interface Version {
  /** The version of the program. */
  version: string;
  /** The version of its interface. */
  api: string;
}

/** Sandboxes of a server, by way of one client. */
export class Sandboxes {
  readonly #api: SandboxApi;

  /** @internal */
  constructor(transport: Transport) {
    this.#api = new SandboxApi(transport);
  }

  /** Makes a sandbox. */
  create(options: CreateOptions = {}): Promise<Sandbox> {
    return this.#api.create(options);
  }

  /** Finds a sandbox by its id or name, and resumes it if it is paused. */
  connect(id: string, options: ConnectOptions & RequestOptions = {}): Promise<Sandbox> {
    return this.#api.connect(id, options);
  }

  /** Lists sandboxes, newest first, as they come page by page. */
  list(options: ListOptions = {}): Paginator<SandboxInfo> {
    return this.#api.list(options);
  }

  /** Asks the server about a sandbox. */
  getInfo(id: string, options?: RequestOptions): Promise<SandboxInfo> {
    return this.#api.getInfo(id, options);
  }

  /** Ends a sandbox. False if there is none, or it had ended. */
  kill(id: string, options?: RequestOptions): Promise<boolean> {
    return this.#api.kill(id, options);
  }
}

/** A client of a Belljar server, for all that is not one sandbox's own. */
export class Belljar {
  /** Sandboxes. */
  readonly sandboxes: Sandboxes;
  /** What new sandboxes begin with. */
  readonly templates: Templates;
  /** Files that outlive sandboxes. */
  readonly volumes: Volumes;
  /** API keys. Needs an admin key. */
  readonly keys: Keys;
  /** Secrets stored on the server for network policies. */
  readonly secrets: Secrets;
  /** The audit log. Needs an admin key. */
  readonly audit: Audit;
  readonly #transport: Transport;

  constructor(options: ConnectionOptions = {}) {
    this.#transport = new Transport(new Configuration(options));
    this.sandboxes = new Sandboxes(this.#transport);
    this.templates = new Templates(this.#transport);
    this.volumes = new Volumes(this.#transport);
    this.keys = new Keys(this.#transport);
    this.secrets = new Secrets(this.#transport);
    this.audit = new Audit(this.#transport);
  }

  /** Who the key belongs to, and what it uses. */
  async me(options?: RequestOptions): Promise<Me> {
    const me = await this.#transport.json<{
      key: string;
      tenant: string;
      role: string;
      quotas: WireQuotas;
      usage: { sandboxes: number; memory_bytes: number; disk_bytes: number; cpu_seconds: number };
    }>({ method: "GET", path: "/v1/me", options });
    const { usage } = me;
    return {
      key: me.key,
      tenant: me.tenant,
      role: me.role as Role,
      quotas: quotas(me.quotas),
      usage: { sandboxes: usage.sandboxes, memoryBytes: usage.memory_bytes, diskBytes: usage.disk_bytes, cpuSeconds: usage.cpu_seconds },
    };
  }

  /** Whether the server lives. Needs no key. Throws if it cannot be reached. */
  async health(options?: RequestOptions): Promise<boolean> {
    return (await this.#transport.json<{ status: string }>({ method: "GET", path: "/health", options })).status === "ok";
  }

  /** Whether sandboxes can be made now. Needs no key. Throws if the server cannot be reached. */
  async ready(options?: RequestOptions): Promise<boolean> {
    try {
      await this.#transport.done({ method: "GET", path: "/ready", options });
      return true;
    } catch (error) {
      if (error instanceof UnavailableError) {
        return false;
      }
      throw error;
    }
  }

  /** Which server it is. Needs no key. */
  async version(options?: RequestOptions): Promise<Version> {
    const { version, api } = await this.#transport.json<Version>({ method: "GET", path: "/version", options });
    return { version, api };
  }

  /** The server's figures, as Prometheus reads them. Needs an admin key, unless the operator opened them. */
  async metrics(options?: RequestOptions): Promise<string> {
    return this.#transport.text({ method: "GET", path: "/metrics", headers: { Accept: "text/plain" }, options });
  }
}
