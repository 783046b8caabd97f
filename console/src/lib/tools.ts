// Definitions of tools: as a form, as a request, and as lines that can be compared.

import type { Schemas } from "./api";
import { linesOf, type Network } from "./network";

export type Tool = Schemas["Tool"];
export const VENDORS = ["openai", "anthropic", "mcp"] as const;
export const LIMITS = ["memory", "cpus", "pids", "disk"] as const;
type Limits = Record<string, string | number>;

export type Form = {
  name: string;
  description: string;
  languages: string;
  timeout: string;
  session: boolean;
  approval: string;
  template: string;
  /** None: as the template has it. */
  network: Network | null;
  limits: Record<string, string>;
};

export const EMPTY: Form = {
  name: "", description: "", languages: "python", timeout: "60s", session: false, approval: "never", template: "", network: null, limits: {},
};

export const PRESETS: Record<string, Partial<Form>> = {
  interpreter: { name: "interpreter", description: "Runs Python code, and keeps its variables from call to call.", languages: "python", session: true },
  shell: { name: "shell", description: "Runs a script of bash.", languages: "bash" },
  data: { name: "analyse", description: "Analyses data with Python: pandas and matplotlib.", languages: "python", timeout: "120s", limits: { memory: "1g" } },
};

const limitsOf = (tool: Tool): Limits =>
  Object.fromEntries(Object.entries(tool.limits).filter(([, value]) => value !== null && value !== undefined)) as Limits;

export function formOf(tool: Tool): Form {
  const limits = Object.fromEntries(Object.entries(limitsOf(tool)).map(([name, value]) => [name, String(value)]));
  return {
    name: tool.name, description: tool.description, languages: tool.languages.join(", "), timeout: `${tool.timeout_s}s`,
    session: tool.session, approval: tool.approval, template: tool.template ?? "", network: (tool.network as Network | undefined) ?? null, limits,
  };
}

/** The definition of a form, without the name. */
export function definitionOf(form: Form): Record<string, unknown> {
  const limits = Object.entries(form.limits).map(([name, text]): [string, unknown] => {
    const value = text.trim();
    return [name, value !== "" && Number.isFinite(Number(value)) ? Number(value) : value];
  });
  return {
    description: form.description, session: form.session, approval: form.approval,
    languages: form.languages.split(/[\s,]+/).filter(Boolean), timeout: form.timeout.trim() || undefined,
    template: form.template.trim() || undefined, network: form.network ?? undefined,
    limits: Object.fromEntries(limits.filter(([, value]) => value !== "")),
  };
}

/** A definition as lines. */
export function textOf(tool: Tool): string {
  return [
    `description: ${tool.description}`,
    `languages: ${tool.languages.join(", ")}`,
    `timeout: ${tool.timeout_s} s`,
    `session: ${tool.session ? "yes" : "no"}`,
    `approval: ${tool.approval}`,
    `template: ${tool.template ?? "the server's default"}`,
    ...Object.entries(limitsOf(tool)).map(([name, value]) => `limit ${name}: ${value}`),
    ...(tool.network ? linesOf(tool.network as Network) : ["network: the template's"]),
  ].join("\n");
}

/** The limits in one line. */
export const limitsText = (tool: Tool): string => Object.entries(limitsOf(tool)).map(([name, value]) => `${name} ${value}`).join(", ");
