// Checks of options and arguments, for callers without a compiler: an unknown name or a wrong type is an error that names the right one.

import { InvalidArgumentError } from "./errors.js";

/** The names of the options of a call. The compiler checks that none is missing. */
export type Names<Options> = { readonly [Name in keyof Required<Options>]: true };

/** Names of options of any call, for suggestions. */
const everywhere = new Set<string>();

/** Names that other libraries have, or that are expected at this level: the option that must exist, and what to write. */
const HINTS: Record<string, readonly [needed: string, hint: string]> = {
  ...hints("limits", (name) => `limits: { ${name}: … }`, ["memory", "cpus", "pids", "tmp", "disk", "inodes", "openFiles"]),
  ...hints("limits", () => 'limits: { memory: "1g" }', ["mem", "memoryMb", "memoryMB", "memoryLimit"]),
  ...hints("limits", () => "limits: { cpus: 2 }", ["cpu", "cpuCount", "vcpus"]),
  ...hints("envs", () => "envs", ["env", "envVars", "environment", "variables"]),
  ...hints("cwd", () => "cwd", ["workdir", "workDir", "workingDir", "workingDirectory", "directory"]),
  ...hints("timeoutMs", () => "timeoutMs, in milliseconds", ["timeout", "timeoutSeconds", "timeLimit", "ttl"]),
  ...hints("requestTimeoutMs", () => "requestTimeoutMs, in milliseconds", ["requestTimeout", "readTimeout"]),
  ...hints("template", () => "template", ["image", "templateId", "templateName", "snapshot", "snapshotId"]),
  ...hints("network", () => 'network: "open"', ["allowInternetAccess", "internet", "internetAccess"]),
  ...hints("apiUrl", () => "apiUrl", ["url", "baseUrl", "server", "host", "sandboxUrl"]),
  ...hints("apiKey", () => "apiKey", ["key", "token", "accessToken"]),
  ...hints("onTimeout", () => 'onTimeout: "pause"', ["lifecycle", "autoPause"]),
  ...hints("labels", () => "labels", ["tags"]),
  ...hints("volumes", () => "volumes", ["volumeMounts"]),
  ...hints("language", () => "language", ["lang"]),
};

/** Declares the names of options. */
export function names<Options>(of: Names<Options>): Names<Options> {
  Object.keys(of).forEach((name) => everywhere.add(name));
  return of;
}

/** Returns the options of a call. Throws if one has an unknown name. */
export function known<Options extends object>(call: string, options: Options, ...accepted: object[]): Options {
  checkObject(call, options);
  const all = new Set(accepted.flatMap((one) => Object.keys(one)));
  for (const name of given(options)) {
    if (!all.has(name)) {
      throw new InvalidArgumentError(`${call} has no option ${JSON.stringify(name)}; ${suggestion(name, all) ?? `its options are ${[...all].sort().join(", ")}`}`, { field: name });
    }
  }
  return options;
}

/** Throws if the options that a call has left over for its request have an unknown name. */
export function checkRest(options: object | undefined, accepted: object): void {
  if (options === undefined) {
    return;
  }
  checkObject("the call", options);
  for (const name of given(options)) {
    if (!(name in accepted)) {
      const near = suggestion(name, everywhere);
      throw new InvalidArgumentError(`there is no option ${JSON.stringify(name)} of this call${near === undefined ? "" : `; ${near}`}`, { field: name });
    }
  }
}

/** Returns an argument that must be a string. */
export function checkText(field: string, value: unknown): string {
  if (typeof value !== "string") {
    throw wrongType(field, value, "a string");
  }
  return value;
}

/** Returns an argument that must map names to strings; null only if they are removable. */
export function checkTexts<Value extends object | undefined>(field: string, value: Value, removable = false): Value {
  if (value === undefined) {
    return value;
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw wrongType(field, value, 'an object of strings, such as { NAME: "value" }');
  }
  for (const [key, one] of Object.entries(value as Record<string, unknown>)) {
    if (one !== undefined && !(removable && one === null)) {
      checkText(`${field}.${key}`, one);
    }
  }
  return value;
}

/** Returns an argument that must be a list of strings: a single string would be a list of its characters. */
export function checkList<Value extends readonly string[] | undefined>(field: string, value: Value, example: string): Value {
  if (value !== undefined) {
    if (!Array.isArray(value)) {
      throw wrongType(field, value, `a list of strings, such as ["${example}"]`);
    }
    value.forEach((one, at) => checkText(`${field}[${at}]`, one));
  }
  return value;
}

/** Returns an argument that must be an object. */
export function checkMapping<Value extends object | undefined>(field: string, value: Value, example: string): Value {
  if (value !== undefined && (typeof value !== "object" || value === null || Array.isArray(value))) {
    throw wrongType(field, value, `an object, such as ${example}`);
  }
  return value;
}

/** Returns the error for an argument of a wrong type. */
export function wrongType(field: string, value: unknown, wanted: string): InvalidArgumentError {
  return new InvalidArgumentError(`${field} must be ${wanted}, not ${shown(value)}`, { field });
}

function shown(value: unknown): string {
  if (typeof value === "string") {
    return JSON.stringify(value.slice(0, 60));
  }
  return typeof value === "object" && value !== null ? `an object (${value.constructor?.name ?? "Object"})` : typeof value === "function" ? "a function" : String(value);
}

function checkObject(call: string, options: unknown): void {
  if (typeof options !== "object" || options === null) {
    throw wrongType(`the options of ${call}`, options, "an object, such as { requestTimeoutMs: 1000 }");
  }
}

function given(options: object): string[] {
  return Object.entries(options).filter(([, value]) => value !== undefined).map(([name]) => name);
}

function suggestion(name: string, accepted: ReadonlySet<string>): string | undefined {
  const camel = name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
  const hint = HINTS[camel];
  if (hint !== undefined && accepted.has(hint[0])) {
    return `did you mean ${hint[1]}?`;
  }
  let nearest: string | undefined;
  let best = Math.max(2, Math.ceil(camel.length / 3)) + 1;
  for (const one of accepted) {
    const steps = distance(camel.toLowerCase(), one.toLowerCase());
    if (steps < best) {
      [nearest, best] = [one, steps];
    }
  }
  return nearest === undefined ? undefined : `did you mean ${nearest}?`;
}

/** Number of inserted, removed and replaced characters between two words. */
function distance(one: string, other: string): number {
  let row = Array.from({ length: other.length + 1 }, (_, index) => index);
  for (let at = 1; at <= one.length; at++) {
    const next = [at];
    for (let column = 1; column <= other.length; column++) {
      const replaced = (row[column - 1] ?? 0) + (one[at - 1] === other[column - 1] ? 0 : 1);
      next.push(Math.min(replaced, (row[column] ?? 0) + 1, (next[column - 1] ?? 0) + 1));
    }
    row = next;
  }
  return row[other.length] ?? 0;
}

function hints(needed: string, hint: (name: string) => string, names: readonly string[]): Record<string, readonly [string, string]> {
  return Object.fromEntries(names.map((name) => [name, [needed, hint(name)] as const]));
}
