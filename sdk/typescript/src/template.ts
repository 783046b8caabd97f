// Definition of a template, for `templates.build`. Copying needs a runtime with node:fs.

import { InvalidArgumentError } from "./errors.js";
import { known, names } from "./options.js";

/** Maximum total size of the files of a template's `copy` steps, in bytes. */
const MAX_COPIED_BYTES = 1024 * 1024;

/** Options of a template. */
export interface TemplateOptions {
  /** `host`, `debian`, `oci` or `template:NAME`; default: `host`. */
  base?: string;
  /** A description. */
  description?: string;
  /** The Debian release, such as `bookworm`. */
  suite?: string;
  /** The image, if an OCI layout has several. */
  reference?: string;
}

/** A file of a `copy` step, in the format of the REST interface. */
export interface TemplateFile {
  path: string;
  content_base64: string;
  mode: string;
}

const TEMPLATE_OPTIONS = names<TemplateOptions>({ base: true, description: true, suite: true, reference: true });

type Value = string | number | boolean | readonly Value[] | { readonly [key: string]: Value };

/**
 * A template: a base, and steps that are run on it, one after the other, in sandboxes of the server. Each method adds to it
 * and returns it; nothing is sent before `client.templates.build(template)`.
 */
export class Template {
  /** Its name. */
  readonly name: string;
  readonly #top: Record<string, Value> = {};
  readonly #limits: Record<string, Value> = {};
  readonly #build: Record<string, Value> = {};
  readonly #steps: [string, Value][] = [];
  readonly #copies: { from: string; place: string }[] = [];

  /** `name` consists of a-z, 0-9 and `-`. A built template with this name is replaced. */
  constructor(name: string, options: TemplateOptions = {}) {
    const { base = "host", description, suite, reference } = known("new Template", options, TEMPLATE_OPTIONS);
    this.name = name;
    for (const [key, value] of Object.entries({ name, description, base, suite, reference })) {
      if (value !== undefined) {
        this.#top[key] = value;
      }
    }
  }

  /** Installs Debian packages. Not on the base `host`. */
  aptInstall(...packages: string[]): this {
    return this.#step("apt", packages);
  }

  /** Installs Python packages, such as `numpy>=2`. */
  pipInstall(...packages: string[]): this {
    return this.#step("pip", packages);
  }

  /** Installs packages of Node.js. */
  npmInstall(...packages: string[]): this {
    return this.#step("npm", packages);
  }

  /** Runs a shell command. The build fails if it does not exit with 0. */
  runCmd(command: string): this {
    return this.#step("run", command);
  }

  /** Copies a local file, or a directory with its contents, at build time. All copied files together have at most 1 MiB. */
  copy(source: string, to: string): this {
    const place = String(this.#steps.length);
    this.#copies.push({ from: source, place });
    return this.#step("copy", { from: place, to });
  }

  /** Sets environment variables, for the steps that follow and for sandboxes. */
  setEnvs(envs: Record<string, string>): this {
    return this.#step("env", { ...envs });
  }

  /** Sets USER and LOGNAME. A sandbox has one user id, whatever its name. */
  setUser(user: string): this {
    return this.#step("user", user);
  }

  /** Sets the directory of the steps that follow and of the start command. */
  setWorkdir(workdir: string): this {
    return this.#step("workdir", workdir);
  }

  /** Sets the command that is started in each sandbox, and the one that succeeds when it is ready. */
  setStartCmd(start: string, ready?: string): this {
    Object.assign(this.#top, ready === undefined ? { start } : { start, ready });
    return this;
  }

  /** Sets the modules that warm Python interpreters have imported. */
  setWarmImports(...modules: string[]): this {
    this.#top["warm"] = modules;
    return this;
  }

  /** Sets default limits of sandboxes, such as `{ memory: "1g" }`. */
  setLimits(limits: Record<string, string | number>): this {
    Object.assign(this.#limits, limits);
    return this;
  }

  /** Sets limits of the build sandboxes, such as `{ disk: "8g" }`. */
  setBuildLimits(limits: Record<string, string | number>): this {
    Object.assign(this.#build, limits);
    return this;
  }

  /** Returns the text of the template file. */
  toToml(): string {
    const pairs = (values: Record<string, Value>) => Object.entries(values).map(([key, value]) => `${bareKey(key)} = ${toml(value)}`);
    const section = (name: string, values: Record<string, Value>) => (Object.keys(values).length === 0 ? [] : ["", `[${name}]`, ...pairs(values)]);
    const steps = this.#steps.flatMap(([kind, value]) => ["", "[[step]]", `${kind} = ${toml(value)}`]);
    return `${[...pairs(this.#top), ...section("limits", this.#limits), ...section("build", this.#build), ...steps].join("\n")}\n`;
  }

  /** Reads the files of `copy` steps. */
  async files(): Promise<TemplateFile[]> {
    const { readdir, readFile, stat } = await import("node:fs/promises");
    const found: TemplateFile[] = [];
    let total = 0;
    const add = async (local: string, path: string): Promise<void> => {
      const info = await stat(local).catch(() => undefined);
      if (info?.isDirectory()) {
        for (const entry of (await readdir(local)).sort()) {
          await add(`${local}/${entry}`, `${path}/${entry}`);
        }
      } else if (info?.isFile()) {
        const content = await readFile(local);
        total += content.length;
        if (total > MAX_COPIED_BYTES) {
          throw new InvalidArgumentError(`source: all copied files have at most ${MAX_COPIED_BYTES} bytes`, { field: "source" });
        }
        found.push({ path, content_base64: content.toString("base64"), mode: (info.mode & 0o7777).toString(8).padStart(4, "0") });
      } else {
        throw new InvalidArgumentError(`source: ${JSON.stringify(local)} is neither a file nor a directory`, { field: "source" });
      }
    };
    for (const { from, place } of this.#copies) {
      await add(from, place);
    }
    return found;
  }

  #step(kind: string, value: Value): this {
    this.#steps.push([kind, value]);
    return this;
  }
}

function bareKey(key: string): string {
  return /^[A-Za-z0-9_-]+$/.test(key) ? key : toml(key);
}

function toml(value: Value): string {
  if (Array.isArray(value)) {
    return `[${value.map(toml).join(", ")}]`;
  }
  if (typeof value === "object") {
    const pairs = Object.entries(value).map(([key, one]) => `${bareKey(key)} = ${toml(one)}`);
    return `{ ${pairs.join(", ")} }`;
  }
  // A JSON string is a valid TOML string, except for the one control character that JSON does not escape.
  return JSON.stringify(value).replaceAll("\x7f", "\\u007f");
}
