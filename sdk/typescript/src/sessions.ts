import "./dispose.js";
import type { Command, Commands, RunOptions } from "./commands.js";
import type { RequestOptions } from "./config.js";
import { NotFoundError } from "./errors.js";
import type { CommandResult } from "./result.js";
import { route, type Transport } from "./transport.js";

/** How a session begins. */
export interface SessionOptions extends RequestOptions {
  /** Working directory at the beginning. */
  cwd?: string;
  /** Environment variables at the beginning. */
  envs?: Record<string, string>;
}

/** What can be said of a session. */
export interface SessionInfo {
  sessionId: number;
  /** The shell that it is. */
  shell: string;
}

/** A shell that remembers its working directory, variables and functions from one command to the next. */
export class Session {
  readonly sessionId: number;
  /** The shell that it is. */
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

  /** Runs a command in it, as {@link Commands.run} does. `sessionState` of the result says whether the session outlived it. */
  run(command: Command, options: RunOptions = {}): Promise<CommandResult> {
    return this.#commands.runIn(this.sessionId, command, options);
  }

  /** Ends the shell. False if it had ended already. */
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

  /** Starts a shell that remembers. */
  async create(options: SessionOptions = {}): Promise<Session> {
    const { cwd, envs, ...request } = options;
    const made = await this.#transport.json<{ session: number; shell: string }>({
      method: "POST",
      path: route`/v1/sandboxes/${this.#sandboxId}/sessions`,
      json: { cwd, env: envs },
      options: request,
    });
    return new Session(this, this.#commands, { sessionId: made.session, shell: made.shell });
  }

  /** The sessions that there are. */
  async list(options?: RequestOptions): Promise<Session[]> {
    const answer = await this.#transport.json<{ sessions: { session: number; shell: string }[] }>({
      method: "GET",
      path: route`/v1/sandboxes/${this.#sandboxId}/sessions`,
      options,
    });
    return answer.sessions.map((session) => new Session(this, this.#commands, { sessionId: session.session, shell: session.shell }));
  }

  /** Ends a session's shell. False if there is none of that id. */
  async close(sessionId: number, options?: RequestOptions): Promise<boolean> {
    try {
      await this.#transport.delete(route`/v1/sandboxes/${this.#sandboxId}/sessions/${sessionId}`, undefined, options);
      return true;
    } catch (error) {
      if (error instanceof NotFoundError && error.code !== "sandbox_not_found") {
        return false;
      }
      throw error;
    }
  }
}
