import { ofRequest, REQUEST_OPTIONS, type RequestOptions } from "./config.js";
import { known, names } from "./options.js";
import type { Transport } from "./transport.js";

/** Options of a list in pages. */
export interface PageOptions extends RequestOptions {
  /** Page size, from 1 to 100. */
  limit?: number;
  /** Where to begin: `nextToken` of an earlier list. */
  nextToken?: string;
}

const PAGE_OPTIONS = names<Omit<PageOptions, keyof RequestOptions>>({ limit: true, nextToken: true });

/** One page of a list. */
export interface Page<Item> {
  /** Its items. */
  items: Item[];
  /** Where the next page begins; undefined if this is the last one. */
  nextToken: string | undefined;
}

/**
 * A paginated list: `for await (const item of list)`, or `nextItems()` while `hasNext`. Both continue where the other stopped.
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

  /** Whether there may be another page. */
  get hasNext(): boolean {
    return this.#hasNext;
  }

  /** Start of the next page, to continue later; undefined at the beginning and at the end. */
  get nextToken(): string | undefined {
    return this.#nextToken;
  }

  /** Returns the next page; empty at the end. */
  async nextItems(): Promise<Item[]> {
    if (!this.#hasNext) {
      return [];
    }
    const page = await this.#fetchPage(this.#nextToken);
    this.#nextToken = page.nextToken;
    this.#hasNext = page.nextToken !== undefined;
    return page.items;
  }

  /** Yields the remaining items. */
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

/** Lists what is at `/v1/NAME`, as a paginated list. */
export function listPages<Wire, Item>(transport: Transport, name: string, convert: (wire: Wire) => Item, options: PageOptions): Paginator<Item> {
  const { limit, nextToken } = known(`${name}.list`, options, PAGE_OPTIONS, REQUEST_OPTIONS);
  return new Paginator(async (cursor) => {
    const page = await transport.json<{ next_cursor?: string | null; [list: string]: unknown }>({ method: "GET", path: `/v1/${name}`, query: { limit, cursor }, options: ofRequest(options) });
    return { items: (page[name] as Wire[]).map(convert), nextToken: page.next_cursor ?? undefined };
  }, nextToken);
}
