import { concatenate, text, toBase64, utf8 } from "./bytes.js";
import { REQUEST_OPTIONS, type RequestOptions } from "./config.js";
import { fileInfo, modeText } from "./convert.js";
import { FileNotFoundError, InvalidArgumentError } from "./errors.js";
import { download, type TransferOptions, upload } from "./local-files.js";
import { known, names, wrongType } from "./options.js";
import { inParallel } from "./parallel.js";
import { type ApiRequest, type Query, route, type Transport } from "./transport.js";
import type { FileInfo, FileMode, SandboxPath, SearchMatch, Span } from "./types.js";
import { type OnWatchEvent, startWatch, WATCH_OPTIONS, type WatchHandle, type WatchOptions } from "./watch.js";
import type { WireFile } from "./wire.js";

/** Data that can be written to a file. */
export type FileData = string | Uint8Array | ArrayBuffer | Blob | ReadableStream<Uint8Array>;

/** Options for reading. */
export interface ReadOptions extends RequestOptions {
  /** First byte, from 0. */
  start?: number;
  /** The byte after the last one; default: the end of the file. */
  end?: number;
}

/** Options for writing. */
export interface WriteOptions extends RequestOptions {
  /** Permission bits of a new file; default: `0o644`. */
  mode?: FileMode;
  /** Appends to the file. */
  append?: boolean;
  /** Fails if the file exists. */
  exclusive?: boolean;
  /** Whether to create missing directories; default: yes. */
  makeParents?: boolean;
  /** Writes in place from this byte on and keeps the rest. The data's length has to be known: no stream. */
  offset?: number;
}

/** One of several files to write. */
export interface WriteEntry {
  /** The path. */
  path: SandboxPath;
  /** The data. */
  data: FileData;
  /** Permission bits. */
  mode?: FileMode;
}

/** Options for listing. */
export interface ListOptions extends RequestOptions {
  /** Levels below the directory: 1 means its own entries. Default: 1, maximum: 64. */
  depth?: number;
}

/** Options for searching. */
export interface SearchOptions extends RequestOptions {
  /** The directory to search; default: the home directory. */
  path?: string;
  /** A pattern for names, such as `*.py`. */
  name?: string;
  /** Text that a line of the file has to contain. */
  content?: string;
  /** Whether `content` is a regular expression. */
  regex?: boolean;
  /** Whether case is ignored. */
  ignoreCase?: boolean;
  /** Maximum number of matches. */
  limit?: number;
}

/** Result of a search. */
export interface SearchResult {
  /** The matches. */
  matches: SearchMatch[];
  /** Whether there are more matches. */
  truncated: boolean;
}

/** Formats of an archive. */
export type ArchiveFormat = "tar" | "tar.gz";

/** Options for unpacking an archive. */
export interface ExtractOptions extends RequestOptions {
  /** Its format; default: detected by the server. */
  format?: "auto" | "tar" | "tar.gz" | "zip";
  /** Leading components of each path to omit; default: 0. */
  strip?: number;
}

/** A URL for one file that works without a key. */
export interface SignedUrl {
  /** The URL. */
  url: string;
  /** Time of expiry. */
  expiresAt: Date;
}

const READ_OPTIONS = names<Omit<ReadOptions & { format?: string }, keyof RequestOptions>>({ start: true, end: true, format: true });
const WRITE_OPTIONS = names<Omit<WriteOptions, keyof RequestOptions>>({ mode: true, append: true, exclusive: true, makeParents: true, offset: true });
const ENTRY_NAMES = names<WriteEntry>({ path: true, data: true, mode: true });
const SEARCH_OPTIONS = names<Omit<SearchOptions, keyof RequestOptions>>({ path: true, name: true, content: true, regex: true, ignoreCase: true, limit: true });

/** Maximum number of concurrent writes when several files are written. */
const PARALLEL_WRITES = 6;

/** Files of a volume. Paths start at its root; `..` is refused. */
export class VolumeFiles {
  /** @internal */
  protected readonly transport: Transport;
  readonly #place: string;

  /** @internal */
  constructor(transport: Transport, place: string) {
    this.transport = transport;
    this.#place = place;
  }

