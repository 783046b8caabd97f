// The difference of two texts, by lines.

export type Row = { kind: "same" | "added" | "removed" | "left"; text: string; old?: number; new?: number; /** Place of what differs in the line. */ from?: number; to?: number };

/** Maximum number of line pairs that are compared; of longer texts, all between the first and the last difference is replaced. */
const MAX_PAIRS = 4_000_000;

/** Lines around a difference that are shown. */
const AROUND = 3;

/** The lines of both texts in order: those that were removed before those that were added. */
export function difference(before: string, after: string): Row[] {
  const [old, now] = [before.split("\n"), after.split("\n")];
  let head = 0;
  while (head < old.length && head < now.length && old[head] === now[head]) head += 1;
  let tail = 0;
  while (tail < old.length - head && tail < now.length - head && old[old.length - 1 - tail] === now[now.length - 1 - tail]) tail += 1;
  const rows: Row[] = [];
  for (let at = 0; at < head; at += 1) rows.push({ kind: "same", text: old[at] ?? "", old: at + 1, new: at + 1 });
  rows.push(...middle(old.slice(head, old.length - tail), now.slice(head, now.length - tail), head));
  for (let at = tail; at > 0; at -= 1) {
    rows.push({ kind: "same", text: old[old.length - at] ?? "", old: old.length - at + 1, new: now.length - at + 1 });
  }
  return mark(rows);
}

/** Longest common subsequence, from the end, so that it is read from the beginning. */
function middle(old: string[], now: string[], offset: number): Row[] {
  const removed = (at: number): Row => ({ kind: "removed", text: old[at] ?? "", old: offset + at + 1 });
  const added = (at: number): Row => ({ kind: "added", text: now[at] ?? "", new: offset + at + 1 });
  if (old.length * now.length > MAX_PAIRS) return [...old.map((_, at) => removed(at)), ...now.map((_, at) => added(at))];
  const width = now.length + 1;
  const length = new Uint32Array((old.length + 1) * width);
  const of = (a: number, b: number) => length[a * width + b] ?? 0;
  for (let a = old.length - 1; a >= 0; a -= 1) {
    for (let b = now.length - 1; b >= 0; b -= 1) {
      length[a * width + b] = old[a] === now[b] ? of(a + 1, b + 1) + 1 : Math.max(of(a + 1, b), of(a, b + 1));
    }
  }
  const rows: Row[] = [];
  let [a, b] = [0, 0];
  while (a < old.length || b < now.length) {
    if (a < old.length && b < now.length && old[a] === now[b]) {
      rows.push({ kind: "same", text: old[a] ?? "", old: offset + a + 1, new: offset + b + 1 });
      a += 1;
      b += 1;
    } else if (a < old.length && (b >= now.length || of(a + 1, b) >= of(a, b + 1))) {
      rows.push(removed(a));
      a += 1;
    } else {
      rows.push(added(b));
      b += 1;
    }
  }
  return rows;
}

/** Marks what differs within lines that were changed: a run of removed ones, and as many added ones after it. */
function mark(rows: Row[]): Row[] {
  for (let at = 0; at < rows.length; ) {
    const run = (kind: Row["kind"], from: number) => {
      let end = from;
      while (rows[end]?.kind === kind) end += 1;
      return end - from;
    };
    const gone = run("removed", at);
    const come = run("added", at + gone);
    if (gone > 0 && gone === come) {
      for (let pair = 0; pair < gone; pair += 1) markPair(rows[at + pair] as Row, rows[at + gone + pair] as Row);
    }
    at += Math.max(1, gone + come);
  }
  return rows;
}

function markPair(old: Row, now: Row) {
  const most = Math.min(old.text.length, now.text.length);
  let head = 0;
  while (head < most && old.text[head] === now.text[head]) head += 1;
  let tail = 0;
  while (tail < most - head && old.text[old.text.length - 1 - tail] === now.text[now.text.length - 1 - tail]) tail += 1;
  // Whole words, where a part of one differs.
  const isWord = (text: string, at: number) => /\w/.test(text[at] ?? "");
  if (isWord(old.text, head) || isWord(now.text, head)) while (head > 0 && isWord(old.text, head - 1)) head -= 1;
  const ends = [old, now].some((row) => isWord(row.text, row.text.length - tail - 1));
  if (ends) while (tail > 0 && isWord(old.text, old.text.length - tail)) tail -= 1;
  // Of lines that have little in common, all differs.
  if (head + tail < most / 3) return;
  for (const row of [old, now]) Object.assign(row, { from: head, to: row.text.length - tail });
}

/** The differences and the lines around them; a row `left` says how many lines are left out. */
export function around(rows: Row[]): Row[] {
  const near = rows.map((_, at) => rows.slice(Math.max(0, at - AROUND), at + AROUND + 1).some((row) => row.kind !== "same"));
  const shown: Row[] = [];
  let left = 0;
  const close = () => {
    if (left > 0) shown.push({ kind: "left", text: String(left) });
    left = 0;
  };
  rows.forEach((row, at) => {
    if (near[at]) {
      close();
      shown.push(row);
    } else left += 1;
  });
  close();
  return shown;
}
