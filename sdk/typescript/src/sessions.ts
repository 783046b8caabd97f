import "./dispose.js";
import type { Command, Commands, RunOptions } from "./commands.js";
import type { RequestOptions } from "./config.js";
import { SessionNotFoundError } from "./errors.js";
import { checkTexts } from "./options.js";
import type { CommandResult } from "./result.js";
import { route, type Transport } from "./transport.js";

/** Options of a new session. */
export interface SessionOptions extends RequestOptions {
  /** Initial working directory. */
  cwd?: string;
  /** Initial environment variables. */
  envs?: Record<string, string>;
}

/** Information about a session. */
export interface SessionInfo {
  /** Its id. */
  sessionId: number;
  /** Its shell. */
  shell: string;
}

/** A shell that keeps its working directory, variables and functions from one command to the next. */
export class Session {
  /** Its id. */
  readonly sessionId: number;
  /** Its shell. */
  readonly shell: string;
  readonly #sessions: Sessions;
  readonly #commands: Commands;

  /** @internal */
  constructor(sessions: Sessions, commands: Commands, info: SessionInfo) {
    this.#sessions = sessions;
    this.#commands = commands;
    this.sessionId = info.sessionId;
    this.shell = info.shell;
  }

  /** Runs a command in it, as {@link Commands.run} does. `sessionState` of the result tells whether the session survived. */
  run(command: Command, options: RunOptions = {}): Promise<CommandResult> {
    return this.#commands.runIn(this.sessionId, command, options);
  }

  /** Ends the shell. Returns false if it has already ended. */
  close(options?: RequestOptions): Promise<boolean> {
    return this.#sessions.close(this.sessionId, options);
  }

  /** Ends the shell. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** Sessions of a sandbox. */
export class Sessions {
  readonly #transport: Transport;
  readonly #sandboxId: string;
  readonly #commands: Commands;

  /** @internal */
  constructor(transport: Transport, sandboxId: string, commands: Commands) {
    this.#transport = transport;
    this.#sandboxId = sandboxId;
    this.#commands = commands;
  }

  /** Starts a session. */
  async create(options: SessionOptions = {}): Promise<Session> {
    const { cwd, envs, ...request } = options;
    const made = await this.#transport.json<{ session: number; shell: string }>({
      method: "POST",
      path: route`/v1/sandboxes/${this.#sandboxId}/sessions`,
      json: { cwd, env: checkTexts("envs", envs) },
      options: request,
    });
    return new Session(this, this.#commands, { sessionId: made.session, shell: made.shell });
  }

  /** Lists the sessions. */
  async list(options?: RequestOptions): Promise<Session[]> {
    const answer = await this.#transport.json<{ sessions: { session: number; shell: string }[] }>({
      method: "GET",
      path: route`/v1/sandboxes/${this.#sandboxId}/sessions`,
      options,
    });
    return answer.sessions.map((session) => new Session(this, this.#commands, { sessionId: session.session, shell: session.shell }));
  }

  /** Ends a session. Returns false if there is none with that id. */
  async close(sessionId: number, options?: RequestOptions): Promise<boolean> {
    try {
      await this.#transport.delete(route`/v1/sandboxes/${this.#sandboxId}/sessions/${sessionId}`, undefined, options);
      return true;
    } catch (error) {
      if (error instanceof SessionNotFoundError) {
        return false;
      }
      throw error;
    }
  }
}
