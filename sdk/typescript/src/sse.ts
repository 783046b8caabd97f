// Server-sent events, as specified in the WHATWG HTML standard.

/** One event. */
export interface ServerSentEvent {
  /** Its name; `message` if it has none. */
  event: string;
  data: string;
}

/** Maximum number of characters of one event. The server's own limit on kept output is far lower. */
const MAX_EVENT_CHARACTERS = 256 * 1024 * 1024;

/** Parses events from text that may be split anywhere. */
export class EventParser {
  /** Pieces of the incomplete line. Joined once, so that a long line causes no quadratic copying. */
  #line: string[] = [];
  #characters = 0;
  #endedWithCarriageReturn = false;
  #atStart = true;
  #name = "";
  #data: string[] = [];

  /** Returns the events that are complete with this text. */
  push(text: string): ServerSentEvent[] {
    const events: ServerSentEvent[] = [];
    let position = 0;
    if (this.#atStart && text.length > 0) {
      this.#atStart = false;
      if (text.charCodeAt(0) === 0xfeff) {
        position = 1;
      }
    }
    if (this.#endedWithCarriageReturn && position < text.length) {
      this.#endedWithCarriageReturn = false;
      if (text[position] === "\n") {
        position += 1;
      }
    }
    let carriageReturn = text.indexOf("\r", position);
    let lineFeed = text.indexOf("\n", position);
    while (carriageReturn >= 0 || lineFeed >= 0) {
      const returnsFirst = carriageReturn >= 0 && (lineFeed < 0 || carriageReturn < lineFeed);
      const end = returnsFirst ? carriageReturn : lineFeed;
      this.#keep(text.slice(position, end));
      const line = this.#line.length === 1 ? (this.#line[0] ?? "") : this.#line.join("");
      this.#line = [];
      const event = this.#endLine(line);
      if (event) {
        events.push(event);
      }
      position = end + (returnsFirst && lineFeed === end + 1 ? 2 : 1);
      // The "\n" may be in the next piece.
      this.#endedWithCarriageReturn = returnsFirst && position === text.length && lineFeed !== end + 1;
      // Each is searched again only after it was passed, so that no text is searched twice.
      carriageReturn = carriageReturn >= 0 && carriageReturn < position ? text.indexOf("\r", position) : carriageReturn;
      lineFeed = lineFeed >= 0 && lineFeed < position ? text.indexOf("\n", position) : lineFeed;
    }
    this.#keep(text.slice(position));
    return events;
  }

  #keep(text: string): void {
    if (text !== "") {
      this.#characters += text.length;
      if (this.#characters > MAX_EVENT_CHARACTERS) {
        throw new RangeError(`an event of the server has more than ${MAX_EVENT_CHARACTERS} characters`);
      }
      this.#line.push(text);
    }
  }

  #endLine(line: string): ServerSentEvent | undefined {
    if (line === "") {
      const event = this.#data.length > 0 ? { event: this.#name || "message", data: this.#data.join("\n") } : undefined;
      this.#name = "";
      this.#data = [];
      this.#characters = 0;
      return event;
    }
    const colon = line.indexOf(":");
    if (colon === 0) {
      this.#characters -= line.length;
      return undefined;
    }
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) {
      value = value.slice(1);
    }
    if (field === "event") {
      this.#name = value;
    } else if (field === "data") {
      this.#data.push(value);
    }
    return undefined;
  }
}