  /** Reads a file as text. */
  read(path: SandboxPath, options?: ReadOptions & { format?: "text" }): Promise<string>;
  /** Reads a file's bytes. */
  read(path: SandboxPath, options: ReadOptions & { format: "bytes" }): Promise<Uint8Array>;
  /** Reads a file into a Blob. */
  read(path: SandboxPath, options: ReadOptions & { format: "blob" }): Promise<Blob>;
  /** Reads a file as a stream with back pressure. */
  read(path: SandboxPath, options: ReadOptions & { format: "stream" }): Promise<ReadableStream<Uint8Array>>;
  async read(path: SandboxPath, options: ReadOptions & { format?: "text" | "bytes" | "blob" | "stream" } = {}): Promise<string | Uint8Array | Blob | ReadableStream<Uint8Array>> {
    const { start, end, format, ...request } = known("read", options, READ_OPTIONS, REQUEST_OPTIONS);
    const range = rangeHeader(start, end);
    if (range === "empty") {
      await this.getInfo(path, request);
    }
    const get: ApiRequest = { method: "GET", path: this.route("/content"), query: pathQuery(path), headers: { Accept: "*/*", ...(range === undefined ? {} : { Range: range }) }, options: request };
    if (format === "stream") {
      return range === "empty" ? new Blob([]).stream() : (await this.transport.stream(get)).body;
    }
    const bytes = range === "empty" ? new Uint8Array() : await this.transport.bytes(get);
    switch (format) {
      case "bytes":
        return bytes;
      case "blob":
        return new Blob([bytes as BlobPart]);
      default:
        return text(bytes);
    }
  }

  /** Writes a file. An existing file is replaced as a whole, or, if the call fails, stays unchanged. */
  write(path: SandboxPath, data: FileData, options?: WriteOptions): Promise<FileInfo>;
  /** Writes several files, some concurrently. If one fails, others may have been written. */
  write(files: readonly WriteEntry[], options?: WriteOptions): Promise<FileInfo[]>;
  async write(first: SandboxPath | readonly WriteEntry[], second?: FileData | WriteOptions, third?: WriteOptions): Promise<FileInfo | FileInfo[]> {
    if (typeof first === "string" || first instanceof Uint8Array) {
      return this.#writeOne(first, second as FileData, third ?? {});
    }
    if (!Array.isArray(first)) {
      throw wrongType("path", first, "a path, or a list of files such as { path, data }");
    }
    const options = (second as WriteOptions | undefined) ?? {};
    const entries = (first as readonly WriteEntry[]).map((entry) => known("write", entry, ENTRY_NAMES));
    return inParallel(entries, PARALLEL_WRITES, (entry) => this.#writeOne(entry.path, entry.data, { ...options, mode: entry.mode ?? options.mode }));
  }

  async #writeOne(path: SandboxPath, data: FileData, options: WriteOptions): Promise<FileInfo> {
    const { mode, append, exclusive, makeParents, offset, ...request } = known("write", options, WRITE_OPTIONS, REQUEST_OPTIONS);
    const body = toBody(data);
    const headers: Record<string, string> = {};
    if (offset !== undefined) {
      if (body instanceof ReadableStream) {
        throw new InvalidArgumentError("a stream cannot be written at an offset, because its length is unknown; pass bytes or a Blob", { field: "offset" });
      }
      const length = body instanceof Blob ? body.size : body.length;
      if (length === 0) {
        return this.getInfo(path, request);
      }
      headers["Content-Range"] = `bytes ${offset}-${offset + length - 1}/*`;
    }
    const written = await this.transport.json<WireFile>({
      method: "PUT",
      path: this.route("/content"),
      query: { ...pathQuery(path), mode: modeText(mode), append, exclusive, make_parents: makeParents ?? true },
      body,
      headers,
      options: request,
    });
    return fileInfo(written);
  }

  /** Lists all entries of a directory, and of its subdirectories down to `depth`, in the order of their paths. */
  async list(path: SandboxPath = ".", options: ListOptions = {}): Promise<FileInfo[]> {
    const entries: FileInfo[] = [];
    for await (const entry of this.iterate(path, options)) {
      entries.push(entry);
    }
    return entries;
  }

  /** Lists one page at a time, for directories with very many entries. */
  async *iterate(path: SandboxPath = ".", options: ListOptions & { pageSize?: number } = {}): AsyncGenerator<FileInfo, void, undefined> {
    const { depth, pageSize, ...request } = options;
    let cursor: string | undefined;
    do {
      const page: { entries: WireFile[]; next_cursor?: string | null } = await this.transport.json({
        method: "GET",
        path: this.route(""),
        query: { ...pathQuery(path), depth, limit: pageSize, cursor },
        options: request,
      });
      yield* page.entries.map((entry) => below(path, fileInfo(entry)));
      cursor = page.next_cursor ?? undefined;
    } while (cursor !== undefined);
  }

