import type { RequestOptions } from "./config.js";
import { checkNetwork, limitsToWire, seconds } from "./convert.js";
import { checkList, known, names } from "./options.js";
import type { Vendor } from "./tools.js";
import { route, type Transport } from "./transport.js";
import type { ApprovalRule, Limits, Network } from "./types.js";

/** The definition of a tool that can be stored on the server. */
export interface StoredTool {
  /** Its name; default: the one of the call. */
  name?: string;
  /** What it does, for the model: 1 to 1024 bytes. */
  description: string;
  /** Languages of its code, 1 to 16; the first is used if a call names none. */
  languages: string[];
  /** Whether calls of a key share a sandbox; default: each call has one of its own. */
  session?: boolean;
  /** Which of its calls wait until another person approves them; default: `never`. */
  approval?: ApprovalRule;
  /** Limits of its sandboxes; default: the template's. */
  limits?: Limits;
  /** Network policy of its sandboxes, without secrets and headers; default: the template's. */
  network?: Network;
  /** Template of its sandboxes; default: the server's. */
  template?: string;
  /** Longest time of a call in milliseconds; default: 60,000. */
  timeoutMs?: number;
}

const TOOL_NAMES = names<StoredTool>({
  name: true,
  description: true,
  languages: true,
  session: true,
  approval: true,
  limits: true,
  network: true,
  template: true,
  timeoutMs: true,
});

/** Tools stored on the server, which models call. */
export class StoredTools {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /**
   * Returns the description of a tool, `NAME` or `NAME@VERSION`, in the form of an interface. With a definition it is the one that a
   * tool of that name would have; nothing is stored.
   */
  async schema(name: string, vendor: Vendor = "mcp", options: RequestOptions & { definition?: StoredTool } = {}): Promise<Record<string, unknown>> {
    const { definition, ...request } = options;
    const call = { path: route`/v1/tools/${name}/schema`, query: { for: vendor }, options: request };
    if (definition === undefined) {
      return this.#transport.json<Record<string, unknown>>({ method: "GET", ...call });
    }
    const { timeoutMs, limits, network, languages, ...same } = known("tools.schema", definition, TOOL_NAMES);
    const json = {
      ...same,
      languages: checkList("languages", languages, "python"),
      limits: limitsToWire(limits),
      network: checkNetwork(network),
      timeout: seconds("timeoutMs", timeoutMs),
    };
    return this.#transport.json<Record<string, unknown>>({ method: "POST", ...call, json });
  }
}
