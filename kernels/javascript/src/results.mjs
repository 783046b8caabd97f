// Results: a value in several representations, within the size limits of the protocol.

import { inspect } from "node:util";
import { JSON } from "./own.mjs";

const MAX_VALUE = 8 * 1024 * 1024;
const MAX_TOTAL = 24 * 1024 * 1024;
const MAX_RESULTS = 1000;
const MAX_NODES = 200_000;
const MAX_DEPTH = 64;
const MAX_ROWS = 1000;
const MAX_COLUMNS = 100;
export const TABLE = "application/vnd.belljar.table.v1+json";

/** A method with this symbol returns an object's representations: `{ "text/html": "…" }`. Other Jupyter kernels for JavaScript use it, too. */
export const DISPLAY = Symbol.for("Jupyter.display");

/** Returns text for people; never throws. */
export function describe(value) {
  try {
    return inspect(value, { colors: false, depth: 4, maxArrayLength: 100, maxStringLength: MAX_VALUE, breakLength: 100 });
  } catch (error) {
    return `[a value that cannot be shown: ${messageOf(error)}]`;
  }
}

export function messageOf(error) {
  try {
    return String(error?.message ?? error);
  } catch {
    return "no message";
  }
}

/** Shortens text to at most `limit` bytes of UTF-8, keeping head and tail. */
export function shorten(text, limit) {
  const size = Buffer.byteLength(text);
  if (size <= limit) return text;
  const half = Math.floor(limit / 2) - 64;
  const bytes = Buffer.from(text);
  let head = half;
  while ((bytes[head] & 0xc0) === 0x80) head -= 1;
  let tail = size - half;
  while ((bytes[tail] & 0xc0) === 0x80) tail += 1;
  return `${bytes.toString("utf8", 0, head)}\n[${tail - head} bytes are left out]\n${bytes.toString("utf8", tail)}`;
}

/** Returns the representations of a value: a map by MIME type. */
export async function formsOf(value) {
  if (value !== null && (typeof value === "object" || typeof value === "function")) {
    const hook = value[DISPLAY];
    if (typeof hook === "function") {
      const forms = await hook.call(value);
      if (forms === null || typeof forms !== "object") throw new TypeError("[Symbol.for('Jupyter.display')] has to give an object of MIME types");
      return { ...forms };
    }
  }
  return plainForms(value);
}

/** Returns the representations of a value without a method for them. */
export function plainForms(value) {
  const forms = { "text/plain": describe(value) };
  if (value instanceof Uint8Array) {
    const mime = picture(value);
    if (mime) forms[mime] = value;
  } else if (value !== null && typeof value === "object" && isPlain(value)) {
    forms["application/json"] = value;
  }
  return forms;
}

/** Reports whether an object is a map of MIME types to values, for `display`. */
export function isBundle(value) {
  if (value === null || typeof value !== "object" || !isPlain(value) || Array.isArray(value)) return false;
  const keys = Object.keys(value);
  return keys.length > 0 && keys.every((key) => /^[a-z]+\/[\w.+-]+$/.test(key));
}

function picture(bytes) {
  if (bytes[0] === 0x89 && bytes[1] === 0x50 && bytes[2] === 0x4e && bytes[3] === 0x47) return "image/png";
  if (bytes[0] === 0xff && bytes[1] === 0xd8 && bytes[2] === 0xff) return "image/jpeg";
  if (bytes[0] === 0x25 && bytes[1] === 0x50 && bytes[2] === 0x44 && bytes[3] === 0x46) return "application/pdf";
  return undefined;
}

function isPlain(value) {
  try {
    const prototype = Object.getPrototypeOf(value);
    return Array.isArray(value) || prototype === null || prototype === Object.prototype;
  } catch {
    return false;
  }
}

