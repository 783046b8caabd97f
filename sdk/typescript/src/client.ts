import { Approvals } from "./approvals.js";
import { Audit } from "./audit.js";
import { Configuration, CONNECTION_OPTIONS, type ConnectionOptions, REQUEST_OPTIONS, type RequestOptions } from "./config.js";
import { quotas, usage } from "./convert.js";
import { UnavailableError } from "./errors.js";
import { Keys } from "./keys.js";
import { NetworkPolicies } from "./network.js";
import { known } from "./options.js";
import type { Paginator } from "./paginator.js";
import { CONNECT_OPTIONS, type ConnectOptions, CREATE_OPTIONS, type CreateOptions, LIST_OPTIONS, type ListOptions, type Sandbox, SandboxApi } from "./sandbox.js";
import { SCREEN_OPTIONS, type ScreenOptions, type ScreenReport, screenReport, toModules } from "./screen.js";
import { Secrets } from "./secrets.js";
import { StoredTools } from "./stored-tools.js";
import { Templates } from "./templates.js";
import { Transport } from "./transport.js";
import type { Quotas, Role, SandboxInfo, Usage } from "./types.js";
import { Volumes } from "./volumes.js";
import type { WireQuotas, WireScreenReport, WireUsage } from "./wire.js";

/** The owner of the key, its quotas and its usage. */
export interface Me {
  /** The key's id. */
  key: string;
  /** The tenant. */
  tenant: string;
  /** The person to whom the key belongs, if it names one. */
  owner?: string;
  /** The role. */
  role: Role;
  /** Whether its calls wait for approval: `never`, `always`, `on-risk` or `on-medium-risk`. */
  approval?: string;
  /** The quotas. */
  quotas: Quotas;
  /** The usage. */
  usage: Usage;
}

/** Version of a server. */
export interface Version {
  /** The version of the program. */
  version: string;
  /** The version of its interface. */
  api: string;
}

/** Sandboxes of a server, for one client. */
export class Sandboxes {
  readonly #api: SandboxApi;

  /** @internal */
  constructor(transport: Transport) {
    this.#api = new SandboxApi(transport);
  }

  /** Creates a sandbox. */
  create(options: CreateOptions = {}): Promise<Sandbox> {
    return this.#api.create(known("create", options, CREATE_OPTIONS, REQUEST_OPTIONS));
  }

  /** Connects to a sandbox by its id or name, and resumes it if it is paused, unless it is held. */
  connect(id: string, options: ConnectOptions & RequestOptions = {}): Promise<Sandbox> {
    return this.#api.connect(id, known("connect", options, CONNECT_OPTIONS, REQUEST_OPTIONS));
  }

  /** Lists sandboxes, newest first, as a paginated list. */
  list(options: ListOptions = {}): Paginator<SandboxInfo> {
    return this.#api.list(known("list", options, LIST_OPTIONS, REQUEST_OPTIONS));
  }

  /** Fetches information about a sandbox. */
  getInfo(id: string, options?: RequestOptions): Promise<SandboxInfo> {
    return this.#api.getInfo(id, options);
  }

  /** Ends a sandbox. Returns false if it does not exist or has already ended. */
  kill(id: string, options?: RequestOptions): Promise<boolean> {
    return this.#api.kill(id, options);
  }
}

/** A client of a Belljar server, for everything that does not concern a single sandbox. */
export class Belljar {
  /** Sandboxes. */
  readonly sandboxes: Sandboxes;
  /** Templates of sandboxes. */
  readonly templates: Templates;
  /** Files that outlive sandboxes. */
  readonly volumes: Volumes;
  /** API keys. Needs an admin key. */
  readonly keys: Keys;
  /** Calls that wait for a decision. Needs a key with the role `approver` to decide. */
  readonly approvals: Approvals;
  /** Secrets stored on the server for network policies. */
  readonly secrets: Secrets;
  /** What network policies can be made of, and what one would reach. */
  readonly network: NetworkPolicies;
  /** Tools stored on the server. */
  readonly tools: StoredTools;
  /** The audit log. Needs an admin key. */
  readonly audit: Audit;
  readonly #transport: Transport;

  constructor(options: ConnectionOptions = {}) {
    this.#transport = new Transport(new Configuration(known("new Belljar", options, CONNECTION_OPTIONS)));
    this.sandboxes = new Sandboxes(this.#transport);
    this.templates = new Templates(this.#transport);
    this.volumes = new Volumes(this.#transport);
    this.keys = new Keys(this.#transport);
    this.approvals = new Approvals(this.#transport);
    this.secrets = new Secrets(this.#transport);
    this.network = new NetworkPolicies(this.#transport);
    this.tools = new StoredTools(this.#transport);
    this.audit = new Audit(this.#transport);
  }

  /** The owner of the key, its quotas and its usage. */
  async me(options?: RequestOptions): Promise<Me> {
    const me = await this.#transport.json<{
      key: string;
      tenant: string;
      role: string;
      quotas: WireQuotas;
      usage: WireUsage;
    }>({ method: "GET", path: "/v1/me", options });
    return {
      key: me.key,
      tenant: me.tenant,
      role: me.role as Role,
      quotas: quotas(me.quotas),
      usage: usage(me.usage),
    };
  }

  /** Reads code without running it, and reports what it seems to do: advice, never a wall. */
  async screen(code: string, language = "python", options: ScreenOptions & RequestOptions = {}): Promise<ScreenReport> {
    const { allowModules, denyModules, ...request } = known("screen", options, SCREEN_OPTIONS, REQUEST_OPTIONS);
    const json = { code, language, modules: toModules({ allowModules, denyModules }) };
    return screenReport(await this.#transport.json<WireScreenReport>({ method: "POST", path: "/v1/screen", json, options: request }));
  }

  /** Reports whether the server is alive. Needs no key. Throws if it cannot be reached. */
  async health(options?: RequestOptions): Promise<boolean> {
    return (await this.#transport.json<{ status: string }>({ method: "GET", path: "/health", options })).status === "ok";
  }

  /** Reports whether sandboxes can be created now. Needs no key. Throws if the server cannot be reached. */
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

  /** Returns the version of the server. Needs no key. */
  async version(options?: RequestOptions): Promise<Version> {
    const { version, api } = await this.#transport.json<Version>({ method: "GET", path: "/version", options });
    return { version, api };
  }

  /** Returns the server's metrics in the format of Prometheus. Needs an admin key, unless the operator opened them. */
  async metrics(options?: RequestOptions): Promise<string> {
    return this.#transport.text({ method: "GET", path: "/metrics", headers: { Accept: "text/plain" }, options });
  }
}
