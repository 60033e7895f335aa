// Sums of usage, for charts and tables. Knows neither page nor network.

import type { DayUsage, Run } from "../api/types";

export const MEASURES = ["tokens", "cost", "runs", "calls"] as const;
export type Measure = (typeof MEASURES)[number];
export interface Values extends Record<Measure, number> {
  /** Whether some of the cost is known: models without a known price cost nothing in the figures. */
  hasKnownCost: boolean;
}

/** Usage of one group on one day. */
export interface Entry {
  /** The day in UTC, such as `2026-01-31`. */
  day: string;
  group: string;
  values: Values;
}

/** One line of the chart and of the table. */
export interface Series {
  group: string;
  total: Values;
  /** The values of each day, in the order of the days. */
  days: Values[];
}

const DAY_MS = 86_400_000;
export const OTHERS = "others";

const none = (): Values => ({ tokens: 0, cost: 0, runs: 0, calls: 0, hasKnownCost: false });

function add(sum: Values, more: Values): void {
  for (const measure of MEASURES) sum[measure] += more[measure];
  sum.hasKnownCost ||= more.hasKnownCost;
}

function valuesOf(usage: DayUsage["usage"] | undefined, runs: number): Values {
  return {
    tokens: (usage?.input_tokens ?? 0) + (usage?.output_tokens ?? 0),
    cost: Number(usage?.cost?.amount ?? 0),
    runs,
    calls: usage?.model_calls ?? 0,
    hasKnownCost: usage?.cost !== undefined,
  };
}

export const entryOfDay = (row: DayUsage, by: "model" | "owner"): Entry => ({
  day: row.day,
  group: by === "model" ? row.model : row.owner_id,
  values: valuesOf(row.usage, row.runs),
});

export const entryOfRun = (run: Run): Entry => ({ day: run.created_at.slice(0, 10), group: run.agent, values: valuesOf(run.usage, 1) });

/** Returns the last `count` days in UTC, oldest first, today included. */
export function lastDays(count: number, now: number): string[] {
  return Array.from({ length: count }, (_, at) => new Date(now - (count - 1 - at) * DAY_MS).toISOString().slice(0, 10));
}

/** Groups the entries of `days`, largest first. Groups beyond the first `most` become one. Other days are left out. */
export function series(entries: readonly Entry[], days: readonly string[], measure: Measure, most: number): Series[] {
  const place = new Map(days.map((day, at) => [day, at]));
  const groups = new Map<string, Series>();
  for (const { day, group, values } of entries) {
    const at = place.get(day);
    if (at === undefined) continue;
    let found = groups.get(group);
    if (found === undefined) groups.set(group, (found = { group, total: none(), days: days.map(none) }));
    add(found.total, values);
    add(found.days[at] ?? none(), values);
  }
  const sorted = [...groups.values()].sort((one, other) => other.total[measure] - one.total[measure] || one.group.localeCompare(other.group));
  if (sorted.length <= most) return sorted;
  const rest: Series = { group: OTHERS, total: none(), days: days.map(none) };
  for (const small of sorted.slice(most - 1)) {
    add(rest.total, small.total);
    small.days.forEach((values, at) => add(rest.days[at] ?? none(), values));
  }
  return [...sorted.slice(0, most - 1), rest];
}

/** Returns the sums of all groups, by day and in total. */
export function sums(all: readonly Series[], days: readonly string[]): { total: Values; days: Values[] } {
  const total = none();
  const byDay = days.map(none);
  for (const one of all) {
    add(total, one.total);
    one.days.forEach((values, at) => add(byDay[at] ?? none(), values));
  }
  return { total, days: byDay };
}

/** Returns a value as people read it. */
export function shown(measure: Measure, value: number): string {
  if (measure !== "cost") return value.toLocaleString("en");
  const digits = value > 0 && value < 0.1 ? 4 : 2;
  return `$${value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

/** Returns whether a cost is unknown: there was use, and no price of it is known. */
export const isCostUnknown = ({ hasKnownCost, tokens, calls }: Values): boolean => !hasKnownCost && tokens + calls > 0;
