// The screen that the address names: `#/sandbox/ID`. A link that signs in, `#link=…`, names none.

const LINK = "#link=";
const parse = () => (location.hash.startsWith(LINK) ? "" : location.hash).replace(/^#\/?/, "").split("/").map((part) => decode(part));

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}

export const route = $state<{ parts: string[] }>({ parts: parse() });

addEventListener("hashchange", () => {
  if (!location.hash.startsWith(LINK)) route.parts = parse();
});

const addressOf = (parts: string[]) => `/${parts.map(encodeURIComponent).join("/")}`;

export function go(...parts: string[]) {
  location.hash = addressOf(parts);
}

/** Takes a link that signs in out of the address, which is that of the screen again. Null if the address has none. */
export function takeLink(): string | null {
  if (!location.hash.startsWith(LINK)) return null;
  const link = location.hash.slice(LINK.length);
  history.replaceState(null, "", location.pathname + (route.parts[0] ? `#${addressOf(route.parts)}` : ""));
  return link;
}
