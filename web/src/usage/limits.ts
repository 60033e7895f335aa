// The limits of a day: of the server for each user, and of agents. Knows neither page nor network.

import type { Setting } from "../api/types";

export interface DayLimit {
  tokens?: number;
  usd?: number;
}

const isLimit = (value: unknown): value is number => typeof value === "number" && value > 0;

/** Returns the limit of a day that a profile of an agent sets. */
export function limitOfProfile(profile: Record<string, unknown> | undefined): DayLimit {
  const day = (profile?.budget as { day?: DayLimit } | undefined)?.day ?? {};
  return { ...(isLimit(day.tokens) && { tokens: day.tokens }), ...(isLimit(day.usd) && { usd: day.usd }) };
}

/** Returns the limit of a day that the settings of the server set for each user. */
export function limitOfSettings(settings: readonly Setting[]): DayLimit {
  const of = (name: string) => settings.find((setting) => setting.name === name)?.value;
  const [tokens, usd] = [of("limits.max_day_tokens_per_owner"), of("limits.max_day_usd_per_owner")];
  return { ...(isLimit(tokens) && { tokens }), ...(isLimit(usd) && { usd }) };
}

/** Returns the stricter one of two limits, for each of their figures. */
export function stricter(one: DayLimit, other: DayLimit): DayLimit {
  const [tokens, usd] = [Math.min(one.tokens ?? Infinity, other.tokens ?? Infinity), Math.min(one.usd ?? Infinity, other.usd ?? Infinity)];
  return { ...(tokens < Infinity && { tokens }), ...(usd < Infinity && { usd }) };
}
