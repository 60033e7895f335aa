import { describe, expect, it } from "vitest";

import type { Message, Run, StreamEvent } from "../api/types";
import { active, end, hasVersions, initial, openQuestions, prepend, recall, recallQuestions, recallRuns, reduce, round, type MessageItem, type State } from "./state";

const CONVERSATION = "conv_1";
let seq = 0;

function event(type: string, data: object, run: string | null = "run_1"): StreamEvent {
  seq += 1;
  return { seq, type, data, conversation_id: CONVERSATION, ...(run === null ? {} : { run_id: run }), at: "2026-01-01T00:00:00.000Z" } as unknown as StreamEvent;
}

function message(id: string, role: string, text: string, run = "run_1"): Message {
  return { id, role, run_id: run, conversation_id: CONVERSATION, status: "complete", created_at: "2026-01-01T00:00:00.000Z", parts: [{ type: "text", id: `part_${id}`, text }] } as Message;
}

function played(...events: StreamEvent[]): State {
  const state = initial();
  for (const one of events) reduce(state, one);
  return state;
}

const items = (state: State, run = "run_1"): MessageItem[] => (state.runs.get(run)?.items ?? []).filter((item) => item.kind === "message");
const text = (item: MessageItem | undefined): string => (item?.parts ?? []).map((part) => ("text" in part ? part.text : "")).join("");

const begun = () => [
  event("message.created", { message: message("msg_1", "user", "hello") }),
  event("run.queued", { position: 0 }),
  event("run.started", { model: "openai/gpt", agent: "default", agent_version: 1 }),
  event("step.started", { step: 1, kind: "model" }),
  event("message.started", { message_id: "msg_2", role: "assistant" }),
  event("part.started", { message_id: "msg_2", part_id: "part_2", index: 0, kind: "text" }),
  event("part.delta", { part_id: "part_2", delta: "one " }),
];

