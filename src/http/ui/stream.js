// Follows the event stream of a conversation. After a cut connection, it reconnects with the cursor, so that no event is lost or
// repeated.

import { currentKey, headers, lockedOut, parse, url, whole } from "./api.js";

/** The server says something every 15 s. */
const SILENCE_MS = 50_000;
const HEADERS_MS = 20_000;
const LONGEST_S = 16;
/** A connection that held for so long was a good one. */
const GOOD_MS = 5_000;

/** Splits `text/event-stream` into its events. */
export class Frames {
  #rest = "";
  #data = [];
  /** How long the server would like to be left alone when the connection is cut, in milliseconds. */
  retry = null;

  /** What of `text` is whole: the data of each event. */
  take(text) {
    const found = [];
    const from = this.#rest.length;
    this.#rest += text;
    let begin = 0;
    for (let end = this.#rest.indexOf("\n", from); end >= 0; end = this.#rest.indexOf("\n", begin)) {
      this.#line(this.#rest.slice(begin, end).replace(/\r$/, ""), found);
      begin = end + 1;
    }
    this.#rest = this.#rest.slice(begin);
    return found;
  }

  #line(line, found) {
    if (line === "") {
      if (this.#data.length > 0) found.push(this.#data.join("\n"));
      this.#data = [];
    } else if (line.startsWith("data:")) {
      this.#data.push(line.slice(line[5] === " " ? 6 : 5));
    } else if (/^retry: ?\d{1,6}$/.test(line)) {
      this.retry = Number(line.slice(6));
    }
  }
}

/** How long to wait before try number `tries`, from 0: 1, 2, 4, 8, 16 s, each client at another time. */
export function pauseMs(tries, chance = Math.random()) {
  return Math.min(2 ** tries, LONGEST_S) * 1000 * (0.75 + chance / 2);
}

/** Whether the server says that there is no such conversation. A proxy whose server is away may say 404 as well. */
async function isMissing(answer) {
  if (answer.status !== 404 || !answer.headers.get("content-type")?.startsWith("application/problem+json")) return false;
  return (await answer.json()).code === "not_found";
}

/** An event with all that its frame was too small for. */
async function complete(event) {
  if (event.type === "stream.snapshot") {
    for (const asked of [event.data.pending_approvals, event.data.pending_inputs]) {
      for (const [at, ask] of asked.entries()) asked[at] = await whole(ask);
    }
    return event;
  }
  const page = await whole(event);
  return page === event ? event : page.data[0];
}

export class Stream {
  #conversation;
  #on;
  #cursor = null;
  #tries = 0;
  #stopped = false;
  #abort = null;
  #wake = null;
  #retry = null;

  /** `on` has `events(list)`, `lost(seconds)`, `back()` and `gone()`. */
  constructor(conversation, on) {
    this.#conversation = conversation;
    this.#on = on;
    this.#run();
  }

  stop() {
    this.#stopped = true;
    this.#abort?.abort();
    this.#wake?.();
  }

  /** Tries at once, if it waits. */
  hurry() {
    this.#wake?.();
  }

  async #run() {
    while (!this.#stopped) {
      const begun = performance.now();
      let goesOn = true;
      try {
        goesOn = await this.#connection();
      } catch {
        // Cut, silent, or refused for now.
      }
      if (this.#stopped || !goesOn) return;
      if (performance.now() - begun > GOOD_MS) this.#tries = 0;
      const pause = pauseMs(this.#tries);
      await this.#wait(this.#tries === 0 && this.#retry !== null ? Math.max(this.#retry, pause) : pause);
      this.#tries += 1;
    }
  }

  /** One connection, to its end. False if there is nothing more to come. */
  async #connection() {
    const abort = new AbortController();
    this.#abort = abort;
    this.#retry = null;
    let timer = setTimeout(() => abort.abort(), HEADERS_MS);
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(), SILENCE_MS);
    };
    try {
      const key = currentKey();
      const named = { accept: "text/event-stream" };
      if (this.#cursor !== null) named["last-event-id"] = String(this.#cursor);
      const path = `/conversations/${encodeURIComponent(this.#conversation)}/events`;
      const answer = await fetch(url(path), { headers: headers(named), signal: abort.signal, cache: "no-store", credentials: "omit" });
      if (answer.status === 401) return lockedOut(key), false;
      if (answer.status === 204 || (await isMissing(answer))) return this.#on.gone(), false;
      // The log no longer has events at this cursor, so the stream starts again with a snapshot.
      if (answer.status === 410) this.#cursor = null;
      if (!answer.ok || answer.body === null) {
        const after = Number(answer.headers.get("retry-after"));
        this.#retry = after > 0 && after <= 60 ? after * 1000 : null;
        return true;
      }
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const frames = new Frames();
      for (let isFirst = true; ; isFirst = false) {
        alive();
        const { value, done } = await reader.read();
        if (done || this.#stopped) return true;
        if (isFirst) this.#on.back();
        const more = await this.#take(frames.take(value), alive);
        if (this.#stopped) return true;
        this.#retry = frames.retry;
        if (!more) return this.#on.gone(), false;
      }
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
  }

  /** Hands on what is new, and of frames that cannot be read all that are before them. False if the conversation is over. */
  async #take(frames, alive) {
    const fresh = [];
    let [cursor, isOver, trouble] = [this.#cursor, false, null];
    for (const frame of frames) {
      try {
        const shown = parse(frame);
        if (shown.conversation_id !== this.#conversation) continue;
        const event = await complete(shown);
        alive();
        if (event.type === "stream.reset") cursor = null;
        else if (event.type === "stream.snapshot") cursor = event.data.head;
        else if (event.type === "stream.end") isOver = true;
        else if (event.seq !== undefined) {
          if (cursor !== null && event.seq <= cursor) continue;
          cursor = event.seq;
        }
        fresh.push(event);
      } catch (error) {
        trouble = error;
        break;
      }
    }
    if (fresh.length > 0 && !this.#stopped) this.#on.events(fresh);
    this.#cursor = cursor;
    if (trouble !== null) throw trouble;
    return !isOver;
  }

  /** Waits, and tells every second how long it still takes. */
  async #wait(ms) {
    const end = performance.now() + ms;
    let isAwake = false;
    while (!this.#stopped && !isAwake && performance.now() < end) {
      const left = end - performance.now();
      this.#on.lost(Math.max(1, Math.ceil(left / 1000)));
      isAwake = await new Promise((resolve) => {
        const timer = setTimeout(() => resolve(false), Math.min(1000, left));
        this.#wake = () => {
          clearTimeout(timer);
          resolve(true);
        };
      });
    }
    this.#wake = null;
    if (!this.#stopped) this.#on.lost(0);
  }
}
