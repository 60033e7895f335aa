import { expect, it } from "vitest";

import type { StreamEvent } from "../api/types";
import { phases, steps } from "./timeline";

const event = (second: number, type: string, data: object, attempt = 1) => ({ seq: second, type, data, attempt, at: new Date(second * 1000).toISOString(), conversation_id: "conv_1", run_id: "run_1" }) as unknown as StreamEvent;

const EVENTS = [
  event(0, "run.queued", { position: 0 }),
  event(1, "step.started", { step: 1, kind: "model" }),
  event(1, "context.budget", { unit: "tokens", window: 100, used: 12, remaining: 88 }),
  event(3, "step.completed", { step: 1, usage: { input_tokens: 10, output_tokens: 5, cost: { amount: "0.01", currency: "USD" } } }),
  event(3, "step.started", { step: 2, kind: "tools" }),
  event(4, "approval.requested", { id: "input_1", call_id: "call_1", name: "add" }),
  event(4, "run.waiting", { reason: "approval" }),
  event(9, "step.started", { step: 2, kind: "tools" }, 2),
  event(10, "tool.completed", { call_id: "call_1", name: "add", duration_ms: 700, is_error: false }, 2),
];

it("splits a run into phases without a gap", () => {
  const found = phases(EVENTS, 12_000);
  expect(found.map(({ kind, from, to }) => [kind, from / 1000, to / 1000])).toEqual([
    ["queued", 0, 1],
    ["model", 1, 3],
    ["tools", 3, 4],
    ["human", 4, 9],
    ["tools", 9, 12],
  ]);
});

it("knows the usage, the request and the calls of each step", () => {
  expect(steps(EVENTS)).toMatchObject([
    { number: 1, ms: 2000, usage: { input_tokens: 10, cost: { amount: "0.01" } }, request: { used: 12 }, calls: [] },
    { number: 2, ms: null, usage: null, calls: ["call_1"] },
  ]);
});
