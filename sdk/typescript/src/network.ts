import type { RequestOptions } from "./config.js";
import { checkNetwork } from "./convert.js";
import { checkList, known, names } from "./options.js";
import type { Transport } from "./transport.js";
import type { Network } from "./types.js";
import type { WireNetworkForecast, WireNetworkOffer } from "./wire.js";

/** A host of a preset. */
export interface NetworkPresetHost {
  /** Its name, or `*.SUFFIX`. */
  name: string;
  /** The allowed ports. */
  ports: number[];
  /** Its purpose. */
  purpose: string;
  /** Its risk, such as that data can be carried out through it; else null. */
  risk: string | null;
}

/** The hosts that a package manager needs. */
export interface NetworkPreset {
  /** Its name, such as `pip`. */
  name: string;
  /** Its purpose. */
  purpose: string;
  /** Treatment of TLS to its hosts, unless a policy says otherwise of one. */
  tls: "terminate" | "pass";
  /** The hosts. */
  hosts: NetworkPresetHost[];
}

/** What network policies can be made of. */
export interface NetworkOffer {
  /** The presets, by name. */
  presets: NetworkPreset[];
  /** Grows with each change of a preset's hosts. */
  presetsVersion: number;
  /** The most that policies of this key may reach, by the server and by the key: a mode, or `presets` and `allow`; null without a ceiling. */
  most: { server: Network | null; key: Network | null };
}

/** A question about a network policy. */
export interface NetworkCheck {
  /** The policy; default: `disabled`, or that of `sandboxId`. */
  network?: Network;
  /** Destinations, at most 64, each as `HOST` (on port 443) or `HOST:PORT`. */
  hosts?: string[];
  /** The sandbox whose policy in force is meant, by id or name, instead of `network`. */
  sandboxId?: string;
}

/** The decision about one destination. */
export interface NetworkDecision {
  /** The destination, as `HOST:PORT`. */
  host: string;
  /** Whether a connection would be allowed. */
  allowed: boolean;
  /** The rule or mode that decides. */
  rule: string;
  /** What happens and why, in one sentence. */
  reason: string;
  /** The narrowest rule that would allow it, if the policy lacks nothing else; else null. */
  missing: string | null;
}

/** Something invalid in a network policy. */
export interface NetworkProblem {
  /** What is wrong, and what is allowed. */
  detail: string;
  /** The field, if it is one that is invalid; else null. */
  field: string | null;
  /** The value, if it is one that is invalid; else null. */
  value: string | null;
}

/** What a network policy would reach. */
export interface NetworkForecast {
  /** The policy in canonical form, without values of secrets; null if it is invalid. */
  network: Network | null;
  /** What is invalid. If there is anything, there is no decision. */
  problems: NetworkProblem[];
  /** Why this key could not give the policy to a sandbox, if it reaches more than it may; else null. */
  beyond: string | null;
  /** The decision about each destination, in their order. */
  hosts: NetworkDecision[];
}

const CHECK_NAMES = names<NetworkCheck>({ network: true, hosts: true, sandboxId: true });

/** Network policies: what they can be made of, and what one would reach. */
export class NetworkPolicies {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Returns the presets with their hosts, and the ceilings of the key's policies. */
  async offer(options?: RequestOptions): Promise<NetworkOffer> {
    return networkOffer(await this.#transport.json<WireNetworkOffer>({ method: "GET", path: "/v1/network", options }));
  }

  /**
   * Decides about destinations by a policy, or by the one in force in a sandbox. Nothing is connected, and no name is resolved. An
   * invalid policy is no error: the result has its `problems`.
   */
  async check(check: NetworkCheck, options?: RequestOptions): Promise<NetworkForecast> {
    const { network, hosts, sandboxId } = known("network.check", check, CHECK_NAMES);
    const json = { network: checkNetwork(network), hosts: checkList("hosts", hosts, "pypi.org"), sandbox: sandboxId };
    return networkForecast(await this.#transport.json<WireNetworkForecast>({ method: "POST", path: "/v1/network/check", json, options }));
  }
}

/** Converts an offer. */
export function networkOffer({ presets, presets_version: presetsVersion, most }: WireNetworkOffer): NetworkOffer {
  return {
    presets: presets.map(({ hosts, ...preset }) => ({ ...preset, hosts: hosts.map(({ risk, ...host }) => ({ ...host, risk: risk ?? null })) })),
    presetsVersion,
    most: { server: most.server ?? null, key: most.key ?? null },
  };
}

/** Converts a forecast. */
export function networkForecast({ network, problems, beyond, hosts }: WireNetworkForecast): NetworkForecast {
  return {
    network: network ?? null,
    problems: problems.map(({ detail, field, value }) => ({ detail, field: field ?? null, value: value ?? null })),
    beyond: beyond ?? null,
    hosts: hosts.map(({ missing, ...decision }) => ({ ...decision, missing: missing ?? null })),
  };
}
