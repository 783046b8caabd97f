// Tables on narrow screens: each row is a block, in which each cell names its column.

export function columns(table: HTMLTableElement) {
  const name = () => {
    const names = [...(table.tHead?.rows[0]?.cells ?? [])].map((cell) => cell.textContent ?? "");
    for (const row of table.tBodies[0]?.rows ?? []) {
      for (const [at, cell] of [...row.cells].entries()) {
        if (cell.dataset.column !== names[at]) cell.dataset.column = names[at] ?? "";
      }
    }
  };
  name();
  const observer = new MutationObserver(name);
  observer.observe(table, { childList: true, subtree: true });
  return { destroy: () => observer.disconnect() };
}
