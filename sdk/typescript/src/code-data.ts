// Tables and charts as data.

import { ServerError } from "./errors.js";
import type { Names } from "./options.js";

/** The MIME type of a table. */
export const TABLE = "application/vnd.belljar.table.v1+json";
/** The MIME type of a chart. */
export const CHART = "application/vnd.belljar.chart.v1+json";

/** A column of a table. */
export interface TableColumn {
  /** Its name. */
  name: string;
  /** The type of its values. */
  type: "integer" | "number" | "boolean" | "datetime" | "duration" | "string" | "other";
}

/** A data frame as data. Times are ISO 8601; missing values are null. */
export interface Table {
  /** Its columns, at most 100. */
  columns: TableColumn[];
  /** Its rows, at most 1,000. */
  rows: unknown[][];
  /** The rows' names, if they have any. */
  index: Record<string, unknown> | null;
  /** Total number of rows. */
  rowCount: number;
  /** Whether rows or columns were omitted. */
  truncated: boolean;
}

/** A series of a line or a scatter chart. */
export interface PointSeries {
  /** Its name in the legend. */
  label: string;
  /** Pairs of x and y: numbers, strings, or times in ISO 8601. */
  points: [unknown, unknown][];
}

/** A bar. */
export interface BarElement {
  /** Its position on the axis. */
  label: string;
  /** The series that it belongs to. */
  group: string;
  /** Its height. */
  value: unknown;
}

/** A wedge of a pie chart. */
export interface PieElement {
  /** Its name. */
  label: string;
  /** Its angle, in degrees. */
  angle: number;
  /** Its radius. */
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

/** The axes of a chart. */
interface Axes {
  /** Its title, if it has one. */
  title: string | null;
  xLabel?: string | null;
  yLabel?: string | null;
  xUnit?: string | null;
  yUnit?: string | null;
}

/** The axes of a chart with two scales. */
interface Scales extends Axes {
  xTicks?: unknown[];
  yTicks?: unknown[];
  xTickLabels?: string[];
  yTickLabels?: string[];
  xScale?: string;
  yScale?: string;
}

/** A line chart. */
export interface LineChart extends Scales {
  type: "line";
  /** Its lines. */
  elements: PointSeries[];
}

/** A scatter chart. */
export interface ScatterChart extends Scales {
  type: "scatter";
  /** Its series of points. */
  elements: PointSeries[];
}

/** A bar chart. */
export interface BarChart extends Axes {
  type: "bar";
  /** Its bars. */
  elements: BarElement[];
}

/** A box-and-whisker chart. */
export interface BoxAndWhiskerChart extends Axes {
  type: "box_and_whisker";
  /** Its boxes. */
  elements: BoxElement[];
}

/** A pie chart. */
export interface PieChart {
  type: "pie";
  /** Its title, if it has one. */
  title: string | null;
  /** Its wedges. */
  elements: PieElement[];
}

/** Several charts of one figure. */
export interface SuperChart {
  type: "superchart";
  /** The title of the figure, if it has one. */
  title: string | null;
  /** Its charts. */
  elements: Chart[];
}

/** A chart of another kind. */
export interface UnknownChart {
  type: "unknown";
  /** Its title, if it has one. */
  title: string | null;
  /** What is known of it, as the kernel sent it. */
  elements: unknown[];
}

/** The data of a chart. `type` tells the kinds apart: `chart.type === "line"` makes it a {@link LineChart}. */
export type Chart = LineChart | ScatterChart | BarChart | BoxAndWhiskerChart | PieChart | SuperChart | UnknownChart;

const KINDS: Names<Record<Chart["type"], true>> = { line: true, scatter: true, bar: true, box_and_whisker: true, pie: true, superchart: true, unknown: true };

/** @internal Parses a table. */
export function tableFromWire(wire: unknown): Table {
  const table = wire as { columns: TableColumn[]; rows: unknown[][]; index?: Record<string, unknown> | null; row_count?: number; truncated?: boolean } | null;
  if (!Array.isArray(table?.columns) || !Array.isArray(table.rows)) {
    throw new ServerError("unexpected response from the server: a table has no columns or rows");
  }
  return { columns: table.columns, rows: table.rows, index: table.index ?? null, rowCount: table.row_count ?? table.rows.length, truncated: table.truncated === true };
}

/** @internal Parses a chart: keys in camel case, values unchanged. */
export function chartFromWire(wire: unknown): Chart {
  if (typeof wire !== "object" || wire === null || typeof (wire as { type?: unknown }).type !== "string") {
    throw new ServerError("unexpected response from the server: a chart has no type");
  }
  const { elements, ...rest } = wire as { elements?: unknown[] };
  const chart = renamed(rest);
  const several = chart["type"] === "superchart";
  const type = Object.hasOwn(KINDS, chart["type"] as string) ? chart["type"] : "unknown";
  return { title: null, ...chart, type, elements: (elements ?? []).map((one) => (several ? chartFromWire(one) : renamed(one as object))) } as unknown as Chart;
}

function renamed(wire: object): Record<string, unknown> {
  return Object.fromEntries(Object.entries(wire).map(([key, value]) => [key.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase()), value]));
}
