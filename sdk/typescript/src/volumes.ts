import type { RequestOptions } from "./config.js";
import { volumeInfo } from "./convert.js";
import { NotFoundError } from "./errors.js";
import { VolumeFiles } from "./files.js";
import { route, type Transport } from "./transport.js";
import type { Size, VolumeInfo } from "./types.js";
import type { WireVolume } from "./wire.js";

/** Volumes: files that outlive sandboxes and that several sandboxes can mount. */
export class Volumes {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Creates a volume. The name is unique in the tenant. Without a size, such as `1g`, the server's default applies. */
  async create(name: string, options: RequestOptions & { size?: Size } = {}): Promise<VolumeInfo> {
    const { size, ...request } = options;
    return volumeInfo(await this.#transport.json<WireVolume>({ method: "POST", path: "/v1/volumes", json: { name, size }, options: request }));
  }

  /** Lists the volumes of the key's tenant, or all with an admin key. */
  async list(options?: RequestOptions): Promise<VolumeInfo[]> {
    const answer = await this.#transport.json<{ volumes: WireVolume[] }>({ method: "GET", path: "/v1/volumes", options });
    return answer.volumes.map(volumeInfo);
  }

  /** Returns a volume by id or name. */
  async get(id: string, options?: RequestOptions): Promise<VolumeInfo> {
    return volumeInfo(await this.#transport.json<WireVolume>({ method: "GET", path: route`/v1/volumes/${id}`, options }));
  }

  /** Removes a volume and its files. Returns false if there is none, and fails if a sandbox mounts it. */
  async delete(id: string, options?: RequestOptions): Promise<boolean> {
    try {
      await this.#transport.delete(route`/v1/volumes/${id}`, undefined, options);
      return true;
    } catch (error) {
      if (error instanceof NotFoundError) {
        return false;
      }
      throw error;
    }
  }

  /** Returns the files of a volume, by id or name, for use without a sandbox. */
  files(id: string): VolumeFiles {
    return new VolumeFiles(this.#transport, route`/v1/volumes/${id}`);
  }
}