/** Returns the JSON of a value that contains only JSON values; undefined for all others. `limit` is the maximum length. */
function plainJson(value, limit) {
  let nodes = 0;
  let size = 0;
  const parents = new Set();
  const write = (one, depth) => {
    nodes += 1;
    if (nodes > MAX_NODES || depth > MAX_DEPTH || size > limit) throw TOO_LARGE;
    if (one === null || typeof one === "boolean") return String(one);
    if (typeof one === "number") {
      if (!Number.isFinite(one)) throw OTHER;
      return JSON.stringify(one);
    }
    if (typeof one === "string") {
      size += one.length;
      if (size > limit) throw TOO_LARGE;
      return JSON.stringify(one);
    }
    if (typeof one !== "object" || !isPlain(one) || parents.has(one)) throw OTHER;
    parents.add(one);
    let made;
    if (Array.isArray(one)) {
      if (one.length > MAX_NODES) throw TOO_LARGE;
      const parts = [];
      for (let index = 0; index < one.length; index += 1) parts.push(write(one[index], depth + 1));
      made = `[${parts.join(",")}]`;
    } else {
      const parts = [];
      for (const key of Reflect.ownKeys(one)) {
        const property = Object.getOwnPropertyDescriptor(one, key);
        if (!property.enumerable) continue;
        if (typeof key !== "string" || !("value" in property)) throw OTHER;
        size += key.length;
        parts.push(`${JSON.stringify(key)}:${write(property.value, depth + 1)}`);
      }
      made = `{${parts.join(",")}}`;
    }
    parents.delete(one);
    return made;
  };
  return write(value, 0);
}

const TOO_LARGE = Symbol("too large");
const OTHER = Symbol("not JSON");

/** Tracks the totals of one execution, and encodes results as frames. */
export class Results {
  #total = 0;
  #count = 0;
  #wire;
  #id;
  #token;

  /** `token` is that of the marks in the streams; undefined if the guest knows none. */
  constructor(wire, id, token) {
    this.#wire = wire;
    this.#id = id;
    this.#token = token;
  }

  /** Sends a result. Returns whether it was accepted: at most 1,000 per execution. */
  send(forms, { main = false, metadata, display_id: displayId, update = false } = {}) {
    if (this.#count >= MAX_RESULTS) return false;
    this.#count += 1;
    const cut = [];
    const parts = [];
    for (const mime of Object.keys(forms)) {
      const json = this.#value(mime, forms[mime], cut);
      if (json === undefined) continue;
      const size = Buffer.byteLength(json);
      if (this.#total + size > MAX_TOTAL) {
        cut.push(`${mime}: all results of one execution may have 24 MiB`);
        continue;
      }
      this.#total += size;
      parts.push(`${JSON.stringify(mime)}:${json}`);
    }
    const rest = { main, cut: cut.slice(0, 100) };
    if (displayId !== undefined) rest.display_id = String(displayId).slice(0, 256);
    if (update) rest.update = true;
    const hints = metadata === undefined ? "" : this.#metadata(metadata);
    const frame = `{"op":"result","id":${this.#id},"data":{${parts.join(",")}}${hints},${JSON.stringify(rest).slice(1)}`;
    // No code runs between the value and the end, before which the guest reads all output.
    if (main || this.#token === undefined) this.#wire.send(frame);
    else this.#wire.sendMarked(frame, this.#token);
    return true;
  }

  #metadata(metadata) {
    try {
      return `,"metadata":${plainJson(metadata, 65536)}`;
    } catch {
      return "";
    }
  }

  #value(mime, value, cut) {
    if (/^application\/(json|.*\+json)$/.test(mime)) {
      try {
        const json = plainJson(value, MAX_VALUE);
        if (Buffer.byteLength(json) > MAX_VALUE) throw TOO_LARGE;
        return json;
      } catch (reason) {
        if (reason === TOO_LARGE) cut.push(`${mime}: the value is larger than the 8 MiB, or has more than the ${MAX_NODES.toLocaleString("en")} parts, of one form`);
        return undefined;
      }
    }
    if (value instanceof Uint8Array) {
      if (isText(mime)) return this.#text(mime, Buffer.from(value).toString("utf8"), cut);
      const size = Math.ceil(value.length / 3) * 4;
      if (size > MAX_VALUE) {
        cut.push(`${mime}: ${(value.length / 1e6).toFixed(1)} MB are more than the 8 MiB of one form`);
        return undefined;
      }
      return JSON.stringify(Buffer.from(value.buffer, value.byteOffset, value.length).toString("base64"));
    }
    if (isText(mime)) return this.#text(mime, typeof value === "string" ? value : describe(value), cut);
    const base64 = typeof value === "string" ? value.replace(/\s+/g, "") : "";
    if (typeof value !== "string" || !/^[A-Za-z0-9+/]*={0,2}$/.test(base64)) {
      cut.push(`${mime}: has to be a Uint8Array, or a string of base64`);
      return undefined;
    }
    if (base64.length > MAX_VALUE) {
      cut.push(`${mime}: ${(base64.length / 1e6).toFixed(1)} MB are more than the 8 MiB of one form`);
      return undefined;
    }
    return JSON.stringify(base64);
  }

