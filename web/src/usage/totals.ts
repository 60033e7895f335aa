// Sums of usage, for charts and tables. Knows neither page nor network.

import type { PeriodUsage } from "../api/types";

export const MEASURES = ["tokens", "cost", "runs", "calls"] as const;
export type Measure = (typeof MEASURES)[number];
export interface Values extends Record<Measure, number> {
  /** Whether some of the cost is known: models without a known price cost nothing in the figures. */
  hasKnownCost: boolean;
}

/** Usage of one group in one day or hour. */
export interface Entry {
  /** The day or hour in UTC, such as `2026-01-31` or `2026-01-31 13:00`. */
  period: string;
  group: string;
  values: Values;
}

/** One line of the chart and of the table. */
export interface Series {
  group: string;
  total: Values;
  /** The values of each day or hour, in their order. */
  periods: Values[];
}

const DAY_MS = 86_400_000;
const HOUR_MS = 3_600_000;
const HOURS = 24;
export const OTHERS = "others";
/** Titles and embeddings, which belong to no agent. */
export const NO_AGENT = "titles and embeddings";
/** Embeddings, which belong to no conversation. */
export const NO_CONVERSATION = "embeddings";

const none = (): Values => ({ tokens: 0, cost: 0, runs: 0, calls: 0, hasKnownCost: false });

function add(sum: Values, more: Values): void {
  for (const measure of MEASURES) sum[measure] += more[measure];
  sum.hasKnownCost ||= more.hasKnownCost;
}

function valuesOf(usage: PeriodUsage["usage"] | undefined, runs: number): Values {
  return {
    tokens: (usage?.input_tokens ?? 0) + (usage?.output_tokens ?? 0),
    cost: Number(usage?.cost?.amount ?? 0),
    runs,
    calls: usage?.model_calls ?? 0,
    hasKnownCost: usage?.cost !== undefined,
  };
}

export type Group = "model" | "agent" | "conversation" | "user";

function groupOf(row: PeriodUsage, group: Group): string {
  switch (group) {
    case "model":
      return row.model ?? "";
    case "agent":
      return row.agent ?? NO_AGENT;
    case "conversation":
      return row.conversation_id ?? NO_CONVERSATION;
    case "user":
      return row.owner_id;
  }
}

const nameOfHour = (day: string, hour: number): string => `${day} ${String(hour).padStart(2, "0")}:00`;

export const entryOf = (row: PeriodUsage, group: Group): Entry => ({
  period: row.hour === undefined ? row.day : nameOfHour(row.day, row.hour),
  group: groupOf(row, group),
  values: valuesOf(row.usage, row.runs),
});

/** Returns the last 24 hours in UTC, oldest first, the present one included. */
export function lastHours(now: number): string[] {
  const hours = Array.from({ length: HOURS }, (_, at) => new Date(now - (HOURS - 1 - at) * HOUR_MS));
  return hours.map((hour) => nameOfHour(hour.toISOString().slice(0, 10), hour.getUTCHours()));
}

/** Returns the last `count` days in UTC, oldest first, today included. */
export function lastDays(count: number, now: number): string[] {
  return Array.from({ length: count }, (_, at) => new Date(now - (count - 1 - at) * DAY_MS).toISOString().slice(0, 10));
}

/** Groups the entries of `periods`, largest first. Groups beyond the first `most` become one. Other periods are left out. */
export function series(entries: readonly Entry[], periods: readonly string[], measure: Measure, most: number): Series[] {
  const place = new Map(periods.map((period, at) => [period, at]));
  const groups = new Map<string, Series>();
  for (const { period, group, values } of entries) {
    const at = place.get(period);
    if (at === undefined) continue;
    let found = groups.get(group);
    if (found === undefined) groups.set(group, (found = { group, total: none(), periods: periods.map(none) }));
    add(found.total, values);
    add(found.periods[at] ?? none(), values);
  }
  const sorted = [...groups.values()].sort((one, other) => other.total[measure] - one.total[measure] || one.group.localeCompare(other.group));
  if (sorted.length <= most) return sorted;
  const rest: Series = { group: OTHERS, total: none(), periods: periods.map(none) };
  for (const small of sorted.slice(most - 1)) {
    add(rest.total, small.total);
    small.periods.forEach((values, at) => add(rest.periods[at] ?? none(), values));
  }
  return [...sorted.slice(0, most - 1), rest];
}

/** Returns the sums of all groups, by period and in total. */
export function sums(all: readonly Series[], periods: readonly string[]): { total: Values; periods: Values[] } {
  const total = none();
  const byPeriod = periods.map(none);
  for (const one of all) {
    add(total, one.total);
    one.periods.forEach((values, at) => add(byPeriod[at] ?? none(), values));
  }
  return { total, periods: byPeriod };
}

/** Returns the sum of the periods of a day. */
export function sumOfDay(day: string, periods: readonly string[], values: readonly Values[]): Values {
  const sum = none();
  values.forEach((one, at) => periods[at]?.startsWith(day) === true && add(sum, one));
  return sum;
}

/** Returns a value as people read it. */
export function shown(measure: Measure, value: number): string {
  if (measure !== "cost") return value.toLocaleString("en");
  const digits = value > 0 && value < 0.1 ? 4 : 2;
  return `$${value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

/** Returns whether a cost is unknown: there was use, and no price of it is known. */
export const isCostUnknown = ({ hasKnownCost, tokens, calls }: Values): boolean => !hasKnownCost && tokens + calls > 0;
