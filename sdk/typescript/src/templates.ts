import { REQUEST_OPTIONS, type RequestOptions } from "./config.js";
import { templateInfo } from "./convert.js";
import { ConnectionError, InvalidArgumentError, TemplateNotFoundError } from "./errors.js";
import { known, names } from "./options.js";
import { errorFromEvent, parseEvent } from "./output.js";
import { listPages, type PageOptions, Paginator } from "./paginator.js";
import type { Template } from "./template.js";
import { type ApiRequest, route, type Transport } from "./transport.js";
import type { TemplateInfo } from "./types.js";
import type { WireTemplate } from "./wire.js";

/**
 * An event of a build: it has this id, it waits for other builds, a step begins, writes a line, has its changes packed, or has produced a
 * layer. A step that changes nothing produces none.
 */
export type BuildEvent =
  | { event: "build"; id: string }
  | { event: "queued"; ahead: number }
  | { event: "step"; number: number; total: number; kind: string; summary: string; cached: boolean }
  | { event: "log"; number: number; line: string }
  | { event: "packing"; number: number; bytes: number }
  | { event: "layer"; number: number; digest: string; bytes: number };

/** Options of a build. */
export interface BuildOptions extends RequestOptions {
  /** Overrides the name in the template. */
  name?: string;
  /** A directory of packages on the server's machine. */
  mirror?: string;
  /** An OCI image layout, or a tar of one, on the server's machine. */
  image?: string;
  /** Whether to run steps even if their result is cached. */
  fresh?: boolean;
  /** Called with each event. */
  onEvent?: (event: BuildEvent) => void;
}

const BUILD_OPTIONS = names<Omit<BuildOptions, keyof RequestOptions>>({ name: true, mirror: true, image: true, fresh: true, onEvent: true });

/** Templates of sandboxes. */
export class Templates {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Lists templates, the default one first and then the oldest, as a paginated list; without `limit` in one page. */
  list(options: PageOptions = {}): Paginator<TemplateInfo> {
    return listPages(this.#transport, "templates", templateInfo, options);
  }

  /** Returns a template by its id or name. */
  async get(id: string, options?: RequestOptions): Promise<TemplateInfo> {
    return templateInfo(await this.#transport.json<WireTemplate>({ method: "GET", path: route`/v1/templates/${id}`, options }));
  }

  /** Removes a template. Sandboxes created from it are not affected. */
  async delete(id: string, options?: RequestOptions): Promise<void> {
    await this.#transport.delete(route`/v1/templates/${id}`, undefined, options);
  }

  /** Lists the snapshots, of one sandbox if its id is given. */
  listSnapshots(sandboxId?: string, options?: RequestOptions): Paginator<TemplateInfo> {
    return new Paginator(async () => {
      const found = await this.list(options).all();
      const items = found.filter((one) => one.kind === "snapshot" && (sandboxId === undefined || one.source === sandboxId));
      return { items, nextToken: undefined };
    });
  }

  /** Removes a snapshot, by id or name. Returns false if there is none. Other templates are refused. */
  async deleteSnapshot(snapshotId: string, options?: RequestOptions): Promise<boolean> {
    try {
      const found = await this.get(snapshotId, options);
      if (found.kind !== "snapshot") {
        throw new InvalidArgumentError(`${snapshotId} is a template and no snapshot; templates.delete removes it`, { field: "snapshotId" });
      }
      await this.delete(found.templateId, options);
      return true;
    } catch (error) {
      if (error instanceof TemplateNotFoundError) {
        return false;
      }
      throw error;
    }
  }

  /** Builds a template on the server, from a `Template` or the text of a template file. Needs a key with the role admin. */
  async build(template: Template | string, options: BuildOptions = {}): Promise<TemplateInfo> {
    const { name, mirror, image, fresh, onEvent, ...request } = known("build", options, BUILD_OPTIONS, REQUEST_OPTIONS);
    const isText = typeof template === "string";
    const files = isText ? [] : await template.files();
    const json = { definition: isText ? template : template.toToml(), files, name, mirror, image, fresh };
    for await (const event of this.#transport.events({ method: "POST", path: "/v1/templates", json, options: request })) {
      switch (event.event) {
        case "error":
          throw errorFromEvent(event);
        case "template":
          return templateInfo(parseEvent<WireTemplate>(event));
        default:
          onEvent?.({ event: event.event, ...parseEvent<object>(event) } as BuildEvent);
      }
    }
    throw new ConnectionError("the connection broke while the template was being built; the build continues");
  }

  /** Exports a built template as one file, as a stream. */
  async export(id: string, options?: RequestOptions): Promise<ReadableStream<Uint8Array>> {
    const request: ApiRequest = { method: "GET", path: route`/v1/templates/${id}/export`, headers: { Accept: "application/octet-stream" }, options };
    return (await this.#transport.stream(request)).body;
  }

  /** Imports a template from an exported file. A built template with the same name is replaced. */
  async import(file: Blob | Uint8Array | ReadableStream<Uint8Array>, options: RequestOptions & { name?: string } = {}): Promise<TemplateInfo> {
    const { name, ...request } = options;
    const headers = { "Content-Type": "application/octet-stream" };
    return templateInfo(await this.#transport.longWork<WireTemplate>({ method: "POST", path: "/v1/templates/import", query: { name }, headers, body: file, options: request }));
  }

  /**
   * Imports an image from a tar of `docker save`, or of an OCI image layout. Needs a key with the role admin. The name is that in the file,
   * or `name`; of a file with several images, it selects one. Sandboxes start from the template that is returned.
   */
  async importImage(file: Blob | Uint8Array | ReadableStream<Uint8Array>, options: RequestOptions & { name?: string } = {}): Promise<TemplateInfo> {
    const { name, ...request } = options;
    const headers = { "Content-Type": "application/octet-stream" };
    return templateInfo(await this.#transport.longWork<WireTemplate>({ method: "POST", path: "/v1/images/import", query: { name }, headers, body: file, options: request }));
  }
}
