// Network policies, as people edit them.

import type { Schemas } from "./api";

export type Policy = Schemas["NetworkPolicy"];
export type Network = string | Policy;
export type Offer = Schemas["NetworkOffer"];
export type Forecast = Schemas["NetworkForecast"];

export const MODES = ["disabled", "whitelist", "open"] as const;
export type Mode = (typeof MODES)[number];

/** A policy while it is edited: lists stay when the mode is changed, and what is edited elsewhere is kept as it is. */
export type Draft = {
  mode: Mode;
  presets: string[];
  allow: string[];
  deny: string[];
  rest: Pick<Policy, "requests" | "secrets" | "headers" | "tls">;
};

const RANGE = /^\d+\.\d+\.\d+\.\d+\//;
const isMode = (text: unknown): text is Mode => MODES.includes(text as Mode);

export function draftOf(network: Network | null | undefined): Draft {
  const policy: Policy = typeof network === "string" ? { mode: network } : (network ?? {});
  const named = isMode(policy.mode) ? policy.mode : null;
  const { requests, secrets, headers, tls } = policy;
  const rest = Object.fromEntries(Object.entries({ requests, secrets, headers, tls }).filter(([, value]) => value));
  const { presets, allow, deny } = policy;
  return {
    mode: named ?? (presets || allow ? "whitelist" : "disabled"),
    presets: [...(presets ?? [])],
    allow: [...(allow ?? [])],
    deny: [...(deny ?? [])],
    rest,
  };
}

/** The policy of a draft, without what has no meaning in its mode. */
export function networkOf(draft: Draft): Network {
  const { mode, presets, allow, deny, rest } = draft;
  if (mode === "disabled") return mode;
  const lists = {
    presets: mode === "open" ? [] : presets,
    // Every public name is reached already; ranges are for addresses that are not public.
    allow: mode === "open" ? allow.filter((rule) => RANGE.test(rule)) : allow,
    deny,
  };
  const given = Object.entries(lists).filter(([, list]) => list.length > 0);
  if (mode === "open" && given.length === 0 && Object.keys(rest).length === 0) return mode;
  return { mode, ...Object.fromEntries(given), ...rest };
}

/** The policy of a draft for a question: without secrets and headers, whose values only the server has. They decide nothing. */
export const askable = (draft: Draft): Network => {
  const { requests, tls } = draft.rest;
  return networkOf({ ...draft, rest: { ...(requests ? { requests } : {}), ...(tls ? { tls } : {}) } });
};

/** Reads a policy from the record of a call: its mode, and the policy in JSON if there is a network. */
export function networkOfRecord(text: string): Network | null {
  const at = text.indexOf("{");
  if (at < 0) return isMode(text) ? text : null;
  try {
    const policy = JSON.parse(text.slice(at)) as Policy;
    return typeof policy === "object" && policy !== null ? policy : null;
  } catch {
    return null;
  }
}

/** A reason without the advice to ask somebody for a rule, for those who can add it themselves. */
export const reasonFor = (reason: string, mayChange: boolean): string =>
  mayChange ? reason.replace(/; ask whoever created the sandbox to allow \S+$/, "") : reason;

/** Rules from a text: one a line, or with commas or spaces between them. */
export const rulesIn = (text: string): string[] => text.split(/[\s,;]+/).filter(Boolean);

export type Risk = "everything" | "below" | "ports" | "range" | "preset";

/** Why a rule that allows deserves a second look, with the reason of a preset if that has one for the host. */
export function riskOf(rule: string, offer: Offer | undefined): { risk: Risk; why?: string } | null {
  if (RANGE.test(rule)) return { risk: "range" };
  const host = rule.replace(/:(\d+|\*)$/, "").toLowerCase();
  for (const preset of offer?.presets ?? []) {
    const known = preset.hosts.find((one) => one.name === host && one.risk);
    if (known?.risk) return { risk: "preset", why: known.risk };
  }
  if (rule.startsWith("*.")) return { risk: "below" };
  return rule.endsWith(":*") ? { risk: "ports" } : null;
}

/** One line about a policy, for lists. */
export function summary(network: Network | null | undefined, names: Record<string, string>): string {
  const { mode, presets, allow } = draftOf(network);
  const hosts = [...presets, ...allow];
  const more = hosts.length > 4 ? `, +${hosts.length - 4}` : "";
  return mode === "whitelist" ? `${hosts.slice(0, 4).join(", ") || names.nothing}${more}` : (names[mode] ?? mode);
}

/** A policy as lines, one for each thing in it, for comparisons. */
export function linesOf(network: Network | null | undefined): string[] {
  const { mode, presets, allow, deny, rest } = draftOf(network);
  const listed = Object.entries({ presets, allow, deny }).flatMap(([name, list]) => [...list].sort().map((one) => `network.${name}: ${one}`));
  return [`network: ${mode}`, ...listed, ...factsOf(rest).map(([name, text]) => `network.${name}: ${text}`)];
}

type Secret = Schemas["NetworkSecret"];

/** What of a policy is about requests, each with the name of its field. */
export function factsOf({ requests, secrets, headers, tls }: Draft["rest"]): [string, string][] {
  const place = ({ host, header, value }: Secret) => `${header} to ${host}${value ? `: ${value}` : ""}`;
  return [
    ...Object.entries(requests ?? {}).map(([host, rules]): [string, string] => ["requests", `${host}: ${rules.join(", ")}`]),
    ...Object.entries(secrets ?? {}).map(([name, secret]): [string, string] => ["secrets", `${name} in ${place(secret)}`]),
    ...(headers ?? []).map((header): [string, string] => ["headers", place(header)]),
    ...Object.entries(tls ?? {}).map(([host, mode]): [string, string] => ["tls", `${host}: ${mode}`]),
  ];
}
