// Delivers the events of one conversation in order, each once, over any number of connections.

import { get, whole, type Page } from "../api/client";
import { parse } from "../api/json";
import type { StreamEvent } from "../api/types";

/** The receiver of a conversation's events. */
export interface Follower {
  events(list: StreamEvent[]): void;
  /** Reports a lost connection, with the seconds until the next try. */
  lost(seconds: number): void;
  back(): void;
  /** Reports that there is no such conversation. */
  gone(): void;
}

/** Returns the event with all that its frame was too small for. */
async function complete(event: StreamEvent): Promise<StreamEvent> {
  if (event.type === "stream.snapshot") {
    const { data } = event;
    data.pending_approvals = await Promise.all(data.pending_approvals.map(whole));
    data.pending_inputs = await Promise.all(data.pending_inputs.map(whole));
    return event;
  }
  const path = event.shortened?.url;
  if (path === undefined) return event;
  const page = await get<Page<StreamEvent>>(path.slice(path.indexOf("/api/v1") + "/api/v1".length));
  return page.data[0] ?? event;
}

const isShortened = (event: StreamEvent): boolean =>
  event.shortened !== undefined || (event.type === "stream.snapshot" && [...event.data.pending_approvals, ...event.data.pending_inputs].some((question) => "shortened" in question));

export class CursorReader {
  /** The `seq` of the newest delivered event; `null` before the first snapshot. */
  cursor: number | null = null;
  readonly conversation: string;
  readonly #follower: Follower;
  /** The end of the frames that are being taken in. */
  #tail: Promise<void> | null = null;
  #isBroken = false;
  #stopped = false;

  constructor(conversation: string, follower: Follower) {
    this.conversation = conversation;
    this.#follower = follower;
  }

  stop(): void {
    this.#stopped = true;
  }

  /** Begins a connection, which continues at the cursor. */
  reopen(): void {
    this.#isBroken = false;
  }

  /**
   * Takes frames in, in the order of the calls. Returns false once the conversation is over. Throws at a frame that cannot be read: then
   * the connection is to be opened again from the cursor, and the frames before it were delivered.
   */
  take(frames: string[]): Promise<boolean> {
    const taking = this.#tail === null ? this.#take(frames) : this.#tail.then(() => this.#take(frames));
    const tail = taking.then(() => undefined, () => undefined);
    this.#tail = tail;
    void tail.then(() => {
      if (this.#tail === tail) this.#tail = null;
    });
    return taking;
  }

  async #take(frames: string[]): Promise<boolean> {
    const fresh: StreamEvent[] = [];
    let [cursor, isOver] = [this.cursor, false];
    let trouble: Error | null = null;
    if (this.#isBroken) return true;
    for (const frame of frames) {
      try {
        let event = parse(frame) as StreamEvent;
        if (event.conversation_id !== this.conversation) continue;
        if (isShortened(event)) event = await complete(event);
        if (event.type === "stream.reset") cursor = null;
        else if (event.type === "stream.snapshot") cursor = event.data.head;
        else if (event.type === "stream.end") isOver = event.run_id === undefined;
        else if ("seq" in event) {
          if (cursor !== null && event.seq <= cursor) continue;
          cursor = event.seq;
        }
        fresh.push(event);
      } catch (error) {
        trouble = error instanceof Error ? error : new Error("unreadable frame");
        this.#isBroken = true;
        break;
      }
    }
    if (this.#stopped) return true;
    this.cursor = cursor;
    if (fresh.length > 0) this.#follower.events(fresh);
    if (trouble !== null) throw trouble;
    return !isOver;
  }
}
