import { expect, it } from "vitest";

import type { Setting } from "../api/types";
import { limitOfProfile, limitOfSettings, stricter } from "./limits";

it("reads the limits of agents and of the server", () => {
  expect([limitOfProfile({ budget: { day: { tokens: 5000, usd: 2 } } }), limitOfProfile({ budget: { run_usd: 1 } }), limitOfProfile(undefined)]).toEqual([{ tokens: 5000, usd: 2 }, {}, {}]);
  const settings = [{ name: "limits.max_day_tokens_per_owner", value: 900 }, { name: "limits.max_day_usd_per_owner" }] as Setting[];
  expect(limitOfSettings(settings)).toEqual({ tokens: 900 });
});

it("takes the stricter figure of each kind", () => {
  expect(stricter({ tokens: 900 }, { tokens: 5000, usd: 2 })).toEqual({ tokens: 900, usd: 2 });
  expect(stricter({}, {})).toEqual({});
});
