// Rewrites a cell's text for V8. Line numbers are kept, so that stacks refer to the user's own lines.
//
// Declarations at the top level become properties of the global object, which is why a later cell may declare a name again.
// `import` becomes a call of the kernel. Every `await` includes a check, so that an interrupted cell does not continue.

import { parse, parseExpressionAt } from "acorn";
import { fullAncestor } from "acorn-walk";
import { JSON } from "./own.mjs";

const OPTIONS = {
  ecmaVersion: "latest",
  sourceType: "script",
  allowAwaitOutsideFunction: true,
  allowImportExportEverywhere: true,
  allowHashBang: true,
  locations: true,
};

/** The name of the kernel's helpers in rewritten code. */
export const HELPERS = "__belljar_kernel__";

/** In a function and in a cell: the cell that ran when it was called. Functions of an interrupted cell stop at their next await. */
const CELL = "__belljar_cell__";
const OPEN = `(async () => {const ${CELL} = ${HELPERS}.cell();`;

/** A syntax error: its position, and the code there. */
export class CellSyntaxError extends SyntaxError {
  constructor(message, line, column, text) {
    super(message);
    this.name = "SyntaxError";
    this.line = line;
    this.column = column;
    this.text = text;
  }
}

/**
 * Rewrites a cell.
 *
 * Returns `{ code, functions, isAsync, hasValue, names }`: `code` is run as a script, for an async cell it returns a promise of its
 * value; `functions` is a script that declares the functions of an async cell, and is run before; `names` are declared first.
 */
export function rewrite(source, { lenientImports = false } = {}) {
  const object = objectLiteral(source);
  const text = object ? `(${source}\n)` : source;
  const program = parseProgram(text);
  const edits = new Edits(text);
  const names = new Set();
  const checked = new Set();
  const last = program.body[program.body.length - 1];
  let isAsync = false;

  fullAncestor(program, (node, _state, ancestors) => {
    const inFunction = ancestors.some((one) => one !== node && isFunction(one));
    switch (node.type) {
      case "AwaitExpression":
        isAsync ||= !inFunction;
        if (!checkable(edits, checked, ancestors)) break;
        edits.before(node.start, `${HELPERS}.awaited(${CELL}, `);
        edits.after(node.end, ")");
        break;
      case "ForOfStatement":
        if (!node.await) break;
        isAsync ||= !inFunction;
        if (!checkable(edits, checked, ancestors)) break;
        edits.before(node.right.start, `${HELPERS}.iterated(${CELL}, `);
        edits.after(node.right.end, ")");
        break;
      case "ImportExpression":
        edits.replace(node.start, node.start + "import".length, `${HELPERS}.load`);
        break;
      case "MetaProperty":
        if (node.meta.name === "import") edits.replace(node.start, node.end, `${HELPERS}.meta()`);
        break;
      case "VariableDeclaration":
        if (!inFunction) declaration(edits, names, node, ancestors);
        break;
    }
  });

  const functions = [];
  for (const node of program.body) {
    isAsync = topLevel(edits, names, functions, node, lenientImports) || isAsync;
  }
  let hasValue = false;
  const value = last && (last.type === "ExpressionStatement" ? last.expression : defaultValue(last));
  if (value) {
    hasValue = true;
    if (isAsync) {
      edits.before(value.start, ";return (", true);
      edits.after(value.end, ")", true);
    }
  }
  let before = "";
  if (isAsync && functions.length > 0) {
    before = edits.only(functions);
    for (const node of functions) edits.blank(node.start, node.end);
  }
  const { code: body, columns } = edits.apply();
  return {
    code: isAsync ? `${OPEN}${body}\n})()` : body,
    functions: before,
    shift: (isAsync ? OPEN.length : 0) + (object ? 1 : 0),
    columns,
    isAsync,
    hasValue,
    names: [...names],
  };
}

function parseProgram(text) {
  try {
    return parse(text, OPTIONS);
  } catch (error) {
    if (!(error instanceof SyntaxError) || !error.loc) throw error;
    const { line, column } = error.loc;
    const message = error.message.replace(/ \(\d+:\d+\)$/, "");
    throw new CellSyntaxError(message, line, column + 1, text.split("\n")[line - 1] ?? "");
  }
}

/** Reports whether a cell is a single object, `{a: 1}`, which a script would parse as a block. */
function objectLiteral(source) {
  if (!/^\s*\{/.test(source) || !/\}\s*$/.test(source)) return false;
  try {
    const node = parseExpressionAt(source, 0, OPTIONS);
    return node.type === "ObjectExpression" && source.slice(node.end).trim() === "" && !(node.properties.length === 0);
  } catch {
    return false;
  }
}