  /** Reports whether a path exists. A dangling link counts. */
  async exists(path: SandboxPath, options?: RequestOptions): Promise<boolean> {
    return (await this.#infoIfThere(path, { ...options, follow: false })) !== undefined;
  }

  /** Returns information about a path, with `follow: false` about a link itself. */
  async getInfo(path: SandboxPath, options: RequestOptions & { follow?: boolean } = {}): Promise<FileInfo> {
    const { follow, ...request } = options;
    return fileInfo(await this.transport.json({ method: "GET", path: this.route("/stat"), query: { ...pathQuery(path), follow: follow ?? true }, options: request }));
  }

  /** Creates a directory and, unless `parents` is false, its parents. Returns false if it already exists. */
  async makeDir(path: string, options: RequestOptions & { parents?: boolean; mode?: FileMode } = {}): Promise<boolean> {
    const { parents, mode, ...request } = options;
    if ((await this.#infoIfThere(path, request))?.kind === "directory") {
      return false;
    }
    await this.transport.done({ method: "POST", path: this.route("/mkdir"), json: { path, parents: parents ?? true, mode: modeText(mode) }, options: request });
    return true;
  }

  /** Removes a file, or a directory with its contents; with `recursive: false` a directory only if it is empty. */
  async remove(path: SandboxPath, options: RequestOptions & { recursive?: boolean } = {}): Promise<void> {
    const { recursive, ...request } = options;
    await this.transport.delete(this.route(""), { ...pathQuery(path), recursive: recursive ?? true }, request);
  }

  /** Moves a file or directory. Fails if the new path exists, unless `overwrite` is true. */
  async rename(from: string, to: string, options: RequestOptions & { overwrite?: boolean } = {}): Promise<FileInfo> {
    const { overwrite, ...request } = options;
    return fileInfo(await this.transport.json({ method: "POST", path: this.route("/move"), json: { from, to, overwrite: overwrite ?? false }, options: request }));
  }

  /** Sets permission bits. */
  async chmod(path: string, mode: FileMode, options?: RequestOptions): Promise<FileInfo> {
    return fileInfo(await this.transport.json({ method: "POST", path: this.route("/chmod"), json: { path, mode: modeText(mode) }, options }));
  }

  /** Uploads a local file or directory into the sandbox. Keeps permission bits; omits links and special files. */
  async upload(localPath: string, path: string, options: TransferOptions = {}): Promise<FileInfo[]> {
    return upload(this, localPath, path, options);
  }

  /**
   * Downloads a file or directory of the sandbox. Links and special files are omitted, and nothing is written
   * outside `localPath`, whatever the names inside are. Missing local directories are created. Returns the paths written.
   */
  async download(path: string, localPath: string, options: TransferOptions = {}): Promise<string[]> {
    return download(this, path, localPath, options);
  }

  async #infoIfThere(path: SandboxPath, options: RequestOptions & { follow?: boolean }): Promise<FileInfo | undefined> {
    try {
      return await this.getInfo(path, options);
    } catch (error) {
      if (error instanceof FileNotFoundError) {
        return undefined;
      }
      throw error;
    }
  }

  /** @internal */
  protected route(rest: string): string {
    return `${this.#place}/files${rest}`;
  }
}

/** Files in a sandbox. Paths are absolute, or relative to the home directory. */
export class Files extends VolumeFiles {
  /** @internal */
  constructor(transport: Transport, sandboxId: string) {
    super(transport, route`/v1/sandboxes/${sandboxId}`);
  }

  /** Searches files by name, by content, or both. */
  async search(options: SearchOptions): Promise<SearchResult> {
    const { path, name, content, regex, ignoreCase, limit, ...request } = known("search", options, SEARCH_OPTIONS, REQUEST_OPTIONS);
    const found = await this.transport.longWork<{ matches: { path: string; line_number?: number | null; line?: string | null; column?: number | null }[]; truncated: boolean }>({
      method: "POST",
      path: this.route("/search"),
      json: { path: path ?? ".", name, content, regex, ignore_case: ignoreCase, limit },
      options: request,
    });
    return {
      truncated: found.truncated,
      matches: found.matches.map((match) => ({
        // A search in a single file returns no relative path.
        path: match.path === "" ? (path ?? ".") : inDirectory(path ?? ".", match.path),
        ...(typeof match.line_number === "number" ? { lineNumber: match.line_number } : {}),
        ...(typeof match.line === "string" ? { line: match.line } : {}),
        ...(typeof match.column === "number" ? { column: match.column } : {}),
      })),
    };
  }

