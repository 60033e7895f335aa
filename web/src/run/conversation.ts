// The conversation as of an event of a run. It reads what was there before the run, and replays the events up to that one.

import * as api from "../api/client";
import type { Message, Run, StreamEvent } from "../api/types";
import { initial, prepend, reduce, type State } from "../conversation/state";

/** Pages of 100 events, oldest first. */
const EVENT_PAGES = 200;
/** Pages of 100 messages, oldest first. */
const MESSAGE_PAGES = 50;

/** What a conversation has besides the events of one run. */
export interface Surroundings {
  /** The events of other runs, and those of no run. */
  events: StreamEvent[];
  /** The messages before the run that have no events: they were copied or imported. */
  messages: Message[];
  /** Whether the conversation is too long to be read whole. */
  isCut: boolean;
}

const seqOf = (event: StreamEvent): number => ("seq" in event ? event.seq : 0);

/** Reads everything around a run, up to its last event. */
export async function readSurroundings(run: Run, ofRun: readonly StreamEvent[]): Promise<Surroundings> {
  const [first, last] = [ofRun[0], ofRun.at(-1)];
  if (first === undefined || last === undefined) return { events: [], messages: [], isCut: false };
  const path = `/conversations/${run.conversation_id}`;
  const log = await readUntil<StreamEvent>(`${path}/events`, EVENT_PAGES, (event) => seqOf(event) > seqOf(last));
  const messages = await readUntil<Message>(`${path}/messages?internal=false`, MESSAGE_PAGES, (message) => message.created_at > first.at);
  return { events: log.rows.filter((event) => event.run_id !== run.id), messages: withoutEvents(messages.rows, log.rows, first.at), isCut: log.isCut || messages.isCut };
}

/** Reads a list until a row is beyond the end. */
async function readUntil<T>(path: string, pages: number, isBeyond: (row: T) => boolean): Promise<{ rows: T[]; isCut: boolean }> {
  const rows: T[] = [];
  let cursor: string | null = null;
  for (let page = 0; page < pages; page += 1) {
    const glue = path.includes("?") ? "&" : "?";
    const read: api.Page<T> = await api.get<api.Page<T>>(`${path}${glue}limit=100${cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`}`);
    rows.push(...read.data.filter((row) => !isBeyond(row)));
    cursor = read.next_cursor;
    if (cursor === null || read.data.some(isBeyond)) return { rows, isCut: false };
  }
  return { rows, isCut: true };
}

/** Returns the messages that were there before a time and have no events. The messages of a run in the log come from its events. */
export function withoutEvents(messages: readonly Message[], log: readonly StreamEvent[], before: string): Message[] {
  const runs = new Set(log.map((event) => event.run_id));
  return messages.filter((message) => !runs.has(message.run_id) && message.created_at <= before);
}

/** Returns the conversation after the event of a run at this place, from 1. */
export function conversationAt(around: Surroundings, ofRun: readonly StreamEvent[], place: number): State {
  const shown = ofRun.slice(0, place);
  const last = shown.at(-1);
  const state = initial();
  if (last === undefined) return state;
  const others = around.events.filter((event) => seqOf(event) <= seqOf(last));
  prepend(state, { data: around.messages, next_cursor: null });
  // The reducer changes the parts of messages: each replay has its own.
  for (const event of structuredClone([...others, ...shown].sort((one, other) => seqOf(one) - seqOf(other)))) reduce(state, event);
  return state;
}
