// The same run for other clients: its code, files, limits, time and network, in the same sandbox or a new one.

import { draftOf, factsOf, type Network } from "./network";

export const CLIENTS = ["cli", "python", "typescript", "curl"] as const;
export type ClientName = (typeof CLIENTS)[number];
export const CLIENT_NAMES: Record<ClientName, string> = {
  cli: "Command line",
  python: "Python",
  typescript: "TypeScript",
  curl: "curl",
};

export type Run = {
  code: string;
  language: string;
  /** Address of the server. */
  origin: string;
  /** The sandbox in which it runs, which is kept; without one a new one is made, and ended afterwards. */
  sandbox: string;
  /** Life of a new sandbox, such as `1h`. */
  life: string;
  limits: Record<string, string | number>;
  network: Network;
  timeout: string;
  /** Names of the files that were put into the home directory. */
  files: string[];
};

const shell = (text: string) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);
const json = (value: unknown) => JSON.stringify(value);

const UNITS: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Milliseconds of a time such as `30s` or `1.5h`; a number alone is seconds. */
export function milliseconds(text: string): number | null {
  const [, number, unit] = /^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*$/.exec(text) ?? [];
  return number === undefined ? null : Math.round(Number(number) * (UNITS[unit ?? "s"] ?? 1000));
}

export function snippet(client: ClientName, run: Run): string {
  const isNew = !run.sandbox;
  const hasNetwork = isNew && run.network !== "disabled";
  const hasLimits = isNew && Object.keys(run.limits).length > 0;
  switch (client) {
    case "cli":
      return commandLine(run, isNew);
    case "python": {
      const given = [`timeout=${json(run.life)}`, hasLimits ? `limits=${python(run.limits)}` : "", hasNetwork ? `network=${python(run.network)}` : ""];
      const options = [...(isNew ? given.filter(Boolean) : []), `api_url=${json(run.origin)}`].join(", ");
      const call = `sandbox.run_code(${json(run.code)}, language=${json(run.language)}${run.timeout ? `, timeout=${json(run.timeout)}` : ""})`;
      const body = [...run.files.map((name) => `sandbox.files.write(${json(name)}, open(${json(name)}, "rb").read())`), `print(${call})`];
      return isNew
        ? `from belljar import Sandbox\n\nwith Sandbox.create(${options}) as sandbox:\n${body.map((one) => `    ${one}\n`).join("")}`
        : `from belljar import Sandbox\n\nsandbox = Sandbox.connect(${json(run.sandbox)}, ${options})\n${body.map((one) => `${one}\n`).join("")}`;
    }
    case "typescript": {
      const reads = run.files.length > 0 ? 'import { readFile } from "node:fs/promises";\n' : "";
      const life = milliseconds(run.life);
      const given = [life ? `timeoutMs: ${life}` : "", hasLimits ? `limits: ${json(run.limits)}` : "", hasNetwork ? `network: ${json(run.network)}` : ""];
      const options = `{ ${[...(isNew ? given.filter(Boolean) : []), `apiUrl: ${json(run.origin)}`].join(", ")} }`;
      const limit = run.timeout ? milliseconds(run.timeout) : null;
      const call = `sandbox.runCode(${json(run.code)}, { language: ${json(run.language)}${limit === null ? "" : `, timeoutMs: ${limit}`} })`;
      const body = [...run.files.map((name) => `await sandbox.files.write(${json(name)}, await readFile(${json(name)}));`), `console.log(await ${call});`];
      return isNew
        ? `import { Sandbox } from "belljar";\n${reads}\nconst sandbox = await Sandbox.create(${options});\ntry {\n${body.map((one) => `  ${one}\n`).join("")}} finally {\n  await sandbox.kill();\n}\n`
        : `import { Sandbox } from "belljar";\n${reads}\nconst sandbox = await Sandbox.connect(${json(run.sandbox)}, ${options});\n${body.map((one) => `${one}\n`).join("")}`;
    }
    case "curl": {
      const created = { timeout: run.life, ...(hasLimits ? { limits: run.limits } : {}), ...(hasNetwork ? { network: run.network } : {}) };
      const asked = { code: run.code, language: run.language, ...(run.timeout ? { timeout: run.timeout } : {}) };
      return [
        `api() { curl -sS --fail-with-body -H "Authorization: Bearer $BELLJAR_API_KEY" "$@"; }`,
        isNew ? `ID=$(api ${run.origin}/v1/sandboxes --json ${shell(json(created))} | jq -r .id)` : `ID=${run.sandbox}`,
        ...run.files.map((name) => `api -T ${shell(name)} "${run.origin}/v1/sandboxes/$ID/files/content?path=${encodeURIComponent(name)}"`),
        `api ${run.origin}/v1/sandboxes/$ID/code --json ${shell(json(asked))}`,
        ...(isNew ? [`api -X DELETE ${run.origin}/v1/sandboxes/$ID`] : []),
        "",
      ].join("\n");
    }
  }
}

function commandLine(run: Run, isNew: boolean): string {
  const words = ["belljar", "code", "--server", run.origin, "--language", run.language];
  if (run.timeout) words.push("--timeout", run.timeout);
  if (isNew) {
    words.push("--life", run.life);
    for (const [name, value] of Object.entries(run.limits)) words.push(`--${name.replaceAll("_", "-")}`, String(value));
    const { mode, presets, allow, deny, rest } = draftOf(run.network);
    if (mode !== "disabled") {
      words.push("--net", mode);
      for (const [flag, list] of [["--preset", presets], ["--allow", allow], ["--deny", deny]] as const) for (const one of list) words.push(flag, one);
      for (const [name, text] of factsOf(rest)) if (name === "tls") words.push("--tls", text.replace(": ", "="));
      for (const [host, rules] of Object.entries(rest.requests ?? {})) for (const rule of rules) words.push("--request", `${host}=${rule}`);
    }
    for (const name of run.files) words.push("--file", name);
  } else {
    words.push("--sandbox", run.sandbox);
  }
  const before = isNew ? [] : run.files.map((name) => `belljar sandbox cp --server ${shell(run.origin)} ${shell(name)} ${shell(`${run.sandbox}:${name}`)}\n`);
  return `${before.join("")}printf %s ${shell(run.code)} | ${words.map(shell).join(" ")}\n`;
}

/** A value as Python writes it. */
function python(value: unknown): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value as object).map(([key, one]) => `${json(key)}: ${python(one)}`).join(", ")}}`;
  return json(value);
}
