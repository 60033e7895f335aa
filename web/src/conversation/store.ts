// One open conversation: its stream changes the state, and listeners draw the state.

import * as api from "../api/client";
import type { AcceptedBody, Approval, Conversation, InputRecord, Message, Run, StreamEvent } from "../api/types";
import { tabSocket, type Following } from "../stream/socket";
import { beginningOf, recallEarlier, replacedRuns, type Beginning } from "./earlier";
import { PAGE, active, initial, newest, prepend, recall, recallQuestions, recallRuns, reduce, type State } from "./state";

/** Pages of events that are looked through for the facts that a snapshot omits. */
const RECALLED_PAGES = 20;
/** A snapshot with fewer messages is followed by a page of those before them. */
const FEW_MESSAGES = 4;
/** The shortest time between two drawings, in milliseconds. Faster is not seen, and costs the processor. */
const FRAME_MS = 60;

/** The connection: there, or lost until a next try in so many seconds. */
export type Link = { lost: number } | null;

interface Events {
  /** Called after a change of the conversation's title or status. */
  changed(id: string, change: { title?: string; status?: string; updated_at?: string }): void;
  gone(id: string): void;
  /** Called when a question was asked or answered, or a tool waits for its review. */
  inboxChanged(): void;
  failed(words: string): void;
}

export class ConversationStore {
  readonly id: string;
  state: State = initial();
  /** The record of the conversation, once it was read. */
  record: Conversation | null = null;
  link: Link = null;
  /** Grows with each drawing. */
  version = 0;
  readonly #on: Events;
  readonly #following: Following;
  readonly #listeners = new Set<() => void>();
  #isDrawing = false;
  #drawnAt = 0;
  #isReading = false;
  #isClosed = false;

