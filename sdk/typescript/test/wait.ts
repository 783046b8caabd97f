/** Waits until a condition holds, and fails on timeout. */
export async function until(what: string, holds: () => boolean | Promise<boolean>, deadlineMs = 10_000): Promise<void> {
  const end = Date.now() + deadlineMs;
  while (!(await holds())) {
    if (Date.now() > end) {
      throw new Error(`not in ${deadlineMs} ms: ${what}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** All bytes of a stream. */
export async function collect(stream: ReadableStream<Uint8Array>): Promise<Uint8Array> {
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
