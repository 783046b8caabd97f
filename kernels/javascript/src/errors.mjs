// Errors as shown to the user: with the stack of the user's own code.

import { describe, messageOf, shorten } from "./results.mjs";

const MAX_VALUE = 64 * 1024;
const MAX_TRACEBACK = 256 * 1024;

/** The code was interrupted. */
export class Interrupted extends Error {
  constructor() {
    super("the execution was interrupted");
    this.name = "Interrupted";
  }
}

/** Thrown by `input` and `prompt` if input is not allowed or refused. */
export class InputError extends Error {
  constructor(name, message) {
    super(message);
    this.name = name;
  }
}

/** Thrown by a tool that cannot be called, or whose call fails. */
export class ToolError extends Error {
  constructor(message) {
    super(message);
    this.name = "ToolError";
  }
}

/** Converts any thrown value to the fields of a frame. `maps` returns the source map for a cell's name. */
export function errorFields(error, kernelUrl, maps) {
  try {
    return fieldsOf(error, kernelUrl, maps);
  } catch {
    const value = "an error that cannot be shown";
    return { name: "Error", value, traceback: `Error: ${value}` };
  }
}

function fieldsOf(error, kernelUrl, maps) {
  const isError = error instanceof Error || Object.prototype.toString.call(error) === "[object Error]";
  if (!isError) {
    const shown = describe(error);
    return { name: "Uncaught", value: shorten(shown, MAX_VALUE), traceback: shorten(`Uncaught ${shown}`, MAX_TRACEBACK) };
  }
  let name = "Error";
  try {
    name = String(error.name || error.constructor?.name || "Error").slice(0, 256);
  } catch {
    // The name is inaccessible.
  }
  const value = shorten(messageOf(error), MAX_VALUE);
  let traceback;
  if (error.line !== undefined && error.text !== undefined && error.cell !== undefined) {
    const text = String(error.text).slice(0, 400);
    traceback = `${name}: ${value}\n    at ${error.cell}:${error.line}:${error.column}\n\n${text}\n${" ".repeat(Math.min(Math.max(error.column - 1, 0), 400))}^`;
  } else {
    traceback = clean(describe(error), kernelUrl, maps);
  }
  return { name, value, traceback: shorten(traceback, MAX_TRACEBACK) };
}

function clean(text, kernelUrl, maps) {
  const kept = [];
  for (const line of text.split("\n")) {
    const frame = /^\s+at /.test(line);
    if (frame && (line.includes(kernelUrl) || /\(?node:(vm|internal\/|async_hooks|events)/.test(line) || /^\s+at new Script /.test(line))) {
      // Text after the last frame, such as the properties of an error, is kept.
      const rest = /\)?( \{)$/.exec(line);
      if (rest && kept.length > 0) kept[kept.length - 1] += rest[1];
      continue;
    }
    kept.push(frame || line.startsWith("Cell [") ? mapped(line, maps) : line);
  }
  return kept.join("\n").replaceAll("(<anonymous>)", "").replace(/^Uncaught:\n/, "");
}

function mapped(line, maps) {
  return line.replace(/(Cell \[\d+\]):(\d+)(?::(\d+))?/g, (whole, cell, row, at) => {
    const found = maps.get(cell);
    if (!found) return whole;
    let column = Number(at ?? 1) - 1;
    const moved = found.columns.get(Number(row))?.findLast(([now]) => now <= column);
    if (moved) column += moved[1] - moved[0];
    const source = found.map?.findEntry(Number(row) - 1, Math.max(column, 0));
    const [originalRow, originalColumn] = source?.originalLine === undefined ? [Number(row) - 1, column] : [source.originalLine, source.originalColumn];
    return `${cell}:${originalRow + 1}${at ? `:${Math.max(originalColumn, 0) + 1}` : ""}`;
  });
}
