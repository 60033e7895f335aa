import { expect, it } from "vitest";

import type { Setting } from "../api/types";
import { budgetsOf, hasBudget, limitOfSettings, stricter } from "./limits";

it("reads the limits of agents and of the server", () => {
  const profile = { max_run_tokens: 900, budget: { run_usd: 1, conversation: { usd: 5 }, day: { tokens: 5000, usd: 2 } } };
  expect(budgetsOf(profile)).toEqual({ run: { tokens: 900, usd: 1 }, conversation: { usd: 5 }, day: { tokens: 5000, usd: 2 } });
  expect([profile, { max_run_tokens: 0, budget: { on_day_spent: "fail" } }, undefined].map((one) => hasBudget(budgetsOf(one)))).toEqual([true, false, false]);
  const settings = [{ name: "limits.max_day_tokens_per_owner", value: 900 }, { name: "limits.max_day_usd_per_owner" }] as Setting[];
  expect(limitOfSettings(settings)).toEqual({ tokens: 900 });
});

it("takes the stricter figure of each kind", () => {
  expect(stricter({ tokens: 900 }, { tokens: 5000, usd: 2 })).toEqual({ tokens: 900, usd: 2 });
  expect(stricter({}, {})).toEqual({});
});
