import { expect, it } from "vitest";

import type { Message, StreamEvent } from "../api/types";
import { versionBefore, versions } from "./versions";

const message = (id: string, status = "complete") => ({ id, status, parts: [] }) as unknown as Message;
const event = (seq: number, type: string, data: object) => ({ seq, type, data, at: `2026-01-01T00:00:0${seq}Z`, conversation_id: "conv_1", run_id: "run_1" }) as unknown as StreamEvent;
const said = (seq: number, id: string, status?: string) => event(seq, "message.completed", { message: message(id, status) });

it("returns what was there before each edit, newest first", () => {
  const events = [
    said(1, "a"),
    said(2, "b"),
    event(3, "run.queued", { position: 0, supersedes: ["a", "b"] }),
    said(4, "c"),
    said(5, "d"),
    event(6, "conversation.updated", { supersedes: ["d"] }),
    said(7, "e"),
  ];
  const found = versions(events, ["c", "e"].map((id) => message(id)));
  expect(found.map(({ seq, messages, replaced, isWhole }) => [seq, messages.map(({ id }) => id), replaced, isWhole])).toEqual([
    [6, ["c", "d"], ["d"], true],
    [3, ["a", "b"], ["a", "b"], true],
  ]);
});

it("begins with copied messages, which have no events", () => {
  const [found] = versions([said(1, "c"), event(2, "run.queued", { position: 0, supersedes: ["c"] }), said(3, "d")], [message("copied"), message("d")]);
  expect(found?.messages.map(({ id }) => id)).toEqual(["copied", "c"]);
});

it("knows what the log does not have, and leaves unfinished messages out", () => {
  const [found] = versions([said(1, "part", "partial"), event(2, "run.queued", { position: 0, supersedes: ["part", "lost"] })], []);
  expect([found?.messages, found?.isWhole]).toEqual([[], false]);
});

it("finds nothing where nothing was replaced", () => {
  expect(versions([said(1, "a"), event(2, "run.queued", { position: 0 }), event(3, "conversation.updated", { title: "x" })], [message("a")])).toEqual([]);
});

it("finds the version that a run replaced, by a new answer or an edit", () => {
  const at = (seq: number, type: string, run: string | undefined, data: object) => ({ ...event(seq, type, data), run_id: run }) as unknown as StreamEvent;
  const events = [
    at(1, "message.created", "run_1", { message: message("q") }),
    at(2, "message.completed", "run_1", { message: message("a") }),
    at(3, "run.queued", "run_2", { position: 0, supersedes: ["a"] }),
    at(4, "message.completed", "run_2", { message: message("b") }),
    at(5, "conversation.updated", undefined, { supersedes: ["q", "b"] }),
    at(6, "message.created", "run_3", { message: message("r") }),
  ];
  const found = versions(events, []);
  expect(["run_2", "run_3", "run_1", "run_4"].map((run) => versionBefore(found, events, run)?.seq)).toEqual([3, 5, undefined, undefined]);
});
