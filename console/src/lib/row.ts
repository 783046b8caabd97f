// Rows of links that are wider than the page.

import { tick } from "svelte";

/** Scrolls a row to its current link, whenever that is another one. */
export function inView(row: HTMLElement, current: string) {
  const show = (_current: string) => {
    void tick().then(() => {
      const link = row.querySelector<HTMLElement>("[aria-current]");
      if (!link) return;
      const before = link.getBoundingClientRect().left - row.getBoundingClientRect().left;
      row.scrollLeft += before - (row.clientWidth - link.offsetWidth) / 2;
    });
  };
  show(current);
  return { update: show };
}
