import { expect, it } from "vitest";

import type { PeriodUsage } from "../api/types";
import { entryOf, isCostUnknown, lastDays, lastHours, series, shown, sumOfDay, sums, type Entry } from "./totals";

const NOW = Date.parse("2026-03-02T00:30:00Z");

const day = (date: string, model: string, input: number, amount?: string): PeriodUsage => ({
  day: date,
  owner_id: "user_1",
  model,
  runs: 2,
  usage: { input_tokens: input, output_tokens: 5, model_calls: 3, ...(amount === undefined ? {} : { cost: { amount, currency: "USD" } }) },
});

const entry = (date: string, group: string, tokens: number): Entry => ({ period: date, group, values: { tokens, cost: 0, runs: 1, calls: 1, hasKnownCost: false } });

it("counts days in UTC, across the end of a month", () => {
  expect(lastDays(3, NOW)).toEqual(["2026-02-28", "2026-03-01", "2026-03-02"]);
});

it("reads rows of usage", () => {
  expect(entryOf(day("2026-03-01", "a/b", 10, "0.25"), "model")).toEqual({ period: "2026-03-01", group: "a/b", values: { tokens: 15, cost: 0.25, runs: 2, calls: 3, hasKnownCost: true } });
  expect(entryOf(day("2026-03-01", "a/b", 10), "user").group).toBe("user_1");
});

it("names hours, and usage without an agent or a conversation", () => {
  const row: PeriodUsage = { day: "2026-03-01", hour: 7, owner_id: "user_1", runs: 0, usage: { input_tokens: 1, output_tokens: 0, model_calls: 1 } };
  expect(entryOf({ ...row, agent: "chat" }, "agent")).toMatchObject({ period: "2026-03-01 07:00", group: "chat" });
  expect([entryOf(row, "agent").group, entryOf(row, "conversation").group]).toEqual(["titles and embeddings", "embeddings"]);
  const hours = lastHours(NOW);
  expect([hours.length, hours[0], hours.at(-1)]).toEqual([24, "2026-03-01 01:00", "2026-03-02 00:00"]);
  const values = hours.map((period) => entry(period, "a", 1).values);
  expect([sumOfDay("2026-03-01", hours, values).tokens, sumOfDay("2026-03-02", hours, values).tokens]).toEqual([23, 1]);
});

it("sums each group by day, largest first, and leaves other days out", () => {
  const days = lastDays(2, NOW);
  const found = series([entry("2026-03-01", "small", 1), entry("2026-03-02", "large", 9), entry("2026-03-01", "large", 1), entry("2026-01-01", "old", 99)], days, "tokens", 5);
  expect(found.map(({ group, periods: values }) => [group, values.map(({ tokens }) => tokens)])).toEqual([
    ["large", [1, 9]],
    ["small", [1, 0]],
  ]);
  expect(sums(found, days)).toEqual({
    total: { tokens: 11, cost: 0, runs: 3, calls: 3, hasKnownCost: false },
    periods: [
      { tokens: 2, cost: 0, runs: 2, calls: 2, hasKnownCost: false },
      { tokens: 9, cost: 0, runs: 1, calls: 1, hasKnownCost: false },
    ],
  });
});

it("joins the smallest groups without losing any usage", () => {
  const days = lastDays(1, NOW);
  const entries = [5, 4, 3, 2, 1].map((tokens) => entry("2026-03-02", `g${tokens}`, tokens));
  const found = series(entries, days, "tokens", 3);
  expect(found.map(({ group, total }) => [group, total.tokens])).toEqual([
    ["g5", 5],
    ["g4", 4],
    ["others", 6],
  ]);
});

it("shows small costs with their digits", () => {
  expect([shown("cost", 0), shown("cost", 0.0123), shown("cost", 1234.5), shown("tokens", 12_345)]).toEqual(["$0.00", "$0.0123", "$1,234.50", "12,345"]);
});

it("knows use without a known price from use that costs nothing", () => {
  const values = (amount?: string) => entryOf(day("2026-03-01", "a/b", 10, amount), "model").values;
  expect([isCostUnknown(values()), isCostUnknown(values("0")), isCostUnknown(values("0.1"))]).toEqual([true, false, false]);
  const days = lastDays(3, NOW);
  const mixed = [day("2026-03-01", "a/b", 10), day("2026-03-02", "a/b", 10, "0.1")].map((row) => entryOf(row, "model"));
  expect(series(mixed, days, "cost", 5).map(({ total }) => isCostUnknown(total))).toEqual([false]);
});
