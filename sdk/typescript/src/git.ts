// Git repositories in a sandbox.

import type { Commands, RunOptions } from "./commands.js";
import { REQUEST_OPTIONS, type RequestOptions } from "./config.js";
import { InvalidArgumentError, NotEnoughSpaceError, ProgramNotFoundError, ServerError } from "./errors.js";
import { checkText, known, type Names, names } from "./options.js";
import { CommandExitError, type CommandResult, GitAuthError } from "./result.js";

/** Options of every git command. */
export interface GitOptions extends RequestOptions {
  /** Environment variables, added to those of the sandbox. */
  envs?: Record<string, string>;
  /** Working directory, for relative paths; default: the home directory. */
  cwd?: string;
  /** Time limit in milliseconds; default: the sandbox's `limits.timeoutMs`. */
  timeoutMs?: number;
}

/**
 * Credentials for a remote over HTTP or HTTPS. Git gets them for this command and for the host of the remote alone, in
 * variables: they are not stored in the sandbox. Code that runs there at the same time can read them; a secret of the network
 * policy it cannot.
 */
export interface GitCredentials {
  /** The user name. */
  username?: string;
  /** The password, or a token. */
  password?: string;
}

/** Options of {@link Git.clone}. */
export interface GitCloneOptions extends GitOptions, GitCredentials {
  /** Where to clone to; default: a directory named after the repository. */
  path?: string;
  /** The only branch to fetch. */
  branch?: string;
  /** Number of commits to fetch. */
  depth?: number;
}

/** Options of {@link Git.push} and {@link Git.pull}. */
export interface GitExchangeOptions extends GitOptions, GitCredentials {
  /** The remote; default: that of the current branch. */
  remote?: string;
  /** The branch; default: the current one and its upstream. */
  branch?: string;
}

/** Options of {@link Git.commit}. */
export interface GitCommitOptions extends GitOptions {
  /** The author's name; default: that of {@link Git.configureUser}. */
  authorName?: string;
  /** The author's address. */
  authorEmail?: string;
  /** Whether to commit even if nothing is staged; default: no. */
  allowEmpty?: boolean;
}

/** Options of the configuration: of the sandbox, or of the repository `path`. */
export interface GitConfigOptions extends GitOptions {
  /** `global`, the default: for all repositories of the sandbox. `local`: for the one at `path`. */
  scope?: "global" | "local";
  /** The repository, for the scope `local`. */
  path?: string;
}

/** A changed file. */
export interface GitFileStatus {
  /** Its path in the repository. */
  name: string;
  /** What happened to it. */
  status: "modified" | "added" | "deleted" | "renamed" | "copied" | "typechange" | "conflict" | "untracked" | "ignored";
  /** What is staged, as the letter that git shows; a space if nothing is. */
  indexStatus: string;
  /** The same for what is not staged. */
  workingTreeStatus: string;
  /** Whether something is staged. */
  staged: boolean;
  /** Its path before it was renamed or copied. */
  renamedFrom?: string;
}

/** The state of a repository. */
export interface GitStatus {
  /** The branch; undefined if HEAD is detached. */
  currentBranch?: string;
  /** The upstream branch, such as `origin/main`, if there is one. */
  upstream?: string;
  /** Number of commits that the upstream does not have. */
  ahead: number;
  /** Number of commits of the upstream that are missing here. */
  behind: number;
  /** Whether HEAD is no branch. */
  detached: boolean;
  /** The changed files. */
  fileStatus: GitFileStatus[];
  /** Whether nothing is changed, staged or untracked. */
  isClean: boolean;
  /** Whether something is changed, staged or untracked. */
  hasChanges: boolean;
  /** Whether something is staged. */
  hasStaged: boolean;
  /** Whether there are untracked files. */
  hasUntracked: boolean;
  /** Whether there are unresolved conflicts. */
  hasConflicts: boolean;
}

