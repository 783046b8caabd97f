// A sandbox for one agent, as many agents expect it.

import type { RunCodeOptions } from "./code.js";
import type { CallOptions } from "./config.js";
import { type CreateOptions, Sandbox } from "./sandbox.js";
import { type ExecutionResult, toResult } from "./tools.js";

/** A sandbox for one agent, behind three methods: `createSandbox`, `execute` and `cleanup`. */
export class SandboxProvider {
  readonly #options: CreateOptions & CallOptions;
  #sandbox: Sandbox | undefined;

  /** Does nothing yet. `options`: those of `Sandbox.create`. */
  constructor(options: CreateOptions & CallOptions = {}) {
    this.#options = options;
  }

  /** Creates the sandbox and ends the previous one. `image`: a template, or `image:NAME` for a pulled image. */
  async createSandbox(image?: string, options: CreateOptions & CallOptions = {}): Promise<Sandbox> {
    await this.cleanup();
    this.#sandbox = await Sandbox.create({ ...this.#options, ...(image === undefined ? {} : { template: image }), ...options });
    return this.#sandbox;
  }

  /** Runs code, and creates the sandbox if there is none. Variables are kept for the next call. `timeout`: in milliseconds. */
  async execute(code: string, timeout?: number, language = "python"): Promise<ExecutionResult> {
    const sandbox = this.#sandbox ?? (await this.createSandbox());
    const options: RunCodeOptions = { language, ...(timeout === undefined ? {} : { timeoutMs: timeout }) };
    return toResult(await sandbox.runCode(code, options));
  }

  /** Ends the sandbox, if there is one. */
  async cleanup(): Promise<void> {
    const sandbox = this.#sandbox;
    this.#sandbox = undefined;
    await sandbox?.kill();
  }
}