  /** Packs a directory with its contents. The stream has back pressure. */
  async getArchive(path: SandboxPath = ".", options: RequestOptions & { format?: ArchiveFormat } = {}): Promise<ReadableStream<Uint8Array>> {
    const { format, ...request } = options;
    const answer = await this.transport.stream({ method: "GET", path: this.route("/archive"), query: { ...pathQuery(path), format: format ?? "tar.gz" }, headers: { Accept: "*/*" }, options: request });
    return answer.body;
  }

  /** Unpacks an archive into a directory. */
  async putArchive(path: SandboxPath, data: FileData, options: ExtractOptions = {}): Promise<{ entries: number; size: number }> {
    const { format, strip, ...request } = options;
    const done = await this.transport.longWork<{ entries: number; bytes: number }>({ method: "PUT", path: this.route("/archive"), query: { ...pathQuery(path), format, strip }, body: toBody(data), options: request });
    return { entries: done.entries, size: done.bytes };
  }

  /** Watches a directory. Resolves when the watch is active, so that no later event is missed. */
  async watchDir(path: SandboxPath, onEvent: OnWatchEvent, options: WatchOptions = {}): Promise<WatchHandle> {
    known("watchDir", options, WATCH_OPTIONS, REQUEST_OPTIONS);
    return startWatch(this.transport, { method: "GET", path: this.route("/watch"), query: { ...pathQuery(path), recursive: options.recursive ?? false } }, onEvent, options);
  }

  /** Creates a URL with which one file can be read or written without a key. `expires` defaults to 3,600 seconds. */
  async sign(path: string, operation: "read" | "write", options: RequestOptions & { expires?: Span } = {}): Promise<SignedUrl> {
    const { expires, ...request } = options;
    const signed = await this.transport.json<{ url: string; expires_at: string }>({ method: "POST", path: this.route("/sign"), json: { path, operation, expires }, options: request });
    return { url: this.transport.configuration.publicUrl(signed.url), expiresAt: new Date(signed.expires_at) };
  }
}

function pathQuery(path: SandboxPath): Query {
  if (typeof path !== "string" && !(path instanceof Uint8Array)) {
    throw wrongType("path", path, "a string or bytes");
  }
  return typeof path === "string" ? { path } : { path_base64: toBase64(path) };
}

/** Converts paths relative to the directory to paths that can be passed to other calls. */
function below(directory: SandboxPath, info: FileInfo): FileInfo {
  if (typeof directory === "string" && info.pathBytes === undefined) {
    return { ...info, path: inDirectory(directory, info.path) };
  }
  const base = typeof directory === "string" ? utf8(directory) : directory;
  const name = info.pathBytes ?? utf8(info.path);
  const [shown, separator] = [text(base), text(base).endsWith("/") ? "" : "/"];
  const pathBytes = shown === "." || shown === "" ? name : concatenate([base, utf8(separator), name]);
  return { ...info, path: inDirectory(shown, info.path), pathBytes };
}

function inDirectory(directory: string, path: string): string {
  if (directory === "." || directory === "" || path.startsWith("/")) {
    return path;
  }
  return `${directory}${directory.endsWith("/") ? "" : "/"}${path}`;
}

/** Returns the header for a part of a file; `empty` for an empty part, which HTTP cannot express. */
function rangeHeader(start: number | undefined, end: number | undefined): string | undefined {
  if (start === undefined && end === undefined) {
    return undefined;
  }
  const first = start ?? 0;
  const valid = Number.isSafeInteger(first) && first >= 0 && (end === undefined || (Number.isSafeInteger(end) && end >= first));
  if (!valid) {
    throw new InvalidArgumentError(`invalid range from ${String(start)} to ${String(end)}; both must be integers from 0, and the second must not be less`, { field: "start" });
  }
  if (end === undefined) {
    return `bytes=${first}-`;
  }
  return end === first ? "empty" : `bytes=${first}-${end - 1}`;
}

function toBody(data: FileData): Uint8Array | Blob | ReadableStream<Uint8Array> {
  if (typeof data === "string") {
    return utf8(data);
  }
  if (data instanceof ArrayBuffer) {
    return new Uint8Array(data);
  }
  if (data instanceof Uint8Array || data instanceof Blob || data instanceof ReadableStream) {
    return data;
  }
  throw wrongType("data", data, "a string, bytes, a Blob or a ReadableStream");
}
