// Node 18 before 18.18 has no Symbol.asyncDispose, and compilers look for it there.
const symbols: { asyncDispose?: symbol } = Symbol;
if (symbols.asyncDispose === undefined) {
  Object.defineProperty(Symbol, "asyncDispose", { value: Symbol.for("Symbol.asyncDispose") });
}

export {};
