import { checkList, names } from "./options.js";
import type { WireScreenReport } from "./wire.js";

/** How much a finding says. */
export type Severity = "low" | "medium" | "high";

/** Options of a screening. */
export interface ScreenOptions {
  /** The only modules that the code may import without a finding. A name stands for the module and all below it. */
  allowModules?: string[];
  /** Modules whose import is a finding. */
  denyModules?: string[];
}

/** What a screening has found. */
export interface ScreenFinding {
  /** The rule's id. */
  rule: string;
  /** The rule's severity. */
  severity: Severity;
  /** First line, from 1. */
  line: number;
  /** First column, from 1, in bytes of UTF-8. */
  column: number;
  /** Last line, from 1. */
  endLine: number;
  /** Column after the last one, from 1, in bytes of UTF-8. */
  endColumn: number;
  /** What the rule has matched. */
  name: string;
  /** Language, if it is in code inside of the code; else null. */
  inside: string | null;
  /** What it means. */
  meaning: string;
  /** What the walls of a sandbox do about it, whether or not it is found. */
  walls: string;
}

/** The result of a screening. It is advice: code can do what its text does not show. */
export interface ScreenReport {
  /** The language as which the code was read. */
  language: string;
  /** The gravest severity of a finding; `low` if there is none. */
  risk: Severity;
  /** Whether all of the code was read. If not, a finding says why. */
  complete: boolean;
  /** The findings, by their places, at most 100. */
  findings: ScreenFinding[];
  /** Number of findings that were left out. */
  leftOut: number;
  /** That this is advice, and no wall. */
  advice: string;
}

/** Names of the options. */
export const SCREEN_OPTIONS = names<ScreenOptions>({ allowModules: true, denyModules: true });

/** Returns the lists of modules as the server takes them. */
export function toModules({ allowModules, denyModules }: ScreenOptions): { allow?: string[]; deny?: string[] } {
  return { allow: checkList("allowModules", allowModules, "numpy"), deny: checkList("denyModules", denyModules, "socket") };
}

/** Converts a report. */
export function screenReport({ left_out: leftOut, findings, risk, ...rest }: WireScreenReport): ScreenReport {
  return {
    ...rest,
    risk: risk as Severity,
    leftOut,
    findings: findings.map(({ end_line: endLine, end_column: endColumn, severity, inside, ...finding }) => ({ ...finding, severity: severity as Severity, endLine, endColumn, inside: inside ?? null })),
  };
}
