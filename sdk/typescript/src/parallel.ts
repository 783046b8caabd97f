/** Runs a function for each item, at most `most` concurrently, and returns the results in order. Starts nothing after the first error. */
export async function inParallel<Item, Result>(items: readonly Item[], most: number, work: (item: Item) => Promise<Result>): Promise<Result[]> {
  const results: Result[] = new Array(items.length);
  const queue = items.entries();
  let failed = false;
  const worker = async (): Promise<void> => {
    for (let next = queue.next(); !failed && !next.done; next = queue.next()) {
      const [index, item] = next.value;
      try {
        results[index] = await work(item);
      } catch (error) {
        failed = true;
        throw error;
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(most, items.length) }, worker));
  return results;
}
