/** The server's description of a failure (`application/problem+json`). */
export interface Problem {
  /** A page about this kind of failure. */
  type?: string;
  /** The kind of failure, as text. */
  title?: string;
  /** The HTTP status. */
  status?: number;
  /** The stable code of the failure, such as `sandbox_not_found`. */
  code?: string;
  /** What failed, why, and how to fix it. */
  detail?: string;
  /** The invalid field, such as `limits.memory`, if any. */
  field?: string;
  /** The id of the request, as in the server's log. */
  request_id?: string;
  /** Seconds after which a retry makes sense. */
  retry_after_s?: number;
}

/** Properties of an error besides its message. */
export interface ErrorDetails {
  /** The stable code of the failure. */
  code?: string | undefined;
  /** The HTTP status of the response, if there was one. */
  status?: number | undefined;
  /** The id of the request, as in the server's log. */
  requestId?: string | undefined;
  /** The cause. */
  cause?: unknown;
}

/** The base class of this package's errors. */
export class SandboxError extends Error {
  override name = "SandboxError";
  /** The stable code of the failure: the server's code, or `connection_failed`, `request_timeout` and the like. */
  readonly code: string;
  /** The HTTP status of the response; undefined if there was none. */
  readonly status: number | undefined;
  /** The id of the request, as in the server's log; undefined if there was no response. */
  readonly requestId: string | undefined;

  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.code = details.code ?? "unknown";
    this.status = details.status;
    this.requestId = details.requestId;
  }
}

/** A value is invalid: it has the wrong type, is out of range, or is unknown (400, 415, 416, 422). */
export class InvalidArgumentError extends SandboxError {
  override name = "InvalidArgumentError";
  /** The invalid field, named as in the REST interface, if any. */
  readonly field: string | undefined;

  constructor(message: string, details: ErrorDetails & { field?: string | undefined } = {}) {
    super(message, { code: "invalid_argument", ...details });
    this.field = details.field;
  }
}

/** The key is missing, wrong, expired or revoked (401). */
export class AuthenticationError extends SandboxError {
  override name = "AuthenticationError";
}

/** The key may not do that, or the operator's policy or the sandbox's own permissions forbid it (403). */
export class ForbiddenError extends SandboxError {
  override name = "ForbiddenError";
}

/** The sandbox, template, volume, key, process or path does not exist; those of other tenants count as missing (404). */
export class NotFoundError extends SandboxError {
  override name = "NotFoundError";
}

/** There is no such sandbox. */
export class SandboxNotFoundError extends NotFoundError {
  override name = "SandboxNotFoundError";
}

/** The sandbox has ended (410). */
export class SandboxGoneError extends SandboxNotFoundError {
  override name = "SandboxGoneError";
}

/** There is no such template or snapshot. */
export class TemplateNotFoundError extends NotFoundError {
  override name = "TemplateNotFoundError";
}

/** There is no such volume. */
export class VolumeNotFoundError extends NotFoundError {
  override name = "VolumeNotFoundError";
}

/** There is no such API key. */
export class KeyNotFoundError extends NotFoundError {
  override name = "KeyNotFoundError";
}

/** There is no such secret. */
export class SecretNotFoundError extends NotFoundError {
  override name = "SecretNotFoundError";
}

/** There is no such process in the sandbox, or it has ended. */
export class ProcessNotFoundError extends NotFoundError {
  override name = "ProcessNotFoundError";
}

/** There is no such session in the sandbox, or it has ended. */
export class SessionNotFoundError extends NotFoundError {
  override name = "SessionNotFoundError";
}

/** There is no such context in the sandbox. */
export class ContextNotFoundError extends NotFoundError {
  override name = "ContextNotFoundError";
}

/** There is nothing at the path in the sandbox or the volume. */
export class FileNotFoundError extends NotFoundError {
  override name = "FileNotFoundError";
}

/** The program of a command is not in the sandbox. */
export class ProgramNotFoundError extends FileNotFoundError {
  override name = "ProgramNotFoundError";
}

/** The port of the sandbox is not published. */
export class PortNotFoundError extends NotFoundError {
  override name = "PortNotFoundError";
}

/** The object's state does not allow this, or a name is already taken (409). */
export class ConflictError extends SandboxError {
  override name = "ConflictError";
}

