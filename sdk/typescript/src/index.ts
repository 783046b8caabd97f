/**
 * The SDK of Belljar, a sandbox service for AI agents.
 *
 * @packageDocumentation
 */

export { type ApprovalListOptions, Approvals, type Approve, type Deny } from "./approvals.js";
export { Audit, type AuditOptions } from "./audit.js";
export { Belljar, type Me, Sandboxes, type Version } from "./client.js";
export { type CallResults, type CodeCall, type CodeContext, type CodeContextOptions, type CodeStep, type CodeStepOptions, type ContextRef, type Execution, type ExecutionError, KernelDied, type Logs, type Result, type RunCodeOptions, type ToolFunction } from "./code.js";
export type {
  BarChart,
  BarElement,
  BoxAndWhiskerChart,
  BoxElement,
  Chart,
  LineChart,
  PieChart,
  PieElement,
  PointSeries,
  ScatterChart,
  SuperChart,
  Table,
  TableColumn,
  UnknownChart,
} from "./code-data.js";
export { CommandHandle, type HandleOptions } from "./command-handle.js";
export { type BackgroundOptions, type Command, type CommandOptions, Commands, type RunOptions } from "./commands.js";
export type { CallOptions, ConnectionOptions, RequestOptions } from "./config.js";
export {
  AuthenticationError,
  BuildError,
  ConflictError,
  ConnectionError,
  ContextNotFoundError,
  type ErrorDetails,
  FileNotFoundError,
  ForbiddenError,
  InvalidArgumentError,
  KernelUnavailableError,
  KeyNotFoundError,
  NotEnoughSpaceError,
  NotFoundError,
  PortNotFoundError,
  ProcessNotFoundError,
  ProgramNotFoundError,
  RateLimitError,
  SandboxError,
  SandboxGoneError,
  SandboxNotFoundError,
  SecretNotFoundError,
  ServerError,
  SessionNotFoundError,
  TemplateNotFoundError,
  TimeoutError,
  TooLargeError,
  UnavailableError,
  VolumeNotFoundError,
} from "./errors.js";
export {
  type ArchiveFormat,
  type ExtractOptions,
  type FileData,
  Files,
  type ListOptions as FileListOptions,
  type ReadOptions,
  type SearchOptions,
  type SearchResult,
  type SignedUrl,
  VolumeFiles,
  type WriteEntry,
  type WriteOptions,
} from "./files.js";
export type { StreamName } from "./frames.js";
export {
  Git,
  type GitBranches,
  type GitCloneOptions,
  type GitCommit,
  type GitCommitOptions,
  type GitConfigOptions,
  type GitCredentials,
  type GitExchangeOptions,
  type GitFileStatus,
  type GitOptions,
  type GitStatus,
} from "./git.js";
export { type CreatedKey, Keys, type KeyUpdate, type NewKey } from "./keys.js";
export type { TransferOptions, TransferProgress } from "./local-files.js";
export {
  type NetworkCheck,
  type NetworkDecision,
  type NetworkForecast,
  type NetworkOffer,
  NetworkPolicies,
  type NetworkPreset,
  type NetworkPresetHost,
  type NetworkProblem,
} from "./network.js";
export type { OnText, OutputChunk, OutputOffsets } from "./output.js";
export { type Page, type PageOptions, Paginator } from "./paginator.js";
export { type PortList, Ports, type PortToken } from "./ports.js";
export type { InputData, ProcessRef } from "./process-api.js";
export { Pty, PtyHandle, type PtyOptions, type PtyResult, type PtySize } from "./pty.js";
export { waitForFile, waitForPort, waitForProcess, waitForTimeout, waitForURL } from "./ready.js";
export { CommandExitError, type CommandResult, CommandTimeoutError, GitAuthError } from "./result.js";
export { type ConnectOptions, type CreateOptions, ForkError, type ForkOptions, type ListOptions, type NetworkLogOptions, Sandbox, type SandboxToken, type UpdateOptions } from "./sandbox.js";
export type { ScreenFinding, ScreenOptions, ScreenReport, Severity } from "./screen.js";
export { type NewSecret, Secrets, type SecretUpdate } from "./secrets.js";
export { Session, type SessionInfo, type SessionOptions, Sessions } from "./sessions.js";
export { Secret, Volume } from "./shortcuts.js";
export { type StoredTool, StoredTools } from "./stored-tools.js";
export { Template, type TemplateFile, type TemplateOptions } from "./template.js";
export { type BuildEvent, type BuildOptions, Templates } from "./templates.js";
export type { OnData } from "./terminal-connection.js";
export type {
  ApprovalDecision,
  ApprovalInfo,
  ApprovalRule,
  ApprovalState,
  AuditHead,
  AuditRecord,
  AuditVerdict,
  BudgetScope,
  CallingCode,
  DiskUse,
  FileInfo,
  FileKind,
  FileMode,
  ImageInfo,
  InitialFile,
  Isolation,
  IsolationLayer,
  KeyInfo,
  Limits,
  LogEntry,
  LogPage,
  Metrics,
  MountedVolume,
  Network,
  NetworkPolicy,
  NetworkRecord,
  NetworkSecret,
  OnTimeout,
  Outcome,
  PortInfo,
  ProcessInfo,
  Quotas,
  Role,
  SandboxInfo,
  SandboxLimits,
  SandboxPath,
  SandboxState,
  SearchMatch,
  SecretInfo,
  Size,
  Span,
  TemplateInfo,
  Usage,
  VolumeInfo,
  VolumeMount,
} from "./types.js";
export { SandboxProvider } from "./provider.js";
export { type ApplyPatchCallOutput, type CodeExecutionBlock, type ExecutionResult, type FunctionCallOutput, type OpenAIToolOutput, type ShellCallOutput, type ToolCallResult, type ToolDefinition, type ToolMessage, type ToolResultBlock, Tools, type Vendor } from "./tools.js";
export { Volumes } from "./volumes.js";
export { type OnWatchEvent, WatchHandle, type WatchEvent, type WatchOptions } from "./watch.js";
