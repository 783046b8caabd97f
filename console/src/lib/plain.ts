// Text from outside, as it may be shown. All of it is shown as text, never as markup; this is about characters that mislead.

/**
 * Characters that reorder text, hide it, or show nothing where other text is expected, by their properties in Unicode: formats, what is ignored
 * where a font lacks it (fillers, joiners, selectors), separators of lines. The blank of braille has none of these.
 */
export const HIDDEN = /[\p{Cf}\p{Default_Ignorable_Code_Point}\p{Zl}\p{Zp}\u2800]/gu;
// The selector that asks for the picture of a character, where there is one.
const OF_PICTURE = /(?<=\p{Extended_Pictographic})\ufe0f/gu;
// eslint-disable-next-line no-control-regex
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;
// Escape sequences: CSI, OSC and other strings, and two-byte ones.
// eslint-disable-next-line no-control-regex
const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\u0007\u001b]{0,4096}(?:\u0007|\u001b\\)|[@-Z\\-_])/g;

/** A character by its number. */
export const named = (character: string) =>
  `⟨U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}⟩`;

/** Text of several lines: escape sequences are removed, and characters that mislead are named. */
export function visible(text: string): string {
  return text.replace(/\r\n?/g, "\n").replace(ESCAPES, "").replace(OF_PICTURE, "").replace(CONTROL, named).replace(HIDDEN, named);
}

/** Text of one line in a list, of at most `max` characters. What consists of hidden characters alone is named. */
export function line(text: string | null | undefined, max = 160): string {
  const short = (text ?? "").slice(0, 4 * max).replace(ESCAPES, "").replace(/\s+/g, " ");
  const plain = short.replace(CONTROL, "").replace(HIDDEN, "").trim();
  const shown = plain || exact((text ?? "").slice(0, max)).replace(/\s/g, named);
  return shown.length > max ? `${shown.slice(0, max)}…` : shown;
}

/** All of a text on one line: nothing is removed, and line ends and characters that mislead are named. */
export function exact(text: string | null | undefined): string {
  return (text ?? "").replace(/\t/g, named).replace(/[\r\n]/g, named).replace(CONTROL, named).replace(HIDDEN, named);
}

/** A line of code: as exact, with its tabs. */
export const coded = (text: string): string => text.split("\t").map(exact).join("\t");

/** The beginning and the end of a text, with the number of characters that are left out between them. */
export function bounded(text: string, max: number): { head: string; left: number; tail: string } {
  if (text.length <= max) return { head: text, left: 0, tail: "" };
  const half = Math.floor(max / 2);
  return { head: text.slice(0, half), left: text.length - 2 * half, tail: text.slice(-half) };
}

/** Bytes in base64 or text, as the interface has them, as text. */
export function decoded(content: { data: string; encoding: string } | null | undefined): string {
  if (!content) return "";
  if (content.encoding !== "base64") return content.data;
  try {
    const bytes = Uint8Array.from(atob(content.data), (character) => character.charCodeAt(0));
    return new TextDecoder().decode(bytes);
  } catch {
    return "";
  }
}
