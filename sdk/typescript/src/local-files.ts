// Copies between local files and those of a sandbox or a volume. Needs a runtime with node:fs.

import type { RequestOptions } from "./config.js";
import { InvalidArgumentError, SandboxError } from "./errors.js";
import type { VolumeFiles } from "./files.js";
import { inParallel } from "./parallel.js";
import type { FileInfo } from "./types.js";

/** Progress of a copy. */
export interface TransferProgress {
  /** The file, relative to the copied directory; empty if a single file is copied. */
  path: string;
  /** Bytes of this file so far. */
  bytes: number;
  /** Total bytes of this file. */
  totalBytes: number;
}

/** Options for copying. */
export interface TransferOptions extends RequestOptions {
  /** Called with the progress. */
  onProgress?: (progress: TransferProgress) => void;
}

/** Maximum number of files copied concurrently. */
const PARALLEL_TRANSFERS = 4;
/** Maximum depth of copied directories. */
const DEEPEST = 64;

interface LocalFile {
  local: string;
  relative: string;
  bytes: number;
  mode: number;
}

/** Copies a file or a directory into the sandbox. */
export async function upload(files: VolumeFiles, localPath: string, path: string, options: TransferOptions): Promise<FileInfo[]> {
  const { onProgress, ...request } = options;
  const { stat, readdir, open } = await import("node:fs/promises");
  const join = (await import("node:path")).join;

  const top = await stat(localPath);
  const found: LocalFile[] = [];
  const directories: string[] = [];
  if (top.isDirectory()) {
    const walk = async (directory: string, relative: string, level: number): Promise<void> => {
      if (level > DEEPEST) {
        throw new InvalidArgumentError(`${directory} is more than ${DEEPEST} levels deep`, { field: "localPath" });
      }
      directories.push(relative);
      for (const entry of await readdir(directory, { withFileTypes: true })) {
        const local = join(directory, entry.name);
        const inner = relative === "" ? entry.name : `${relative}/${entry.name}`;
        if (entry.isDirectory()) {
          await walk(local, inner, level + 1);
        } else if (entry.isFile()) {
          const { size, mode } = await stat(local);
          found.push({ local, relative: inner, bytes: size, mode: mode & 0o777 });
        }
      }
    };
    await walk(localPath, "", 0);
    for (const directory of directories) {
      await files.makeDir(inside(path, directory), request);
    }
  } else {
    found.push({ local: localPath, relative: "", bytes: top.size, mode: top.mode & 0o777 });
  }

  return inParallel(found, PARALLEL_TRANSFERS, async (file) => {
    const handle = await open(file.local, "r");
    try {
      const body = counted(readable(handle, file.bytes), (bytes) => onProgress?.({ path: file.relative, bytes, totalBytes: file.bytes }));
      return await files.write(inside(path, file.relative), body, { ...request, mode: file.mode });
    } finally {
      await handle.close();
    }
  });
}

/** Copies a file or a directory out of the sandbox. */
export async function download(files: VolumeFiles, path: string, localPath: string, options: TransferOptions): Promise<string[]> {
  const { onProgress, ...request } = options;
  const { mkdir } = await import("node:fs/promises");
  const { dirname, join } = await import("node:path");
  const top = await files.getInfo(path, request);

  const fetchOne = async (remote: string, relative: string, local: string, totalBytes: number): Promise<string> => {
    const body = await files.read(remote, { ...request, format: "stream" });
    await writeWhole(local, counted(body, (bytes) => onProgress?.({ path: relative, bytes, totalBytes })));
    return local;
  };
  if (top.kind !== "directory") {
    await mkdir(dirname(localPath), { recursive: true });
    return [await fetchOne(path, "", localPath, top.size)];
  }

  await mkdir(localPath, { recursive: true });
  const wanted: { remote: string; relative: string; local: string; bytes: number }[] = [];
  for await (const entry of files.iterate(path, { ...request, depth: DEEPEST })) {
    const relative = relativeTo(path, entry.path);
    // Names are chosen by the sandbox. They must not lead out of the target directory.
    if (!isPlainRelative(relative) || entry.pathBytes !== undefined) {
      throw new SandboxError(`the sandbox has a file ${JSON.stringify(entry.path)}, whose name cannot be used here; nothing more was copied`, { code: "bad_file_name" });
    }
    const local = join(localPath, ...relative.split("/"));
    if (entry.kind === "directory") {
      await mkdir(local, { recursive: true });
    } else if (entry.kind === "file") {
      wanted.push({ remote: inside(path, relative), relative, local, bytes: entry.size });
    }
  }
  return inParallel(wanted, PARALLEL_TRANSFERS, (file) => fetchOne(file.remote, file.relative, file.local, file.bytes));
}

/** Returns the path of an entry relative to the listed directory. */
export function relativeTo(directory: string, entry: string): string {
  const base = directory.endsWith("/") ? directory : `${directory}/`;
  return entry.startsWith(base) ? entry.slice(base.length) : entry;
}

/** Reports whether a relative path stays below its start, on every operating system. */
export function isPlainRelative(path: string): boolean {
  return path !== "" && !/[\\\0:]/.test(path) && path.split("/").every((part) => part !== "" && part !== "." && part !== "..");
}

function inside(path: string, relative: string): string {
  if (relative === "") {
    return path;
  }
  return `${path.replace(/\/+$/, "")}/${relative}`;
}

/** Writes a temporary file and then renames it, so that a broken copy leaves the old file. */
async function writeWhole(local: string, body: ReadableStream<Uint8Array>): Promise<void> {
  const { open, rename, rm } = await import("node:fs/promises");
  const temporary = `${local}.belljar-${Math.random().toString(36).slice(2, 10)}`;
  const reader = body.getReader();
  try {
    const handle = await open(temporary, "wx");
    try {
      for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
        for (let written = 0; written < piece.value.length; ) {
          written += (await handle.write(piece.value, written)).bytesWritten;
        }
      }
    } finally {
      await handle.close();
    }
    await rename(temporary, local);
  } catch (error) {
    await reader.cancel().catch(() => undefined);
    await rm(temporary, { force: true });
    throw error;
  }
}

const PIECE_BYTES = 64 * 1024;

/** Yields the bytes of a file, at most its size when it was examined. */
function readable(handle: import("node:fs/promises").FileHandle, bytes: number): ReadableStream<Uint8Array> {
  let left = bytes;
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        const piece = new Uint8Array(Math.min(PIECE_BYTES, left));
        const { bytesRead } = left === 0 ? { bytesRead: 0 } : await handle.read(piece, 0, piece.length, null);
        left -= bytesRead;
        if (bytesRead === 0) {
          controller.close();
        } else {
          controller.enqueue(piece.subarray(0, bytesRead));
        }
      },
    },
    { highWaterMark: 0 },
  );
}

/** Reports the bytes passed through a stream. */
function counted(body: ReadableStream<Uint8Array>, tell: (bytes: number) => void): ReadableStream<Uint8Array> {
  let bytes = 0;
  return body.pipeThrough(
    new TransformStream<Uint8Array, Uint8Array>({
      transform(piece, controller) {
        bytes += piece.length;
        tell(bytes);
        controller.enqueue(piece);
      },
    }),
  );
}
