import type { RequestOptions } from "./config.js";
import { templateInfo } from "./convert.js";
import { route, type Transport } from "./transport.js";
import type { TemplateInfo } from "./types.js";
import type { WireTemplate } from "./wire.js";

/** Templates: what new sandboxes begin with. */
export class Templates {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** All templates. */
  async list(options?: RequestOptions): Promise<TemplateInfo[]> {
    const answer = await this.#transport.json<{ templates: WireTemplate[] }>({ method: "GET", path: "/v1/templates", options });
    return answer.templates.map(templateInfo);
  }

  /** A template by its id or name. */
  async get(id: string, options?: RequestOptions): Promise<TemplateInfo> {
    return templateInfo(await this.#transport.json<WireTemplate>({ method: "GET", path: route`/v1/templates/${id}`, options }));
  }

  /** Removes a template. Sandboxes that were made of it stay. */
  async delete(id: string, options?: RequestOptions): Promise<void> {
    await this.#transport.delete(route`/v1/templates/${id}`, undefined, options);
  }
}