/** The interpreter of a language cannot be used: it is missing in the sandbox's template, or does not start. */
export class KernelUnavailableError extends ConflictError {
  override name = "KernelUnavailableError";
}

/** The body or the file is too large (413). */
export class TooLargeError extends SandboxError {
  override name = "TooLargeError";
}

/** The server's disk is full (507). */
export class NotEnoughSpaceError extends SandboxError {
  override name = "NotEnoughSpaceError";
}

/** A quota or a rate of the key is used up (429). */
export class RateLimitError extends SandboxError {
  override name = "RateLimitError";
  /** Seconds after which a retry makes sense, if the server sent it. */
  readonly retryAfter: number | undefined;

  constructor(message: string, details: ErrorDetails & { retryAfter?: number | undefined } = {}) {
    super(message, { code: "quota_exceeded", ...details });
    this.retryAfter = details.retryAfter;
  }
}

/** The machine is full, or the server is starting or stopping (503). */
export class UnavailableError extends SandboxError {
  override name = "UnavailableError";
  /** Seconds after which a retry makes sense, if the server sent it. */
  readonly retryAfter: number | undefined;

  constructor(message: string, details: ErrorDetails & { retryAfter?: number | undefined } = {}) {
    super(message, { code: "unavailable", ...details });
    this.retryAfter = details.retryAfter;
  }
}

/** The server failed, or could not reach the sandbox (500, 502). */
export class ServerError extends SandboxError {
  override name = "ServerError";
}

/** The server could not be reached, or the connection broke before the response was complete. */
export class ConnectionError extends SandboxError {
  override name = "ConnectionError";

  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "connection_failed", ...details });
  }
}

/** A timeout: of a request, of the sandbox's response (504), or of a command ({@link CommandTimeoutError}). */
export class TimeoutError extends SandboxError {
  override name = "TimeoutError";

  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "request_timeout", ...details });
  }
}

/** A template could not be built: a step failed. The message names it, with its last lines of output. */
export class BuildError extends SandboxError {
  override name = "BuildError";

  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "build_failed", ...details });
  }
}

/** Classes of single codes, which are narrower than those of the status. */
const BY_CODE: Record<string, new (message: string, details: ErrorDetails) => SandboxError> = {
  build_failed: BuildError,
  sandbox_not_found: SandboxNotFoundError,
  template_not_found: TemplateNotFoundError,
  volume_not_found: VolumeNotFoundError,
  key_not_found: KeyNotFoundError,
  secret_not_found: SecretNotFoundError,
  process_not_found: ProcessNotFoundError,
  session_not_found: SessionNotFoundError,
  context_not_found: ContextNotFoundError,
  path_not_found: FileNotFoundError,
  program_not_found: ProgramNotFoundError,
  port_not_found: PortNotFoundError,
  kernel_unavailable: KernelUnavailableError,
};

/** Returns the error for a problem reported by the server. */
export function errorFromProblem(problem: Problem, status: number, requestId?: string, retryAfter?: number): SandboxError {
  const message = problem.detail ?? problem.title ?? `the server answered with status ${status}`;
  const details = {
    code: problem.code ?? `http_${status}`,
    status,
    requestId: problem.request_id ?? requestId,
    field: problem.field,
    retryAfter: problem.retry_after_s ?? retryAfter,
  };
  const narrow = Object.hasOwn(BY_CODE, details.code) ? BY_CODE[details.code] : undefined;
  // A full disk (507) is one, whichever part of the service detected it.
  if (narrow !== undefined && status < 500) {
    return new narrow(message, details);
  }
  switch (status) {
    case 400:
    case 405:
    case 415:
    case 416:
    case 422:
      return new InvalidArgumentError(message, details);
    case 401:
      return new AuthenticationError(message, details);
    case 403:
      return new ForbiddenError(message, details);
    case 404:
      return new NotFoundError(message, details);
    case 409:
      return new ConflictError(message, details);
    case 410:
      return new SandboxGoneError(message, details);
    case 413:
      return new TooLargeError(message, details);
    case 429:
      return new RateLimitError(message, details);
    case 503:
      return new UnavailableError(message, details);
    case 504:
      return new TimeoutError(message, details);
    case 507:
      return new NotEnoughSpaceError(message, details);
    default:
      return status >= 500 ? new ServerError(message, details) : new SandboxError(message, details);
  }
}