function isFunction(node) {
  return /^(FunctionDeclaration|FunctionExpression|ArrowFunctionExpression|PropertyDefinition|StaticBlock)$/.test(node.type);
}

/** Reports whether an `await` can be checked: its function then records the cell that called it. */
function checkable(edits, checked, ancestors) {
  const owner = ancestors.slice(0, -1).findLast((one) => /Function/.test(one.type));
  if (!owner) return true;
  const body = owner.body;
  // An await in the parameters runs before the body.
  if (body.type !== "BlockStatement" || !ancestors.includes(body)) return false;
  if (body.body[0]?.directive !== undefined) return false;
  if (!checked.has(owner)) {
    checked.add(owner);
    edits.after(body.start + 1, `const ${CELL} = ${HELPERS}.cell();`);
  }
  return true;
}

function defaultValue(node) {
  return node.type === "ExportDefaultDeclaration" && !/Declaration$/.test(node.declaration.type) ? node.declaration : undefined;
}

/** Rewrites declarations of context variables to assignments: all at the top level, and `var` everywhere. */
function declaration(edits, names, node, ancestors) {
  const parent = ancestors[ancestors.length - 2];
  const top = parent.type === "Program" || parent.type === "ExportNamedDeclaration";
  if (!top && node.kind !== "var") return;
  if (node.kind.includes("using")) return;
  for (const one of node.declarations) bound(one.id, names);
  const keywordEnd = node.start + node.kind.length;
  if (/^For(In|Of)?Statement$/.test(parent.type) && node !== parent.body) {
    edits.replace(node.start, keywordEnd, "");
    return;
  }
  const inList = top || /^(BlockStatement|SwitchCase)$/.test(parent.type);
  edits.replace(node.start, keywordEnd, inList ? ";(" : "(");
  for (const one of node.declarations) {
    if (!one.init) edits.after(one.end, node.kind === "var" ? "" : " = void 0");
  }
  const final = node.declarations[node.declarations.length - 1];
  edits.after(final.end, ");");
  if (text(edits, node.end - 1) === ";") edits.replace(node.end - 1, node.end, "");
}

function text(edits, at) {
  return edits.source[at];
}

/** Rewrites statements that are only valid at the top level. Returns whether they require an async cell. */
function topLevel(edits, names, functions, node, lenient) {
  switch (node.type) {
    case "FunctionDeclaration":
      names.add(node.id.name);
      functions.push(node);
      return false;
    case "ClassDeclaration":
      names.add(node.id.name);
      edits.before(node.start, `;${node.id.name} = `);
      edits.after(node.end, ";");
      return false;
    case "ImportDeclaration":
      edits.replace(node.start, node.end, imported(edits.source, node, names, lenient));
      return true;
    case "ExportNamedDeclaration":
      if (node.declaration) {
        edits.replace(node.start, node.declaration.start, "");
        return topLevel(edits, names, functions, node.declaration, lenient);
      }
      edits.blank(node.start, node.end);
      return false;
    case "ExportDefaultDeclaration":
      edits.replace(node.start, node.declaration.start, ";");
      if (/Declaration$/.test(node.declaration.type)) {
        if (node.declaration.id) return topLevel(edits, names, functions, node.declaration, lenient);
        edits.before(node.declaration.start, "(");
        edits.after(node.declaration.end, ");");
      }
      return false;
    case "ExportAllDeclaration":
      edits.blank(node.start, node.end);
      return false;
    default:
      return false;
  }
}

function imported(source, node, names, lenient) {
  const parts = [];
  const wanted = [];
  let namespace;
  for (const one of node.specifiers) {
    names.add(one.local.name);
    if (one.type === "ImportNamespaceSpecifier") {
      namespace = one.local.name;
      continue;
    }
    const name = one.type === "ImportDefaultSpecifier" ? "default" : (one.imported.name ?? one.imported.value);
    wanted.push(name);
    parts.push(`${JSON.stringify(name)}: ${one.local.name}`);
  }
  const attributes = {};
  for (const one of node.attributes ?? []) attributes[one.key.name ?? one.key.value] = one.value.value;
  const options = Object.keys(attributes).length > 0 ? JSON.stringify({ with: attributes }) : "undefined";
  const call = `(await ${HELPERS}.imported(${JSON.stringify(node.source.value)}, ${options}, ${JSON.stringify(lenient ? [] : wanted)}))`;
  let made;
  if (namespace && parts.length > 0) made = `;({${parts.join(", ")}} = ${namespace} = ${call});`;
  else if (namespace) made = `;(${namespace} = ${call});`;
  else made = `;({${parts.join(", ")}} = ${call});`;
  return made + "\n".repeat(source.slice(node.start, node.end).split("\n").length - 1);
}

