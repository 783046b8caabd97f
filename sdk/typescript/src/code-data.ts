// Tables and charts as data.

import { ServerError } from "./errors.js";

/** The MIME type of a table. */
export const TABLE = "application/vnd.belljar.table.v1+json";
/** The MIME type of a chart. */
export const CHART = "application/vnd.belljar.chart.v1+json";

/** A column of a table. */
export interface TableColumn {
  /** Its name. */
  name: string;
  /** What its values are. */
  type: "integer" | "number" | "boolean" | "datetime" | "duration" | "string" | "other";
}

/** A data frame as data. Times are ISO 8601; what is missing is null. */
export interface Table {
  /** Its columns, at most 100. */
  columns: TableColumn[];
  /** Its rows, at most 1,000. */
  rows: unknown[][];
  /** The rows' names, where they have some. */
  index: Record<string, unknown> | null;
  /** How many rows there are in all. */
  rowCount: number;
  /** Whether rows or columns were left out. */
  truncated: boolean;
}

/** A series of a line or a scatter chart. */
export interface PointSeries {
  /** Its name in the legend. */
  label: string;
  /** Pairs of x and y: numbers, texts, or times in ISO 8601. */
  points: [unknown, unknown][];
}

/** A bar. */
export interface BarElement {
  /** Where it stands. */
  label: string;
  /** The series that it belongs to. */
  group: string;
  /** How high it is. */
  value: unknown;
}

/** A piece of a pie. */
export interface PieElement {
  /** Its name. */
  label: string;
  /** How wide it is, in degrees. */
  angle: number;
  /** How far it reaches. */
  radius: number;
}

/** A box of a box-and-whisker chart. */
export interface BoxElement {
  label: string;
  min: number;
  firstQuartile: number;
  median: number;
  thirdQuartile: number;
  max: number;
  outliers: number[];
}

interface Axes {
  /** Its title, if it has one. */
  title: string | null;
  xLabel?: string | null;
  yLabel?: string | null;
  xUnit?: string | null;
  yUnit?: string | null;
}

interface Scales extends Axes {
  xTicks?: unknown[];
  yTicks?: unknown[];
  xTickLabels?: string[];
  yTickLabels?: string[];
  xScale?: string;
  yScale?: string;
}

/** What a chart shows. */
export type Chart =
  | (Scales & { type: "line" | "scatter"; elements: PointSeries[] })
  | (Axes & { type: "bar"; elements: BarElement[] })
  | (Axes & { type: "box_and_whisker"; elements: BoxElement[] })
  | { type: "pie"; title: string | null; elements: PieElement[] }
  | { type: "superchart"; title: string | null; elements: Chart[] }
  | { type: "unknown"; title: string | null; elements: unknown[] };

/** @internal A table of the wire. */
export function tableFromWire(wire: unknown): Table {
  const table = wire as { columns: TableColumn[]; rows: unknown[][]; index?: Record<string, unknown> | null; row_count?: number; truncated?: boolean } | null;
  if (!Array.isArray(table?.columns) || !Array.isArray(table.rows)) {
    throw new ServerError("the server's answer is not as expected: a table has no columns or rows");
  }
  return { columns: table.columns, rows: table.rows, index: table.index ?? null, rowCount: table.row_count ?? table.rows.length, truncated: table.truncated === true };
}

/** @internal A chart of the wire: its keys in this language's manner, its values as they are. */
export function chartFromWire(wire: unknown): Chart {
  if (typeof wire !== "object" || wire === null || typeof (wire as { type?: unknown }).type !== "string") {
    throw new ServerError("the server's answer is not as expected: a chart has no type");
  }
  const { elements, ...rest } = wire as { elements?: unknown[] };
  const chart = renamed(rest);
  const several = chart["type"] === "superchart";
  return { title: null, ...chart, elements: (elements ?? []).map((one) => (several ? chartFromWire(one) : renamed(one as object))) } as unknown as Chart;
}

function renamed(wire: object): Record<string, unknown> {
  return Object.fromEntries(Object.entries(wire).map(([key, value]) => [key.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase()), value]));
}