  constructor(id: string, on: Events) {
    this.id = id;
    this.#on = on;
    this.#following = tabSocket.follow(id, {
      events: (events) => this.#take(events),
      lost: (seconds) => {
        this.link = { lost: seconds };
        this.draw();
      },
      back: () => {
        this.link = null;
        this.draw();
      },
      gone: () => on.gone(id),
    });
    document.addEventListener("visibilitychange", this.#seen);
    window.addEventListener("online", this.#hurry);
  }

  close(): void {
    this.#isClosed = true;
    this.#following.stop();
    document.removeEventListener("visibilitychange", this.#seen);
    window.removeEventListener("online", this.#hurry);
  }

  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  /** Tries a lost connection at once. */
  hurry(): void {
    this.#following.hurry();
  }

  readonly #hurry = (): void => this.#following.hurry();

  readonly #seen = (): void => {
    if (document.hidden) return;
    this.#following.hurry();
    // A hidden tab does not get the animation frame that it requested.
    if (this.#isDrawing) this.#paint();
  };

  /** Draws once for all changes of a short time. A hidden tab is drawn rarely. */
  draw(): void {
    if (this.#isDrawing || this.#isClosed) return;
    this.#isDrawing = true;
    if (document.hidden) {
      setTimeout(() => this.#paint(), 500);
      return;
    }
    const wait = this.#drawnAt + FRAME_MS - performance.now();
    const frame = () => requestAnimationFrame(() => this.#paint());
    if (wait > 0) setTimeout(frame, wait);
    else frame();
  }

  #paint(): void {
    if (!this.#isDrawing) return;
    this.#isDrawing = false;
    this.#drawnAt = performance.now();
    this.version += 1;
    for (const listener of this.#listeners) listener();
  }

  #take(events: StreamEvent[]): void {
    for (const event of events) {
      try {
        reduce(this.state, event);
      } catch (error) {
        // An event that cannot be shown does not block later ones.
        console.error(event.type, error);
      }
      if (event.type === "stream.snapshot") {
        void this.#remember(event.data.head);
        if (event.data.before !== null && event.data.messages.length < FEW_MESSAGES) void this.earlier();
      } else if (event.type === "conversation.updated") {
        this.#on.changed(this.id, { ...(event.data.title === undefined ? {} : { title: event.data.title }), status: event.data.status, updated_at: event.at });
      } else if (/^(approval|input)\.|^tool\.quarantined$/.test(event.type)) {
        this.#on.inboxChanged();
      }
    }
    this.draw();
  }

  /** After a snapshot: the record, the ends of runs, decided questions, and the details of the newest run. */
  async #remember(head: number): Promise<void> {
    const { epoch } = this.state;
    const isSame = () => !this.#isClosed && epoch === this.state.epoch;
    const quietly = async (act: () => Promise<void>) => {
      try {
        await act();
      } catch {
        // The transcript is complete without it.
      }
      if (isSame()) this.draw();
    };
    await Promise.all([
      quietly(async () => {
        const record = await api.conversation(this.id);
        if (!isSame()) return;
        this.record = record;
        this.state.title ??= record.title;
      }),
      quietly(async () => {
        const run = active(this.state) ?? newest(this.state);
        if (run === null) return;
        const events = await eventsOf(run.id, head);
        if (isSame()) recall(this.state, events);
      }),
      quietly(() => this.#rememberRuns(isSame)),
      quietly(() => this.#rememberQuestions(isSame)),
    ]);
  }

  /** Reads the ends and the earlier versions of the shown runs. */
  async #rememberRuns(isSame: () => boolean): Promise<void> {
    let cursor: string | null = null;
    const listed: Run[] = [];
    for (let page = 0; page < RECALLED_PAGES; page += 1) {
      const runs: api.Page<Run> = await api.get<api.Page<Run>>(`/conversations/${this.id}/runs?limit=100${cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`}`);
      if (!isSame()) return;
      listed.push(...runs.data);
      recallRuns(this.state, runs.data);
      this.draw();
      cursor = runs.next_cursor;
      // Runs are newest first: older ones are not shown.
      if (cursor === null || !runs.data.some((run) => this.state.runs.has(run.id))) break;
    }
    const replaced = replacedRuns(this.state, listed);
    const begun = new Map<string, Beginning>();
    for (const run of replaced.flatMap(({ runs }) => runs)) {
      begun.set(run.id, await beginningOf(run));
      if (!isSame()) return;
    }
    recallEarlier(this.state, replaced, begun);
    this.draw();
  }

  async #rememberQuestions(isSame: () => boolean): Promise<void> {
    const of = `conversation_id=${this.id}`;
    const [approvals, inputs] = await Promise.all([api.all<Approval>(`/approvals?${of}`), api.all<InputRecord>(`/input-requests?${of}`)]);
    if (!isSame()) return;
    recallQuestions(this.state, "approval", approvals.map((approval) => ({ ...approval, answer: approval })));
    const questions = inputs.filter((input) => input.kind !== "approval");
    recallQuestions(this.state, "question", questions.map((input) => ({ ...input, status: input.state, answer: (input.answer ?? null) })));
  }

  /** Reads the page of messages before those that are shown. */
  async earlier(): Promise<void> {
    const { epoch, before, trimmed } = this.state;
    if (this.#isReading || (before === null && !trimmed)) return;
    this.#isReading = true;
    try {
      const limit = trimmed ? 100 : PAGE;
      const page = await api.get<api.Page<Message>>(`/conversations/${this.id}/messages?limit=${limit}&before=${encodeURIComponent(before ?? "")}`);
      if (this.#isClosed || epoch !== this.state.epoch || before !== this.state.before) return;
      prepend(this.state, page);
      this.draw();
      void this.#rememberRuns(() => !this.#isClosed && epoch === this.state.epoch).catch(() => undefined);
    } catch (error) {
      this.#on.failed(api.words(error));
    } finally {
      this.#isReading = false;
    }
  }

  /** Sends a message to this conversation. */
  async send(content: unknown, text: string, choice: object, once: string): Promise<void> {
    const { message } = await api.post<AcceptedBody>(`/conversations/${this.id}/messages`, { content, ...choice }, once);
    if (!this.state.messages.has(message.id)) this.state.sent.set(message.id, text || "(files)");
    this.draw();
  }

  /** Changes the record: its model, agent, title, tags. */
  async change(changes: object): Promise<void> {
    this.record = await api.patch<Conversation>(`/conversations/${this.id}`, changes);
    if ("title" in changes) this.state.title = this.record.title;
    this.draw();
  }
}

/** Reads the events of a run up to one. The size of the context is in the last ones only. */
async function eventsOf(run: string, head: number): Promise<StreamEvent[]> {
  const events: StreamEvent[] = [];
  let cursor: string | null = null;
  for (let page = 0; page < RECALLED_PAGES; page += 1) {
    const answer: api.Page<StreamEvent & { seq: number }> = await api.get<api.Page<StreamEvent & { seq: number }>>(
      `/runs/${run}/events?limit=100${cursor === null ? "" : `&cursor=${cursor}`}`,
    );
    events.push(...answer.data.filter((event) => event.seq <= head));
    cursor = answer.next_cursor;
    const last = answer.data.at(-1);
    if (cursor === null || (last !== undefined && last.seq >= head)) return events;
  }
  return events.filter((event) => event.type !== "context.budget");
}
