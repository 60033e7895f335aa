// Follows a conversation over an event stream, where no WebSocket gets through.

import { currentSession, lockedOut, url } from "../api/client";
import { Pause, pauseMs } from "./backoff";
import { CursorReader, type Follower } from "./cursor";

/** The server sends something every 15 s. */
const SILENCE_MS = 20_000;
const HEADERS_MS = 20_000;
/** A connection that lasted so long was a good one. */
const GOOD_MS = 5_000;

/** Splits `text/event-stream` into the data of its events. */
export class Frames {
  #rest = "";
  #data: string[] = [];
  /** The wait after a lost connection that the server asks for, in milliseconds. */
  retry: number | null = null;

  /** Returns the data of each event that `text` completes. */
  take(text: string): string[] {
    const found: string[] = [];
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

  #line(line: string, found: string[]): void {
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

/** Returns whether the server says that there is no such conversation. A proxy whose server is away may say 404 as well. */
async function isMissing(answer: Response): Promise<boolean> {
  if (answer.status !== 404 || answer.headers.get("content-type")?.startsWith("application/problem+json") !== true) return false;
  return ((await answer.json()) as { code?: string }).code === "not_found";
}

export class EventStream {
  readonly #reader: CursorReader;
  readonly #follower: Follower;
  readonly #pause = new Pause();
  #stopped = false;
  #abort: AbortController | null = null;
  #retry: number | null = null;

  constructor(conversation: string, follower: Follower, cursor: number | null = null) {
    this.#reader = new CursorReader(conversation, follower);
    this.#reader.cursor = cursor;
    this.#follower = follower;
    void this.#run();
  }

  stop(): void {
    this.#stopped = true;
    this.#reader.stop();
    this.#abort?.abort();
    this.#pause.end();
  }

  /** Tries at once, if it waits. */
  hurry(): void {
    this.#pause.end();
  }

  async #run(): Promise<void> {
    for (let tries = 0; ; tries += 1) {
      const begun = performance.now();
      let goesOn = true;
      try {
        goesOn = await this.#connection();
      } catch {
        // Cut, silent, or refused for now.
      }
      if (this.#isStopped() || !goesOn) return;
      if (performance.now() - begun > GOOD_MS) tries = 0;
      const pause = pauseMs(tries);
      await this.#pause.wait(tries === 0 && this.#retry !== null ? Math.max(this.#retry, pause) : pause, (seconds) => {
        if (!this.#stopped) this.#follower.lost(seconds);
      });
      if (this.#isStopped()) return;
    }
  }

  #isStopped(): boolean {
    return this.#stopped;
  }

  /** Reads one connection to its end. Returns false if nothing more will come. */
  async #connection(): Promise<boolean> {
    const abort = new AbortController();
    this.#abort = abort;
    this.#retry = null;
    this.#reader.reopen();
    let timer = setTimeout(() => abort.abort(), HEADERS_MS);
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(), SILENCE_MS);
    };
    try {
      const session = currentSession();
      const named: Record<string, string> = { accept: "text/event-stream" };
      if (this.#reader.cursor !== null) named["last-event-id"] = String(this.#reader.cursor);
      const path = `/conversations/${encodeURIComponent(this.#reader.conversation)}/events`;
      const answer = await fetch(url(path), { headers: named, signal: abort.signal, cache: "no-store", credentials: "same-origin" });
      if (answer.status === 401) return lockedOut(session), false;
      if (answer.status === 204 || (await isMissing(answer))) return this.#follower.gone(), false;
      // The log no longer has events at this cursor, so the stream starts again with a snapshot.
      if (answer.status === 410) this.#reader.cursor = null;
      if (!answer.ok || answer.body === null) {
        const after = Number(answer.headers.get("retry-after"));
        this.#retry = after > 0 && after <= 60 ? after * 1000 : null;
        return true;
      }
      const body = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const frames = new Frames();
      for (let isFirst = true; ; isFirst = false) {
        alive();
        const { value, done } = await body.read();
        if (done || this.#isStopped()) return true;
        if (isFirst) this.#follower.back();
        const more = await this.#reader.take(frames.take(value));
        if (this.#isStopped()) return true;
        this.#retry = frames.retry;
        if (!more) return this.#follower.gone(), false;
      }
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
  }
}
