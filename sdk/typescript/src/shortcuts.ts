// Volumes and secrets without a client of one's own.

import { type CallOptions, Configuration, CONNECTION_OPTIONS, REQUEST_OPTIONS, type RequestOptions } from "./config.js";
import type { VolumeFiles } from "./files.js";
import { known } from "./options.js";
import { type NewSecret, Secrets, type SecretUpdate } from "./secrets.js";
import { Transport } from "./transport.js";
import type { SecretInfo, Size, VolumeInfo } from "./types.js";
import { Volumes } from "./volumes.js";

/** Splits options into a connection and the options of the call. */
function split(options: CallOptions): [Transport, RequestOptions] {
  const { apiKey, apiUrl, domain, maxRetries, fetch, ...request } = options;
  return [new Transport(new Configuration({ apiKey, apiUrl, domain, maxRetries, fetch })), request];
}

/** Volumes: the methods of {@link Belljar.volumes}, with the connection settings among their options. */
export class Volume {
  private constructor() {}

  /** Creates a volume. Without a size, such as `1g`, the server's default applies. */
  static async create(name: string, options: { size?: Size } & CallOptions = {}): Promise<VolumeInfo> {
    const { size, ...rest } = known("Volume.create", options, { size: true }, CONNECTION_OPTIONS, REQUEST_OPTIONS);
    const [transport, request] = split(rest);
    return new Volumes(transport).create(name, { size, ...request });
  }

  /** Lists the volumes. */
  static async list(options: CallOptions = {}): Promise<VolumeInfo[]> {
    const [transport, request] = split(options);
    return new Volumes(transport).list(request);
  }

  /** Returns a volume by id or name. */
  static async get(id: string, options: CallOptions = {}): Promise<VolumeInfo> {
    const [transport, request] = split(options);
    return new Volumes(transport).get(id, request);
  }

  /** Removes a volume and its files. Returns false if there is none, and fails if a sandbox mounts it. */
  static async delete(id: string, options: CallOptions = {}): Promise<boolean> {
    const [transport, request] = split(options);
    return new Volumes(transport).delete(id, request);
  }

  /** Returns the files of a volume, by id or name, for use without a sandbox. */
  static files(id: string, options: CallOptions = {}): VolumeFiles {
    return new Volumes(split(options)[0]).files(id);
  }
}

/** Secrets on the server: the methods of {@link Belljar.secrets}, with the connection settings among their options. */
export class Secret {
  private constructor() {}

  /** Stores a secret. */
  static async create(secret: NewSecret, options: CallOptions = {}): Promise<SecretInfo> {
    const [transport, request] = split(options);
    return new Secrets(transport).create(secret, request);
  }

  /** Changes the value of a secret, by name or id. Running sandboxes use it immediately. */
  static async update(secret: string, update: SecretUpdate, options: CallOptions = {}): Promise<SecretInfo> {
    const [transport, request] = split(options);
    return new Secrets(transport).update(secret, update, request);
  }

  /** Returns a secret, by name or id. */
  static async get(secret: string, options: CallOptions = {}): Promise<SecretInfo> {
    const [transport, request] = split(options);
    return new Secrets(transport).get(secret, request);
  }

  /** Lists all secrets, sorted by name. */
  static async list(options: CallOptions = {}): Promise<SecretInfo[]> {
    const [transport, request] = split(options);
    return new Secrets(transport).list(request).all();
  }

  /** Removes a secret, by name or id, permanently. */
  static async delete(secret: string, options: CallOptions = {}): Promise<void> {
    const [transport, request] = split(options);
    return new Secrets(transport).delete(secret, request);
  }
}
