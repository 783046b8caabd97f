// What the kernel's own frames need of the globals, which code may replace in the realm that it shares with the kernel.

const { parse, stringify } = globalThis.JSON;

/** `JSON` as it was when the kernel started. */
export const JSON = Object.freeze({ parse, stringify });
