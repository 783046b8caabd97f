/** One page of a list. */
export interface Page<Item> {
  items: Item[];
  /** Where the next page begins; undefined if this is the last one. */
  nextToken: string | undefined;
}

/**
 * A list that comes page by page: `for await (const item of list)`, or `nextItems()` while `hasNext`. Both go on where the other stopped.
 */
export class Paginator<Item> implements AsyncIterable<Item> {
  readonly #fetchPage: (token: string | undefined) => Promise<Page<Item>>;
  #nextToken: string | undefined;
  #hasNext = true;

  /** @internal */
  constructor(fetchPage: (token: string | undefined) => Promise<Page<Item>>, token?: string) {
    this.#fetchPage = fetchPage;
    this.#nextToken = token;
  }

  /** Whether there may be more. */
  get hasNext(): boolean {
    return this.#hasNext;
  }

  /** Where the next page begins, to go on later; undefined at the beginning and at the end. */
  get nextToken(): string | undefined {
    return this.#nextToken;
  }

  /** The next page; empty at the end. */
  async nextItems(): Promise<Item[]> {
    if (!this.#hasNext) {
      return [];
    }
    const page = await this.#fetchPage(this.#nextToken);
    this.#nextToken = page.nextToken;
    this.#hasNext = page.nextToken !== undefined;
    return page.items;
  }

  /** All that is left. */
  async all(): Promise<Item[]> {
    const items: Item[] = [];
    while (this.#hasNext) {
      items.push(...(await this.nextItems()));
    }
    return items;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Item, void, undefined> {
    while (this.#hasNext) {
      yield* await this.nextItems();
    }
  }
}