/** The local branches. */
export interface GitBranches {
  /** Their names. */
  branches: string[];
  /** The current one, if HEAD is one. */
  currentBranch?: string;
}

/** A commit. */
export interface GitCommit {
  /** Its hash. */
  hash: string;
  /** The author's name. */
  authorName: string;
  /** The author's address. */
  authorEmail: string;
  /** When it was written. */
  date: Date;
  /** The whole message. */
  message: string;
  /** The first line of the message. */
  subject: string;
}

type Own<Options> = Names<Omit<Options, keyof GitOptions>>;

const GIT_OPTIONS = names<Omit<GitOptions, keyof RequestOptions>>({ envs: true, cwd: true, timeoutMs: true });
const CREDENTIALS = names<GitCredentials>({ username: true, password: true });

/** Git asks no questions, and its messages can be recognized. */
const ENVIRONMENT = { GIT_TERMINAL_PROMPT: "0", LC_ALL: "C.UTF-8" };
const LOG_FORMAT = "--format=%H%x1f%an%x1f%ae%x1f%aI%x1f%B";
/** The values stay out of the command line, of the repository's configuration and of the file system. */
const HELPER = '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$BELLJAR_GIT_USERNAME" "$BELLJAR_GIT_PASSWORD"; }; f';
const AUTH_FAILURE =
  /authentication failed|could not read (username|password)|terminal prompts disabled|invalid username or|permission denied \(publickey|the requested url returned error: 40[13]/i;

/** Git commands in a sandbox whose template has git. `path` is a repository: absolute, or relative to the home directory. */
export class Git {
  readonly #commands: Commands;

  /** @internal */
  constructor(commands: Commands) {
    this.#commands = commands;
  }

  /** Clones a repository. Credentials in the URL are used like `username` and `password`, and not stored. */
  async clone(url: string, options: GitCloneOptions = {}): Promise<CommandResult> {
    const own: Own<GitCloneOptions> = { path: true, branch: true, depth: true, ...CREDENTIALS };
    const { path, branch, depth, username, password, ...rest } = this.#known("git.clone", options, own);
    const found = splitUrl(url);
    const { config, envs } = credentials(found.url, username ?? found.username, password ?? found.password);
    const args = ["clone"];
    if (branch !== undefined) {
      args.push("--single-branch", "--branch", plain(branch, "branch"));
    }
    if (depth !== undefined) {
      args.push("--depth", String(depth));
    }
    return this.#run([...config, ...args, "--", found.url, ...(path === undefined ? [] : [path])], undefined, rest, envs);
  }

  /** Creates a repository. */
  async init(path: string, options: GitOptions & { bare?: boolean; initialBranch?: string } = {}): Promise<CommandResult> {
    const { bare, initialBranch, ...rest } = this.#known("git.init", options, { bare: true, initialBranch: true });
    return this.#run(["init", ...(bare ? ["--bare"] : []), ...(initialBranch === undefined ? [] : [`--initial-branch=${initialBranch}`]), "--", path], undefined, rest);
  }

  /** Adds a remote, or with `overwrite` changes the URL of an existing one. A URL with credentials is refused. */
  async remoteAdd(path: string, name: string, url: string, options: GitOptions & { fetch?: boolean; overwrite?: boolean } = {}): Promise<CommandResult> {
    const { fetch, overwrite, ...rest } = this.#known("git.remoteAdd", options, { fetch: true, overwrite: true });
    if (splitUrl(url).url !== url) {
      throw new InvalidArgumentError("the URL would be stored with its credentials; pass username and password to push and pull", { field: "url" });
    }
    const exists = overwrite === true && (await this.remoteGet(path, name, rest)) !== undefined;
    const result = await this.#run(["remote", exists ? "set-url" : "add", plain(name, "name"), url], path, rest);
    return fetch ? this.#run(["fetch", name], path, rest) : result;
  }

  /** Returns the URL of a remote, or undefined if there is none with this name. */
  async remoteGet(path: string, name: string, options: GitOptions = {}): Promise<string | undefined> {
    return this.#config(`remote.${plain(name, "name")}.url`, "--local", path, this.#known("git.remoteGet", options));
  }

  /** Returns the branch and the changed files. */
  async status(path: string, options: GitOptions = {}): Promise<GitStatus> {
    return parseStatus(await this.#read(["status", "--porcelain=v2", "--branch", "-z"], path, this.#known("git.status", options)));
  }

  /** Returns the local branches. */
  async branches(path: string, options: GitOptions = {}): Promise<GitBranches> {
    const text = await this.#read(["branch", "--format=%(HEAD)%(refname)"], path, this.#known("git.branches", options));
    const found = [...text.matchAll(/^(.)refs\/heads\/(.+)$/gm)].map(([, head, name = ""]) => ({ name, current: head === "*" }));
    const current = found.find((one) => one.current)?.name;
    return { branches: found.map((one) => one.name), ...(current === undefined ? {} : { currentBranch: current }) };
  }

  /** Creates a branch, and checks it out. */
  async createBranch(path: string, branch: string, options: GitOptions = {}): Promise<CommandResult> {
    return this.#run(["checkout", "-b", plain(branch, "branch")], path, this.#known("git.createBranch", options));
  }

  /** Checks out a branch, a tag or a commit. */
  async checkoutBranch(path: string, branch: string, options: GitOptions = {}): Promise<CommandResult> {
    return this.#run(["checkout", plain(branch, "branch"), "--"], path, this.#known("git.checkoutBranch", options));
  }

  /** Deletes a branch; one that is not merged only with `force`. */
  async deleteBranch(path: string, branch: string, options: GitOptions & { force?: boolean } = {}): Promise<CommandResult> {
    const { force, ...rest } = this.#known("git.deleteBranch", options, { force: true });
    return this.#run(["branch", force ? "-D" : "-d", "--", branch], path, rest);
  }

  /** Stages files: the given ones, or all changes; with `all: false` the changes of the directory `path`. */
  async add(path: string, options: GitOptions & { files?: readonly string[]; all?: boolean } = {}): Promise<CommandResult> {
    const { files, all, ...rest } = this.#known("git.add", options, { files: true, all: true });
    const what = files !== undefined && files.length > 0 ? pathsAfter(files) : [all === false ? "." : "--all"];
    return this.#run(["add", ...what], path, rest);
  }

  /** Commits what is staged. */
  async commit(path: string, message: string, options: GitCommitOptions = {}): Promise<CommandResult> {
    const own: Own<GitCommitOptions> = { authorName: true, authorEmail: true, allowEmpty: true };
    const { authorName, authorEmail, allowEmpty, ...rest } = this.#known("git.commit", options, own);
    if ((authorName === undefined) !== (authorEmail === undefined)) {
      throw new InvalidArgumentError("authorName and authorEmail belong together", { field: "authorName" });
    }
    const config = authorName === undefined ? [] : ["-c", `user.name=${authorName}`, "-c", `user.email=${authorEmail}`];
    return this.#run([...config, "commit", ...(allowEmpty ? ["--allow-empty"] : []), `--message=${checkText("message", message)}`], path, rest);
  }

  /** Returns commits, newest first: those of HEAD, or of a branch, tag or range such as `main..topic`. At most 100 by default. */
  async log(path: string, options: GitOptions & { maxCount?: number; ref?: string } = {}): Promise<GitCommit[]> {
    const { maxCount, ref, ...rest } = this.#known("git.log", options, { maxCount: true, ref: true });
    const text = await this.#read(["log", "-z", LOG_FORMAT, `--max-count=${maxCount ?? 100}`, plain(ref ?? "HEAD", "ref"), "--"], path, rest);
    return text.split("\0").filter((record) => record !== "").map(parseCommit);
  }

  /** Resets the branch to `target`, or the staged `paths` to their state there; default: HEAD. */
  async reset(
    path: string,
    options: GitOptions & { mode?: "soft" | "mixed" | "hard" | "merge" | "keep"; target?: string; paths?: readonly string[] } = {},
  ): Promise<CommandResult> {
    const { mode, target, paths, ...rest } = this.#known("git.reset", options, { mode: true, target: true, paths: true });
    return this.#run(["reset", ...(mode === undefined ? [] : [`--${mode}`]), ...(target === undefined ? [] : [plain(target, "target")]), ...pathsAfter(paths)], path, rest);
  }

  /** Restores files: in the working tree, or with `staged` in the index, or both; from `source` if it is given. */
  async restore(path: string, options: GitOptions & { paths: readonly string[]; staged?: boolean; worktree?: boolean; source?: string }): Promise<CommandResult> {
    const { paths, staged, worktree, source, ...rest } = this.#known("git.restore", options, { paths: true, staged: true, worktree: true, source: true });
    const where = [...(staged ? ["--staged"] : []), ...((worktree ?? !staged) ? ["--worktree"] : [])];
    return this.#run(["restore", ...where, ...(source === undefined ? [] : [`--source=${source}`]), ...pathsAfter(paths)], path, rest);
  }

  /** Pushes a branch, by default the current one to its upstream. `setUpstream` makes the remote branch its upstream. */
  async push(path: string, options: GitExchangeOptions & { setUpstream?: boolean } = {}): Promise<CommandResult> {
    const { setUpstream, ...rest } = this.#known("git.push", options, { remote: true, branch: true, setUpstream: true, ...CREDENTIALS });
    return this.#exchange(setUpstream ? ["push", "--set-upstream"] : ["push"], path, setUpstream ? { ...rest, branch: rest.branch ?? "HEAD" } : rest);
  }

  /** Pulls a branch, by default the upstream of the current one. */
  async pull(path: string, options: GitExchangeOptions = {}): Promise<CommandResult> {
    return this.#exchange(["pull"], path, this.#known("git.pull", options, { remote: true, branch: true, ...CREDENTIALS }));
  }

  /** Sets the author of commits. */
  async configureUser(name: string, email: string, options: GitConfigOptions = {}): Promise<void> {
    await this.setConfig("user.name", name, options);
    await this.setConfig("user.email", email, options);
  }

  /** Sets a value of the configuration, such as `pull.rebase`. */
  async setConfig(key: string, value: string, options: GitConfigOptions = {}): Promise<void> {
    const { scope, path, ...rest } = this.#known("git.setConfig", options, { scope: true, path: true });
    await this.#run(["config", scopeFlag(scope, path), plain(key, "key"), checkText("value", value)], path, rest);
  }

  /** Returns a value of the configuration, or undefined if it is not set. */
  async getConfig(key: string, options: GitConfigOptions = {}): Promise<string | undefined> {
    const { scope, path, ...rest } = this.#known("git.getConfig", options, { scope: true, path: true });
    return this.#config(plain(key, "key"), scopeFlag(scope, path), path, rest);
  }

  #known<Options extends object>(call: string, options: Options, own: object = {}): Options {
    return known(call, options, own, GIT_OPTIONS, REQUEST_OPTIONS);
  }

  async #config(key: string, flag: string, path: string | undefined, options: GitOptions): Promise<string | undefined> {
    try {
      return (await this.#run(["config", flag, "--get", key], path, options)).stdout.replace(/\n$/, "");
    } catch (error) {
      if (error instanceof CommandExitError && error.exitCode === 1) {
        return undefined;
      }
      throw error;
    }
  }

  async #exchange(args: string[], path: string, options: GitExchangeOptions): Promise<CommandResult> {
    const { branch, username, password, ...given } = options;
    const { remote: said, ...rest } = given;
    const remote = said ?? (branch === undefined ? undefined : "origin");
    const place = remote === undefined ? [] : [plain(remote, "remote")];
    let access: Access = { config: [], envs: {} };
    if (username !== undefined || password !== undefined) {
      access = credentials((await this.#read(["ls-remote", "--get-url", ...place], path, rest)).trim(), username, password);
    }
    return this.#run([...access.config, ...args, ...place, ...(branch === undefined ? [] : [plain(branch, "branch")])], path, rest, access.envs);
  }

  async #read(args: string[], path: string, options: GitOptions): Promise<string> {
    const result = await this.#run(args, path, options);
    if (result.stdoutOmittedBytes > 0) {
      throw new NotEnoughSpaceError(`the output of git ${args[0]} is longer than what the sandbox keeps (limits.output)`, { code: "too_large" });
    }
    return result.stdout;
  }

  async #run(args: string[], path: string | undefined, options: GitOptions, envs: Record<string, string> = {}): Promise<CommandResult> {
    const run: RunOptions = { ...options, envs: { ...ENVIRONMENT, ...options.envs, ...envs } };
    try {
      return await this.#commands.run(["git", ...(path === undefined ? [] : ["-C", checkText("path", path)]), ...args], run);
    } catch (error) {
      if (error instanceof ProgramNotFoundError) {
        throw new ProgramNotFoundError(`there is no git in the sandbox; install it in its template (${error.message})`, { code: error.code, status: error.status, requestId: error.requestId, cause: error });
      }
      if (error instanceof CommandExitError && AUTH_FAILURE.test(error.stderr)) {
        throw new GitAuthError(error.result);
      }
      throw error;
    }
  }
}

