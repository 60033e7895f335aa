import { describe, expect, it } from "vitest";

import type { StreamEvent } from "../api/types";
import { phases, steps } from "./timeline";

const event = (second: number, type: string, data: object = {}, attempt = 1) =>
  ({ seq: second, type, data, attempt, at: new Date(second * 1000).toISOString(), conversation_id: "conv_1", run_id: "run_1" }) as unknown as StreamEvent;

/** The phases with their seconds. */
const shown = (events: StreamEvent[], end: number) => phases(events, end * 1000).map(({ kind, from, to }) => [kind, from / 1000, to / 1000]);

/** A run in the queue for three seconds, with the events of its first claim. */
const BEGIN = [
  event(0, "run.queued", { position: 0 }, 0),
  event(0, "message.created", { message: { role: "user" } }, 0),
  event(3, "run.started", { model: "demo/demo", agent: "default", agent_version: 1 }),
];

/** A model step that calls a tool, and the begin of the step of its calls. */
const CALLS = [
  event(3, "step.started", { step: 1, kind: "model" }),
  event(3, "context.budget", { unit: "tokens", window: 100, used: 12, remaining: 88 }),
  event(4, "message.started", { message_id: "msg_1", role: "assistant" }),
  event(5, "message.completed", { message: {} }),
  event(5, "step.completed", { step: 1, usage: { input_tokens: 10, output_tokens: 5, cost: { amount: "0.01", currency: "USD" } } }),
  event(5, "step.started", { step: 2, kind: "tools" }),
];

const RESULT = { call_id: "call_1", name: "add", duration_ms: 700, is_error: false };

describe("phases", () => {
  it("show a wait for a decision, and the wait for a worker after it", () => {
    const events = [
      ...BEGIN,
      ...CALLS,
      event(6, "approval.requested", { id: "input_1", call_id: "call_1", name: "add" }),
      event(6, "run.waiting", { reason: "approval", id: "input_1" }),
      event(9, "approval.resolved", { id: "input_1", status: "allowed" }),
      event(10, "run.resumed", { cause: "request" }, 2),
      event(10, "tool.started", { call_id: "call_1", name: "add" }, 2),
      event(11, "tool.completed", RESULT, 2),
      event(11, "step.completed", { step: 2 }, 2),
      event(11, "step.started", { step: 3, kind: "model" }, 2),
      event(13, "run.completed", { finish_reason: "stop" }, 2),
    ];
    expect(shown(events, 13)).toEqual([
      ["queued", 0, 3],
      ["model", 3, 5],
      ["tools", 5, 6],
      ["human", 6, 9],
      ["queued", 9, 10],
      ["tools", 10, 11],
      ["model", 11, 13],
    ]);
  });

  it("show the time that a crash cost, from the last event of the lost worker", () => {
    const events = [
      ...BEGIN,
      event(3, "step.started", { step: 1, kind: "model" }),
      event(5, "part.delta", { part_id: "part_1", delta: "Hel" }),
      // A request adds a message to the run, while no worker holds it.
      event(9, "message.created", { message: { role: "user" } }),
      event(17, "run.resumed", { cause: "crash" }, 2),
      event(17, "step.reset", { step: 1, reason: "crash" }, 2),
      event(17, "step.started", { step: 1, kind: "model" }, 2),
      event(18, "part.delta", { part_id: "part_2", delta: "Hello" }, 2),
      event(20, "run.completed", { finish_reason: "stop" }, 2),
    ];
    expect(shown(events, 20)).toEqual([
      ["queued", 0, 3],
      ["model", 3, 5],
      ["takeover", 5, 17],
      ["model", 17, 20],
    ]);
  });

  it("continue the calls of a step after a crash", () => {
    const events = [...BEGIN, ...CALLS, event(6, "tool.started", { call_id: "call_1", name: "add" }), event(18, "run.resumed", { cause: "crash" }, 2), event(18, "tool.started", { call_id: "call_1", name: "add" }, 2), event(19, "tool.completed", RESULT, 2)];
    expect(shown(events, 19)).toEqual([
      ["queued", 0, 3],
      ["model", 3, 5],
      ["tools", 5, 6],
      ["takeover", 6, 18],
      ["tools", 18, 19],
    ]);
  });

  it("show the takeover of a run that ends with it", () => {
    const poison = [...BEGIN, event(3, "step.started", { step: 1, kind: "model" }), event(4, "message.started", { message_id: "msg_1" }), event(15, "run.failed", { error: { code: "poison" } }, 2)];
    expect(shown(poison, 15).at(-1)).toEqual(["takeover", 4, 15]);
    const interrupted = [...poison.slice(0, -1), event(15, "step.reset", { step: 1, reason: "crash" }, 2), event(15, "run.failed", { error: { code: "interrupted" } }, 2)];
    expect(shown(interrupted, 15).at(-1)).toEqual(["takeover", 4, 15]);
  });

  it("show a hand-over between processes as a wait for a worker, not as a takeover", () => {
    const events = [
      ...BEGIN,
      event(3, "step.started", { step: 1, kind: "model" }),
      event(5, "step.reset", { step: 1, reason: "handed_back" }),
      event(6, "run.resumed", { cause: "handed_back" }, 2),
      event(6, "step.started", { step: 1, kind: "model" }, 2),
      event(8, "run.completed", { finish_reason: "stop" }, 2),
    ];
    expect(shown(events, 8)).toEqual([
      ["queued", 0, 3],
      ["model", 3, 5],
      ["queued", 5, 6],
      ["model", 6, 8],
    ]);
  });

  it("show waits between tries of a model call", () => {
    const error = { title: "The provider is overloaded" };
    const events = [
      ...BEGIN,
      event(3, "step.started", { step: 1, kind: "model" }),
      event(4, "step.reset", { step: 1, reason: "retry" }),
      event(4, "run.retrying", { after_ms: 3000, error }),
      event(4, "run.waiting", { reason: "backoff" }),
      event(7, "run.resumed", { cause: "timer" }, 2),
      event(7, "step.started", { step: 1, kind: "model" }, 2),
      event(9, "run.completed", { finish_reason: "stop" }, 2),
    ];
    expect(shown(events, 9)).toEqual([
      ["queued", 0, 3],
      ["model", 3, 4],
      ["backoff", 4, 7],
      ["model", 7, 9],
    ]);
    expect(steps(events)).toMatchObject([{ number: 1, failedAttempts: ["The provider is overloaded"] }]);
  });

  it("count a crash before the first event of a worker as part of the queue", () => {
    const [queued, message] = BEGIN as [StreamEvent, StreamEvent];
    const events = [queued, message, event(13, "run.started", {}, 2), event(13, "step.started", { step: 1, kind: "model" }, 2)];
    expect(shown(events, 14)).toEqual([
      ["queued", 0, 13],
      ["model", 13, 14],
    ]);
  });
});

it("knows the usage, the request and the calls of each step", () => {
  const events = [...BEGIN, ...CALLS, event(6, "approval.requested", { id: "input_1", call_id: "call_1", name: "add" }), event(6, "run.waiting", { reason: "approval" })];
  expect(steps(events)).toMatchObject([
    { number: 1, ms: 2000, usage: { input_tokens: 10, cost: { amount: "0.01" } }, request: { used: 12 }, calls: [] },
    { number: 2, ms: null, usage: null, calls: ["call_1"] },
  ]);
});
