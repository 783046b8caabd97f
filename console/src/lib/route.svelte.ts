// The screen that the address names: `#/sandbox/ID`.

const parse = () => location.hash.replace(/^#\/?/, "").split("/").map((part) => decode(part));

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}

export const route = $state<{ parts: string[] }>({ parts: parse() });

addEventListener("hashchange", () => {
  route.parts = parse();
});

export function go(...parts: string[]) {
  location.hash = `/${parts.map(encodeURIComponent).join("/")}`;
}