/** Arguments and variables with which git has credentials. */
interface Access {
  config: string[];
  envs: Record<string, string>;
}

/** Returns an argument that git must not take for an option. */
function plain(value: string, field: string): string {
  if (checkText(field, value) === "" || value.startsWith("-")) {
    throw new InvalidArgumentError(`${field} is ${JSON.stringify(value)}; it must not be empty or begin with "-"`, { field });
  }
  return value;
}

function pathsAfter(paths: readonly string[] | undefined): string[] {
  if (paths !== undefined && !Array.isArray(paths)) {
    throw new InvalidArgumentError("a list of paths is needed, not a single string", { field: "paths" });
  }
  return paths === undefined || paths.length === 0 ? [] : ["--", ...paths];
}

function scopeFlag(scope: string = "global", path?: string): string {
  if (scope !== "global" && scope !== "local") {
    throw new InvalidArgumentError(`scope is ${JSON.stringify(scope)}; it must be "global" or "local"`, { field: "scope" });
  }
  if ((scope === "local") !== (path !== undefined)) {
    throw new InvalidArgumentError('a repository (path) belongs to the scope "local", and only to it', { field: "path" });
  }
  return `--${scope}`;
}

/** Splits the URL of a repository into the URL without credentials, and these. Others than HTTP and HTTPS are unchanged. */
function splitUrl(given: string): { url: string; username?: string; password?: string } {
  const [, scheme, userinfo, rest] = /^(https?:\/\/)([^/?#]*)@(.*)$/is.exec(plain(given, "url")) ?? [];
  if (scheme === undefined || userinfo === undefined) {
    return { url: given };
  }
  const [username = "", ...password] = userinfo.split(":");
  const decoded = (text: string): string => decodeURIComponent(text.replace(/%(?![0-9a-f]{2})/gi, "%25"));
  return { url: `${scheme}${rest}`, ...(username === "" ? {} : { username: decoded(username) }), ...(password.length === 0 ? {} : { password: decoded(password.join(":")) }) };
}

/** Returns the arguments and the variables with which git uses these credentials, for the host of this URL alone. */
function credentials(url: string, username: string | undefined, password: string | undefined): Access {
  if (username === undefined && password === undefined) {
    return { config: [], envs: {} };
  }
  if (username === undefined) {
    throw new InvalidArgumentError('a password needs a username; for a token it is often any name, such as "git"', { field: "username" });
  }
  const envs = { BELLJAR_GIT_USERNAME: checkText("username", username), BELLJAR_GIT_PASSWORD: checkText("password", password ?? "") };
  if (/[\0\r\n]/.test(envs.BELLJAR_GIT_USERNAME + envs.BELLJAR_GIT_PASSWORD)) {
    throw new InvalidArgumentError("username and password must not contain line breaks", { field: "password" });
  }
  const [, origin] = /^(https?:\/\/)/i.test(url) ? (/^(https?:\/\/[^/?#]+)/i.exec(splitUrl(url).url) ?? []) : [];
  if (origin === undefined) {
    throw new InvalidArgumentError(`a username and a password are for HTTP and HTTPS, and not for ${url}`, { field: "username" });
  }
  const place = `credential.${origin}.helper`;
  // The empty value discards other helpers, which might store what they see.
  return { config: ["-c", `${place}=`, "-c", `${place}=${HELPER}`], envs };
}

const KINDS: Record<string, GitFileStatus["status"]> = { M: "modified", A: "added", D: "deleted", R: "renamed", C: "copied", T: "typechange", "?": "untracked", "!": "ignored" };
/** Number of fields before the path, by the kind of a record. */
const FIELDS: Record<string, number> = { "1": 7, "2": 8, u: 9 };

/** @internal Parses the output of `git status --porcelain=v2 --branch -z`. */
export function parseStatus(text: string): GitStatus {
  const head: Record<string, string> = {};
  const fileStatus: GitFileStatus[] = [];
  const records = text.split("\0").filter((record) => record !== "").values();
  for (const record of records) {
    const kind = record.slice(0, 1);
    const fields = record.slice(2).split(" ");
    if (kind === "#") {
      head[fields[0] ?? ""] = fields.slice(1).join(" ");
    } else if (kind === "?" || kind === "!") {
      fileStatus.push({ name: record.slice(2), status: KINDS[kind] ?? "untracked", indexStatus: kind, workingTreeStatus: kind, staged: false });
    } else {
      const before = FIELDS[kind];
      if (before === undefined || fields.length <= before) {
        throw new ServerError(`unexpected output of git status: ${record}`);
      }
      const [index = " ", tree = " "] = (fields[0] ?? "").replaceAll(".", " ");
      const from = kind === "2" ? records.next().value : undefined;
      const status = kind === "u" ? "conflict" : (KINDS[index === " " ? tree : index] ?? "modified");
      const name = fields.slice(before).join(" ");
      fileStatus.push({ name, status, indexStatus: index, workingTreeStatus: tree, staged: kind !== "u" && index !== " ", ...(from === undefined ? {} : { renamedFrom: from }) });
    }
  }
  const branch = head["branch.head"];
  const detached = branch === "(detached)";
  const [ahead = 0, behind = 0] = (head["branch.ab"] ?? "").split(" ").map((count) => Math.abs(Number(count)));
  const has = (status: string): boolean => fileStatus.some((file) => file.status === status);
  return {
    ...(detached || branch === undefined ? {} : { currentBranch: branch }),
    ...(head["branch.upstream"] === undefined ? {} : { upstream: head["branch.upstream"] }),
    ahead,
    behind,
    detached,
    fileStatus,
    isClean: fileStatus.length === 0,
    hasChanges: fileStatus.length > 0,
    hasStaged: fileStatus.some((file) => file.staged),
    hasUntracked: has("untracked"),
    hasConflicts: has("conflict"),
  };
}

function parseCommit(record: string): GitCommit {
  const [hash, authorName, authorEmail, date, ...rest] = record.split("\x1f");
  if (hash === undefined || authorName === undefined || authorEmail === undefined || date === undefined) {
    throw new ServerError("unexpected output of git log");
  }
  const message = rest.join("\x1f").trimEnd();
  return { hash, authorName, authorEmail, date: new Date(date), message, subject: message.split("\n", 1)[0] ?? "" };
}
