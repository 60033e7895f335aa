import { expect, it } from "vitest";

import type { Message, StreamEvent } from "../api/types";
import { messagesOf, type State } from "../conversation/state";
import { conversationAt, withoutEvents } from "./conversation";

const event = (seq: number, run: string | undefined, type: string, data: object) => ({ seq, run_id: run, type, data, at: "2026-01-02T00:00:00.000Z", conversation_id: "conv_1" }) as unknown as StreamEvent;
const message = (id: string, run: string, role: string, text: string, at = "2026-01-01T00:00:00.000Z") =>
  ({ id, run_id: run, role, status: "complete", created_at: at, parts: [{ type: "text", id: `part_${id}`, text }] }) as unknown as Message;
const asked = (seq: number, run: string, text: string) => event(seq, run, "message.created", { message: message(`msg_${seq}`, run, "user", text) });
const answered = (seq: number, run: string, text: string) => event(seq, run, "message.completed", { message: message(`msg_${seq}`, run, "assistant", text) });

const texts = (state: State) => [...state.runs.values()].flatMap(messagesOf).map((item) => item.parts.map((part) => ("text" in part ? part.text : "")).join(""));

const OTHERS = [asked(1, "run_1", "one"), answered(2, "run_1", "two"), asked(6, "run_3", "a later message"), event(7, undefined, "conversation.updated", { title: "t" })];
const OWN = [
  asked(3, "run_2", "three"),
  event(4, "run_2", "message.started", { message_id: "msg_9", role: "assistant" }),
  event(5, "run_2", "part.started", { message_id: "msg_9", part_id: "part_9", index: 0, kind: "text" }),
  event(8, "run_2", "part.delta", { part_id: "part_9", delta: "fo" }),
  event(9, "run_2", "part.delta", { part_id: "part_9", delta: "ur" }),
];

it("shows the messages before a run, and the run as it was at an event", () => {
  const around = { events: OTHERS, messages: [message("msg_c", "run_c", "user", "copied")], isCut: false };
  expect(texts(conversationAt(around, OWN, 1))).toEqual(["copied", "one", "two", "three"]);
  expect(texts(conversationAt(around, OWN, 4))).toEqual(["copied", "one", "two", "three", "fo", "a later message"]);
  expect(texts(conversationAt(around, OWN, 5))).toEqual(["copied", "one", "two", "three", "four", "a later message"]);
  // A replay changes no events: an earlier one is the same as before.
  expect(texts(conversationAt(around, OWN, 4))).toContain("fo");
  expect(texts(conversationAt(around, [], 0))).toEqual([]);
});

it("shows an answer until the event that replaces it", () => {
  const own = [event(3, "run_2", "run.started", { model: "m", agent: "a", agent_version: 1 }), event(4, "run_2", "run.queued", { position: 0, supersedes: ["msg_2"] })];
  const around = { events: OTHERS, messages: [], isCut: false };
  expect(texts(conversationAt(around, own, 1))).toEqual(["one", "two"]);
  expect(texts(conversationAt(around, own, 2))).toEqual(["one"]);
});

it("takes messages without events from before the run only", () => {
  const messages = [message("msg_1", "run_1", "user", "one"), message("msg_c", "run_c", "user", "copied"), message("msg_l", "run_4", "user", "later", "2026-01-03T00:00:00.000Z")];
  expect(withoutEvents(messages, OTHERS, "2026-01-02T00:00:00.000Z").map(({ id }) => id)).toEqual(["msg_c"]);
});
