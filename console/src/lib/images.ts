// Images: templates whose names follow from those of images, as the server has them.

import type { Schemas } from "./api";

const PREFIX = "image-";
const REGISTRY = "docker.io";
/** Maximum number of characters of an image's name in that of its template, and digits of its digest. */
const MAX_SLUG = 40;
const DIGITS = 10;

/** The full name of an image: with its registry, and a tag or a digest. */
export function fullName(text: string): string {
  const [name = "", digest] = text.trim().split("@");
  const at = name.lastIndexOf(":");
  const hasTag = at > name.lastIndexOf("/");
  const [path, tag] = hasTag ? [name.slice(0, at), name.slice(at + 1)] : [name, digest ? "" : "latest"];
  const first = path.split("/")[0] ?? "";
  const hasHost = path.includes("/") && (/[.:]/.test(first) || first === "localhost");
  const registry = hasHost ? first.toLowerCase() : REGISTRY;
  const repository = hasHost ? path.slice(first.length + 1) : path;
  const whole = registry === REGISTRY && !repository.includes("/") ? `library/${repository}` : repository;
  return `${registry}/${whole}${tag ? `:${tag}` : ""}${digest ? `@${digest}` : ""}`;
}

/** The name of the template of an image. Null where the browser has no digests: they are for pages of HTTPS and of this machine. */
export async function templateOf(image: string): Promise<string | null> {
  if (!globalThis.crypto.subtle) return null;
  const full = fullName(image);
  const last = full.slice(full.lastIndexOf("/") + 1).split("@")[0] ?? "";
  const slug = [...last].slice(0, MAX_SLUG).join("").toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "");
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(full)));
  const hex = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return `${PREFIX}${slug}-${hex.slice(0, DIGITS)}`;
}

export const isImage = (template: Schemas["TemplateInfo"]): boolean => template.name?.startsWith(PREFIX) === true && Boolean(template.note);

/** How far a pull is, from a line of its log. */
export function pulled(line: string): { done: number; all: number } | null {
  const [, done, all] = /^pulled (\d+) of (\d+) MiB$/.exec(line) ?? [];
  return done === undefined ? null : { done: Number(done), all: Number(all) };
}