  #text(mime, text, cut) {
    let json = JSON.stringify(text.isWellFormed?.() === false ? text.toWellFormed() : text);
    if (Buffer.byteLength(json) <= MAX_VALUE) return json;
    if (mime !== "text/plain" && mime !== "text/markdown") {
      cut.push(`${mime}: ${(Buffer.byteLength(text) / 1e6).toFixed(1)} MB are more than the 8 MiB of one form`);
      return undefined;
    }
    cut.push(`${mime}: shortened, as it is more than the 8 MiB of one form`);
    for (let limit = MAX_VALUE - 1024; Buffer.byteLength(json) > MAX_VALUE; limit = Math.floor(limit / 2)) {
      json = JSON.stringify(shorten(text, limit));
    }
    return json;
  }
}

function isText(mime) {
  return mime.startsWith("text/") || mime === "application/javascript" || mime === "image/svg+xml" || mime.endsWith("+xml") || mime === "application/xml";
}

/** Creates a table from rows that are objects or arrays: as data, as HTML, and as text. */
export function tableForms(rows) {
  if (!Array.isArray(rows)) throw new TypeError("display.table takes an array of objects or of arrays");
  const kept = rows.slice(0, MAX_ROWS);
  const names = [];
  const seen = new Set();
  for (const row of kept) {
    if (row === null || typeof row !== "object") throw new TypeError("display.table takes an array of objects or of arrays");
    for (const name of Object.keys(row)) {
      if (!seen.has(name) && names.length < MAX_COLUMNS) names.push(name);
      seen.add(name);
    }
  }
  const cells = kept.map((row) => names.map((name) => row[name]));
  const columns = names.map((name, index) => ({ name, type: typeOf(cells.map((row) => row[index])) }));
  const table = {
    columns,
    rows: cells.map((row) => row.map(cell)),
    index: null,
    row_count: rows.length,
    truncated: rows.length > MAX_ROWS || seen.size > MAX_COLUMNS,
  };
  const head = names.map((name) => `<th>${escape(name)}</th>`).join("");
  const body = table.rows.map((row) => `<tr>${row.map((one) => `<td>${one === null ? "" : escape(String(one))}</td>`).join("")}</tr>`).join("\n");
  return {
    "text/plain": describe(rows),
    "text/html": `<table>\n<thead><tr>${head}</tr></thead>\n<tbody>\n${body}\n</tbody>\n</table>`,
    [TABLE]: table,
  };
}

function cell(value) {
  if (value === undefined || value === null || (typeof value === "number" && !Number.isFinite(value))) return null;
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? null : value.toISOString();
  if (typeof value === "number" || typeof value === "boolean") return value;
  return shorten(typeof value === "string" ? value : typeof value === "bigint" ? String(value) : describe(value), 4096);
}

function typeOf(values) {
  const types = new Set();
  for (const value of values) {
    if (value === undefined || value === null || Number.isNaN(value)) continue;
    if (typeof value === "number") types.add(Number.isInteger(value) ? "integer" : "number");
    else if (typeof value === "boolean" || typeof value === "string") types.add(typeof value);
    else types.add(value instanceof Date ? "datetime" : "other");
  }
  if (types.size === 1) return [...types][0];
  if (types.size === 2 && types.has("integer") && types.has("number")) return "number";
  return "other";
}

function escape(text) {
  return text.replace(/[&<>"]/g, (one) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[one]);
}
