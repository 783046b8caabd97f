// What a reload of this tab keeps of the run screen: code and settings, of the key that is signed in. Results are not kept.

import type { Network } from "./network";

const NAME = "belljar.run";

export type Kept = {
  key: string;
  cells: { code: string; language: string }[];
  /** The chosen sandbox, and the one that the screen has made. */
  chosen: string;
  made: string;
  files: string[];
  settings: { memory: string; cpus: string; timeout: string; network: Network };
};

let isOver = false;

export function keep(kept: Kept) {
  if (isOver) return;
  try {
    sessionStorage.setItem(NAME, JSON.stringify(kept));
  } catch {
    // There is no room for it: then it is not kept.
    forget();
  }
}

/** What was kept for this key; what another one has left is removed. */
export function kept(key: string | undefined): Kept | null {
  try {
    const found = JSON.parse(sessionStorage.getItem(NAME) ?? "null") as Kept | null;
    if (found && found.key === key && found.cells.length > 0) return found;
  } catch {
    // Not of this version.
  }
  forget();
  return null;
}

const forget = () => sessionStorage.removeItem(NAME);

/** Removes what is kept. From now on this page keeps nothing: what is typed is stored a moment later. */
export function forgetForGood() {
  isOver = true;
  forget();
}