describe("the state of a conversation", () => {
  it("adds deltas to the answer that is being written", () => {
    const state = played(...begun(), event("part.delta", { part_id: "part_2", delta: "two" }));
    const [, answer] = items(state);
    expect(text(answer)).toBe("one two");
    expect(answer?.streaming).toBe(true);
    expect(active(state)?.status).toBe("processing");
    const run = active(state);
    expect(run === null ? 0 : round(run)).toBe(1);
  });

  it("raises the revisions of the changed item and its run only", () => {
    const state = played(...begun());
    const [question, answer] = items(state);
    const before = [question?.rev, answer?.rev, state.runs.get("run_1")?.rev];
    reduce(state, event("part.delta", { part_id: "part_2", delta: "x" }));
    expect(question?.rev).toBe(before[0]);
    expect(answer?.rev).toBeGreaterThan(before[1] ?? 0);
    expect(state.runs.get("run_1")?.rev).toBeGreaterThan(before[2] ?? 0);
  });

  it("forgets the partial answer of a step that starts again", () => {
    const state = played(...begun(), event("step.reset", { step: 1, reason: "retry" }));
    expect(items(state).map((item) => item.id)).toEqual(["msg_1"]);
  });

  it("shows the end of a run with its usage, and closes its questions", () => {
    const asked = event("approval.requested", { id: "inp_1", call_id: "call_1", name: "write", arguments: {}, scopes: ["once"] });
    const state = played(...begun(), asked);
    expect(openQuestions(state)).toHaveLength(1);
    reduce(state, event("run.failed", { error: { code: "provider_auth", title: "No", detail: "" } }));
    expect(openQuestions(state)).toHaveLength(0);
    expect(state.runs.get("run_1")?.end?.error?.code).toBe("provider_auth");
    expect(active(state)).toBeNull();
    expect(items(state).map((item) => item.id)).toEqual(["msg_1"]);
  });

  it("knows a call from its first letter to its result", () => {
    const state = played(
      ...begun().slice(0, 5),
      event("part.started", { message_id: "msg_2", part_id: "part_3", index: 0, kind: "tool_call", call_id: "call_1", name: "add" }),
      event("part.delta", { part_id: "part_3", delta: '{"a":1' }),
    );
    const call = state.calls.get("call_1");
    expect([call?.written, call?.state]).toEqual(['{"a":1', "written"]);
    reduce(state, event("tool.started", { call_id: "call_1", name: "add", arguments: { a: 1 } }));
    reduce(state, event("tool.progress", { call_id: "call_1", progress: 1, total: 2 }));
    expect([call?.state, call?.progress?.progress]).toEqual(["started", 1]);
    reduce(state, event("tool.completed", { call_id: "call_1", name: "add", state: "done", content: [], is_error: false, duration_ms: 5, truncated: false }));
    expect([call?.state, call?.ms, call?.progress]).toEqual(["done", 5, null]);
  });

  it("replaces everything by a snapshot, and keeps messages that are on their way", () => {
    const state = played(...begun());
    state.sent.set("msg_9", "later");
    const [messages, run] = [[message("msg_5", "user", "new", "run_2")], { id: "run_2", status: "waiting", reason: "approval", agent: "default", agent_version: 1, model: "m" }];
    const partial = { ...message("msg_6", "assistant", "par", "run_2"), status: "partial" };
    reduce(state, event("stream.snapshot", { messages, truncated: true, before: "cursor", active_run: { run, partial_message: partial }, pending_approvals: [], pending_inputs: [], head: 9 }, null));
    expect([...state.runs.keys()]).toEqual(["run_2"]);
    expect([state.epoch, state.before, state.sent.size]).toEqual([1, "cursor", 1]);
    expect(items(state, "run_2").map(text)).toEqual(["new", "par"]);
    reduce(state, event("part.delta", { part_id: "part_msg_6", delta: "tial" }, "run_2"));
    expect(text(items(state, "run_2")[1])).toBe("partial");
  });

  it("puts earlier messages before the known ones, once", () => {
    const state = played(event("stream.snapshot", { messages: [message("msg_3", "assistant", "b")], truncated: true, before: "c", active_run: null, pending_approvals: [], pending_inputs: [], head: 1 }, null));
    prepend(state, { data: [message("msg_1", "user", "0", "run_0"), message("msg_2", "user", "a"), message("msg_3", "assistant", "b")], next_cursor: null });
    expect([...state.runs.keys()]).toEqual(["run_0", "run_1"]);
    expect(items(state).map(text)).toEqual(["a", "b"]);
    expect([state.before, state.truncated]).toEqual([null, false]);
  });

  it("recalls the ends and the decided questions of earlier runs", () => {
    const called = { ...message("msg_2", "assistant", ""), parts: [{ type: "tool_call", id: "part_c", call_id: "call_1", name: "write", arguments: {} }] } as unknown as Message;
    const messages = [message("msg_1", "user", "a"), called, message("msg_3", "assistant", "b")];
    const state = played(event("stream.snapshot", { messages, truncated: false, before: null, active_run: null, pending_approvals: [], pending_inputs: [], head: 1 }, null));
    recallRuns(state, [{ id: "run_1", status: "failed", model: "m", agent: "a", agent_version: 1, usage: { input_tokens: 1, output_tokens: 2 }, error: { code: "poison" } } as Run]);
    expect(state.runs.get("run_1")?.end).toMatchObject({ status: "failed", error: { code: "poison" } });
    const data = { id: "inp_1", call_id: "call_1", name: "write" } as never as { id: string; call_id: string };
    recallQuestions(state, "approval", [{ ...data, run_id: "run_1", status: "denied", answer: { reason: "no" } } as never]);
    recallQuestions(state, "approval", [{ ...data, run_id: "run_1", status: "denied", answer: { reason: "no" } } as never]);
    expect(state.runs.get("run_1")?.items.map((item) => item.kind)).toEqual(["message", "message", "question", "message"]);
  });

  it("recalls the model of a run that ended right after the snapshot", () => {
    const messages = [message("msg_1", "user", "a")];
    const state = played(event("stream.snapshot", { messages, truncated: false, before: null, active_run: null, pending_approvals: [], pending_inputs: [], head: 1 }, null), event("run.completed", { finish_reason: "stop", usage: { input_tokens: 5, output_tokens: 6 } }));
    const before = state.runs.get("run_1")?.rev ?? 0;
    recallRuns(state, [{ id: "run_1", status: "completed", model: "m", agent: "a", agent_version: 1, usage: { input_tokens: 1, output_tokens: 2 } } as Run]);
    expect(state.runs.get("run_1")).toMatchObject({ model: "m", end: { usage: { input_tokens: 5 } }, rev: before + 1 });
  });

  it("recalls the plan and the times of calls, and nothing newer", () => {
    const state = played(...begun());
    recall(state, [event("plan.created", { steps: [{ step: 1, description: "look" }] }), event("plan.step_completed", { step: 1, state: "done" })]);
    expect(state.runs.get("run_1")?.plan?.map((step) => step.state)).toEqual(["done"]);
    expect(state.runs.get("run_1")?.items[1]?.kind).toBe("plan");
  });

  const answered = (run: string, id: string, supersedes: string[]) => [
    event("run.queued", { position: 0, supersedes }, run),
    event("message.completed", { message: message(id, "assistant", id, run) }, run),
    event("run.completed", { usage: {} }, run),
  ];
  const asked = () => [event("message.created", { message: message("msg_1", "user", "hello") }), ...answered("run_1", "msg_2", [])];

  const version = (from: number, until: number) => ({ from: `run_${from}`, until: `run_${until}` });

  it("knows the earlier answers to a message that is answered again", () => {
    const state = played(...asked(), ...answered("run_2", "msg_3", ["msg_2"]));
    expect(state.runs.get("run_2")?.earlier).toEqual([version(1, 2)]);
    for (const one of answered("run_3", "msg_4", ["msg_3"])) reduce(state, one);
    expect(state.runs.get("run_3")?.earlier).toEqual([version(1, 2), version(2, 3)]);
    // An answer that failed at once leaves nothing to replace.
    reduce(state, event("run.queued", { position: 0, supersedes: ["msg_4"] }, "run_4"));
    reduce(state, event("run.failed", {}, "run_4"));
    reduce(state, event("run.queued", { position: 0 }, "run_5"));
    expect(state.runs.get("run_5")?.earlier).toEqual([version(1, 2), version(2, 3), version(3, 4)]);
  });

  it("counts a run and those that resumed it as one answer", () => {
    const part = event("message.completed", { message: message("msg_2", "assistant", "begun") });
    const failed = [event("message.created", { message: message("msg_1", "user", "hello") }), event("run.queued", { position: 0 }), part, event("run.failed", {})];
    const state = played(...failed, ...answered("run_2", "msg_3", []));
    expect(state.runs.get("run_2")?.earlier).toEqual([]);
    for (const one of answered("run_3", "msg_4", ["msg_2", "msg_3"])) reduce(state, one);
    expect(state.runs.get("run_3")?.earlier).toEqual([version(1, 3)]);
  });

  const edited = (run: string, id: string, supersedes: string[]) => [
    event("conversation.updated", { title: "t", status: "idle", supersedes }, null),
    event("message.created", { message: message(id, "user", "edited", run) }, run),
    event("run.queued", { position: 0 }, run),
  ];

  it("knows what an edited message was, and counts no answers from before the edit", () => {
    const state = played(...asked(), ...answered("run_2", "msg_3", ["msg_2"]), ...edited("run_3", "msg_4", ["msg_1", "msg_3"]));
    const run = state.runs.get("run_3");
    expect(run?.earlier).toEqual([version(1, 3)]);
    expect(run !== undefined && hasVersions(run, false)).toBe(true);
    for (const one of answered("run_3", "msg_5", []).slice(1)) reduce(state, one);
    for (const one of answered("run_4", "msg_6", ["msg_5"])) reduce(state, one);
    expect(state.runs.get("run_4")?.earlier).toEqual([version(3, 4)]);
    for (const one of edited("run_5", "msg_7", ["msg_4", "msg_6"])) reduce(state, one);
    expect(state.runs.get("run_5")?.earlier).toEqual([version(1, 3), version(3, 5)]);
  });

  it("takes the plan of an edited message away with it", () => {
    const plan = event("plan.created", { steps: [{ step: 1, description: "look" }] });
    const state = played(...asked(), plan, ...edited("run_2", "msg_3", ["msg_1", "msg_2"]));
    expect(state.runs.get("run_1")?.items).toEqual([]);
    // A message that follows later is no edit.
    const later = played(...asked(), event("conversation.updated", { supersedes: ["msg_1", "msg_2"] }, null), event("conversation.updated", { title: "u" }, null));
    reduce(later, event("message.created", { message: message("msg_3", "user", "new", "run_2") }, "run_2"));
    expect(later.runs.get("run_2")?.earlier).toEqual([]);
  });

  it("keeps the number of items in bounds, and says that earlier ones can be read", () => {
    const state = initial();
    for (let at = 0; at < 4100; at += 1) reduce(state, event("message.created", { message: message(`msg_${at}`, "user", "x", `run_${at}`) }, `run_${at}`));
    expect(state.runs.size).toBeLessThanOrEqual(4000);
    expect([state.trimmed, state.truncated]).toEqual([true, true]);
  });

  it("ignores types that it does not know", () => {
    const state = played(...begun());
    const before = JSON.stringify([...state.runs.values()].map((run) => run.items.length));
    reduce(state, event("future.type", {}));
    expect(JSON.stringify([...state.runs.values()].map((run) => run.items.length))).toBe(before);
    end(state, "run_1", "completed", {});
    expect(state.runs.get("run_1")?.end?.status).toBe("completed");
  });
});