/** Collects the names that a pattern binds. */
function bound(pattern, names) {
  switch (pattern?.type) {
    case "Identifier":
      names.add(pattern.name);
      break;
    case "ObjectPattern":
      for (const one of pattern.properties) bound(one.type === "RestElement" ? one.argument : one.value, names);
      break;
    case "ArrayPattern":
      for (const one of pattern.elements) bound(one, names);
      break;
    case "RestElement":
      bound(pattern.argument, names);
      break;
    case "AssignmentPattern":
      bound(pattern.left, names);
      break;
  }
}

/** Changes to a text, by position in the original. */
class Edits {
  constructor(source) {
    this.source = source;
    this.inserts = new Map();
    this.replaced = [];
  }

  /** Inserts before the node that starts at `at`; a later insertion is further outside, as is `outer`. */
  before(at, value, outer = false) {
    this.#at(at).before.push({ value, outer });
  }

  /** Inserts after the node that ends at `at`. */
  after(at, value, outer = false) {
    this.#at(at).after.push({ value, outer });
  }

  replace(start, end, value) {
    this.replaced.push({ start, end, value });
  }

  blank(start, end) {
    this.replaced.push({ start, end, value: this.source.slice(start, end).replace(/[^\r\n\u2028\u2029]/g, " "), all: true });
  }

  #at(at) {
    let found = this.inserts.get(at);
    if (!found) this.inserts.set(at, (found = { before: [], after: [] }));
    return found;
  }

  /** Returns the changed text, with everything except the given nodes blanked. */
  only(nodes) {
    const whole = this.#pieces(nodes);
    let made = "";
    for (const { start, value } of whole) {
      const kept = nodes.some((node) => start >= node.start && start < node.end);
      made += kept ? value : value.replace(/[^\r\n\u2028\u2029]/g, " ");
    }
    return made;
  }

  /** Returns the changed text, and the moved columns: by line, pairs of the new and the original column. */
  apply() {
    const columns = new Map();
    let code = "";
    let line = 1;
    let lineStart = 0;
    for (const { start, value, kept } of this.#pieces()) {
      const column = code.length - lineStart;
      const was = start - (this.source.lastIndexOf("\n", start - 1) + 1);
      if (kept && (column !== was || columns.has(line))) {
        if (!columns.has(line)) columns.set(line, []);
        columns.get(line).push([column, was]);
      }
      const before = code.length;
      code += value;
      for (let at = value.indexOf("\n"); at >= 0; at = value.indexOf("\n", at + 1)) {
        line += 1;
        lineStart = before + at + 1;
      }
    }
    return { code, columns };
  }

  #pieces(nodes = []) {
    const cuts = new Set([0, this.source.length]);
    for (const node of nodes) cuts.add(node.start).add(node.end);
    for (const at of this.inserts.keys()) cuts.add(at);
    for (const one of this.replaced) cuts.add(one.start).add(one.end);
    const sorted = [...cuts].sort((a, b) => a - b);
    const replaced = [...this.replaced].sort((a, b) => Number(b.all ?? false) - Number(a.all ?? false) || a.start - b.start);
    const byStart = new Map();
    for (const one of replaced) if (one.start !== one.end && !byStart.has(one.start)) byStart.set(one.start, one);
    const pieces = [];
    let hidden = 0;
    for (let index = 0; index < sorted.length; index += 1) {
      const at = sorted[index];
      const next = sorted[index + 1] ?? at;
      const insert = this.inserts.get(at);
      const order = (list) => [...list.filter((one) => !one.outer), ...list.filter((one) => one.outer)];
      if (insert && at > hidden - 1) {
        // Insertions at an end belong to the previous piece.
        if (at >= hidden) {
          const ends = order(insert.after).map((one) => one.value).join("");
          if (ends) pieces.push({ start: at - 1, value: ends });
          const begins = order(insert.before).reverse().map((one) => one.value).join("");
          if (begins) pieces.push({ start: at, value: begins });
        }
      }
      if (at < hidden) continue;
      const whole = byStart.get(at);
      if (whole) {
        pieces.push({ start: at, value: whole.value });
        hidden = whole.end;
        continue;
      }
      if (next > at) pieces.push({ start: at, value: this.source.slice(at, next), kept: true });
    }
    return pieces;
  }
}
