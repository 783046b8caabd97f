// Node 18 before 18.18 has no Symbol.asyncDispose, which compiled code uses.
const symbols: { asyncDispose?: symbol } = Symbol;
if (symbols.asyncDispose === undefined) {
  Object.defineProperty(Symbol, "asyncDispose", { value: Symbol.for("Symbol.asyncDispose") });
}

export {};
