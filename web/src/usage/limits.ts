// Budgets: of agents for a run, a conversation and a day, and of the server for a day of each user. Knows neither page nor network.

import type { Setting } from "../api/types";

/** A limit in tokens, in US dollars, or in both. */
export interface Limit {
  tokens?: number;
  usd?: number;
}

const isLimit = (value: unknown): value is number => typeof value === "number" && value > 0;

/** The limits that an agent has. */
export interface Budgets {
  run: Limit;
  conversation: Limit;
  day: Limit;
}

const limit = (tokens: unknown, usd: unknown): Limit => ({ ...(isLimit(tokens) && { tokens }), ...(isLimit(usd) && { usd }) });

/** Returns the limits that a profile of an agent sets. */
export function budgetsOf(profile: Record<string, unknown> | undefined): Budgets {
  const { run_usd: runUsd, conversation, day } = (profile?.budget ?? {}) as { run_usd?: unknown; conversation?: Limit; day?: Limit };
  return { run: limit(profile?.max_run_tokens, runUsd), conversation: limit(conversation?.tokens, conversation?.usd), day: limit(day?.tokens, day?.usd) };
}

/** Returns whether an agent has any limit. */
export const hasBudget = (budgets: Budgets): boolean => Object.values(budgets).some((one: Limit) => one.tokens !== undefined || one.usd !== undefined);

/** Returns the limit of a day that the settings of the server set for each user. */
export function limitOfSettings(settings: readonly Setting[]): Limit {
  const of = (name: string) => settings.find((setting) => setting.name === name)?.value;
  const [tokens, usd] = [of("limits.max_day_tokens_per_owner"), of("limits.max_day_usd_per_owner")];
  return limit(tokens, usd);
}

/** Returns the stricter one of two limits, for each of their figures. */
export function stricter(one: Limit, other: Limit): Limit {
  const [tokens, usd] = [Math.min(one.tokens ?? Infinity, other.tokens ?? Infinity), Math.min(one.usd ?? Infinity, other.usd ?? Infinity)];
  return { ...(tokens < Infinity && { tokens }), ...(usd < Infinity && { usd }) };
}
