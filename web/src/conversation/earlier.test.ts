import { afterEach, expect, it, vi } from "vitest";

import type { Message, Run, StreamEvent } from "../api/types";
import { beginningOf, earlierVersion, recallEarlier, replacedRuns, type Beginning } from "./earlier";
import { initial, reduce, type Earlier, type State } from "./state";

const message = (id: string, role: string, run: string) => ({ id, role, run_id: run, status: "complete", created_at: "2026-01-01T00:00:00Z", parts: [{ type: "text", id: `part_${id}`, text: id }] }) as unknown as Message;
const event = (seq: number, type: string, run: string | undefined, data: object) => ({ seq, type, data, run_id: run, conversation_id: "conv_1", at: "2026-01-01T00:00:00Z" }) as unknown as StreamEvent;
const listed = (id: string, more: object = {}) => ({ id, status: "completed", trace_id: "t", conversation_id: "conv_1", ...more }) as Run;
const version = (from: number, until: number): Earlier => ({ from: `run_${from}`, until: `run_${until}` });

function shown(...messages: Message[]): State {
  const state = initial();
  for (const one of messages) reduce(state, event(1, "message.completed", one.run_id, { message: one }));
  return state;
}

/** Recalls the versions of a conversation whose runs are numbered from 1, with the beginnings of those that have any. */
function recalled(state: State, runs: Run[], begun: Record<string, Partial<Beginning>>): (Earlier[] | undefined)[] {
  const beginnings = new Map(Object.entries(begun).map(([id, one]) => [id, { userMessage: null, replaces: [], ...one }]));
  recallEarlier(state, replacedRuns(state, [...runs].reverse()), beginnings);
  return runs.map(({ id }) => state.runs.get(id)?.earlier);
}

it("recalls earlier answers, without those that failed or were copied", () => {
  const messages = [message("q", "user", "run_1"), message("c", "assistant", "run_4")];
  const runs = [listed("run_1"), listed("run_2", { status: "failed" }), listed("run_3", { status: "cancelled", usage: { output_tokens: 3 } }), listed("run_4")];
  const begun = { run_2: { replaces: ["a"] }, run_3: { replaces: ["x"] }, run_4: { replaces: ["b"] } };
  expect(recalled(shown(...messages), runs, begun).at(-1)).toEqual([version(1, 2), version(3, 4)]);
  const copied = [listed("run_1", { trace_id: undefined }), listed("run_2"), listed("run_4")];
  expect(recalled(shown(...messages), copied, { run_2: { replaces: ["a"] }, run_4: { replaces: ["b"] } }).at(-1)).toEqual([version(2, 4)]);
});

it("counts a resumed run as one answer after a reload", () => {
  const state = shown(message("q", "user", "run_1"), message("c", "assistant", "run_3"));
  const runs = [listed("run_1", { status: "failed", usage: { output_tokens: 3 } }), listed("run_2"), listed("run_3")];
  expect(recalled(state, runs, { run_2: {}, run_3: { replaces: ["a", "b"] } }).at(-1)).toEqual([version(1, 3)]);
});

it("recalls edited messages with all that followed them", () => {
  const runs = [1, 2, 3, 4].map((at) => listed(`run_${at}`));
  const state = () => shown(message("q4", "user", "run_4"), message("a4", "assistant", "run_4"));
  const begun = { run_1: { userMessage: "q1" }, run_2: { userMessage: "q2" }, run_4: { userMessage: "q4", replaces: ["q1", "a1", "q3", "a3"] } };
  expect(recalled(state(), runs, { ...begun, run_3: { userMessage: "q3", replaces: ["q2", "a2"] } }).at(-1)).toEqual([version(1, 4)]);
  expect(recalled(state(), runs, { ...begun, run_3: { userMessage: "q3", replaces: ["q1", "a1", "q2", "a2"] }, run_4: { userMessage: "q4", replaces: ["q3", "a3"] } }).at(-1)).toEqual([version(1, 3), version(3, 4)]);
  // A run whose messages are on an earlier page is not replaced.
  expect(recalled({ ...state(), before: "cursor" }, runs, begun).at(-1)).toEqual([]);
});

afterEach(() => vi.unstubAllGlobals());

/** Serves a log to the requests of the page. */
function serve(log: StreamEvent[]): void {
  vi.stubGlobal("fetch", (url: string) => {
    const address = new URL(url, "http://page.test");
    const run = /runs\/(\w+)\/events/.exec(address.pathname)?.[1];
    const [after, limit] = ["after", "limit"].map((name) => Number(address.searchParams.get(name) ?? 0)) as [number, number];
    const data = (log as (StreamEvent & { seq: number })[]).filter((one) => one.seq > after && (run === undefined || one.run_id === run)).slice(0, limit);
    return Promise.resolve(new Response(JSON.stringify({ data, next_cursor: null })));
  });
}

const log = [
  event(1, "message.created", "run_1", { message: message("q", "user", "run_1") }),
  event(2, "run.queued", "run_1", { position: 0 }),
  event(3, "message.completed", "run_1", { message: message("a", "assistant", "run_1") }),
  event(4, "run.queued", "run_2", { position: 0, supersedes: ["a"] }),
  event(5, "message.completed", "run_2", { message: message("b", "assistant", "run_2") }),
  event(6, "conversation.updated", undefined, { status: "idle", supersedes: ["q", "b"] }),
  event(7, "message.created", "run_3", { message: message("r", "user", "run_3") }),
  event(8, "run.queued", "run_3", { position: 0 }),
];

it("reads what a run replaced", async () => {
  serve(log);
  const begun = await Promise.all(["run_1", "run_2", "run_3"].map((id) => beginningOf(listed(id))));
  expect(begun).toEqual([
    { userMessage: "q", replaces: [] },
    { userMessage: null, replaces: ["a"] },
    { userMessage: "r", replaces: ["q", "b"] },
  ]);
});

it("shows a version as it was, without what is still there", async () => {
  serve(log);
  const ids = async (from: number, until: number, current: string[]) => {
    const state = await earlierVersion(version(from, until), new Map(current.map((id) => [id, null])));
    return [...state.runs.values()].flatMap((run) => run.items.map((item) => item.key));
  };
  expect(await ids(1, 3, ["r"])).toEqual(["q", "b"]);
  expect(await ids(1, 2, ["q", "b"])).toEqual(["a"]);
});
