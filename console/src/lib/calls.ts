// Calls that wait for approval, as texts that can be compared.

import type { Schemas } from "./api";
import { linesOf, networkOfRecord } from "./network";
import { decoded } from "./plain";

type Approval = Schemas["Approval"];
type Request = Schemas["ApprovalRequest"];

const toolOf = (request: Request) => request.tool?.replace(/@\d+$/, "");

/** The newest of these calls, made before this one, that is of the same tool; of a call of none, the newest of the same person and kind. */
export function lastLike(call: Approval, approved: Approval[]): Approval | null {
  const earlier = approved.filter((one) => one.id !== call.id && one.created_at < call.created_at);
  const tool = toolOf(call.request);
  const isLike = (one: Approval) =>
    tool ? toolOf(one.request) === tool : one.requester === call.requester && one.request.action === call.request.action;
  return earlier.find(isLike) ?? null;
}

/** What runs: code, a line for the shell, or a program with its arguments, one a line. */
export function codeOf(request: Request): string {
  const code = decoded(request.code ?? request.command);
  return [...(request.argv ?? []).map((word) => decoded(word)), ...(code ? [code] : [])].join("\n");
}

/** All else of a call, one thing a line. */
export function restOf(request: Request): string {
  const one = (name: string, value: unknown) => (value === null || value === undefined || value === "" ? [] : [`${name}: ${value}`]);
  const many = (name: string, text: string) => text.split("\n").map((line) => `${name}: ${line}`);
  return [
    ...one("action", request.action),
    ...one("tool", request.tool),
    ...one("language", request.language),
    ...one("template", request.template),
    ...one("template id", request.template_id),
    ...one("sandbox", request.sandbox),
    ...one("session", request.session),
    ...one("context", request.context),
    ...one("directory", decoded(request.cwd)),
    ...one("user", request.user),
    ...one("timeout", request.timeout_ms && `${request.timeout_ms} ms`),
    ...linesOf(networkOfRecord(request.network)),
    ...one("policy", request.policy_sha256),
    ...Object.entries(request.env ?? {}).map(([name, value]) => `env ${name}=${value}`),
    ...(request.stdin ? many("input", decoded(request.stdin)) : []),
    ...Object.entries(request.files ?? {}).flatMap(([name, content]) => many(`file ${name}`, decoded(content))),
  ].join("\n");
}
