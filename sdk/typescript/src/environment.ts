/** Returns a variable of the environment, or undefined if it is empty or not set. */
export function environment(name: string): string | undefined {
  // Deno needs a permission; without it the variable counts as not set.
  try {
    const value = typeof process === "undefined" ? undefined : process.env[name];
    return value === "" ? undefined : value;
  } catch {
    return undefined;
  }
}
