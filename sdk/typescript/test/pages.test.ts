import assert from "node:assert/strict";
import { test } from "node:test";
import { Belljar, type Paginator } from "../src/index.js";
import { Double, json, wireSandbox } from "./double.js";

const LISTS = {
  sandboxes: (client: Belljar, options: object): Paginator<{ name: string | null }> => client.sandboxes.list(options),
  keys: (client: Belljar, options: object): Paginator<{ name: string | null }> => client.keys.list(options),
  templates: (client: Belljar, options: object): Paginator<{ name: string | null }> => client.templates.list(options),
  secrets: (client: Belljar, options: object): Paginator<{ name: string | null }> => client.secrets.list(options),
};

for (const [name, list] of Object.entries(LISTS)) {
  test(`${name} in pages`, async () => {
    await using double = await Double.start();
    const page = (number: number, next_cursor: string | null) => json({ [name]: ["a", "b"].map((letter) => wireSandbox({ name: `${number}${letter}` })), next_cursor });
    double.on("GET", `/v1/${name}`, page(0, "c1"), page(1, "c2"), page(2, null));
    const client = new Belljar({ apiUrl: double.url, apiKey: "bj_test" });
    const names = (items: { name: string | null }[]): (string | null)[] => items.map((item) => item.name);
    const first = list(client, { limit: 2 });
    assert.deepEqual([first.hasNext, first.nextToken], [true, undefined]);
    assert.deepEqual(names(await first.nextItems()), ["0a", "0b"]);
    // The list is continued by another program, from the page where this one stopped.
    const rest = list(client, { limit: 2, nextToken: first.nextToken });
    const found = [];
    for await (const item of rest) {
      found.push(item);
    }
    assert.deepEqual(names(found), ["1a", "1b", "2a", "2b"]);
    assert.deepEqual([rest.hasNext, rest.nextToken, await rest.nextItems(), await rest.all()], [false, undefined, [], []]);
    assert.deepEqual(double.seen.map((request) => request.url.split("?")[1]), ["limit=2", "limit=2&cursor=c1", "limit=2&cursor=c2"]);
  });
}
