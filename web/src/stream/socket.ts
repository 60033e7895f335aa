// The WebSocket of this tab. It carries the events of the open conversation, and the changes of the user's list. After a cut it
// reconnects, and continues at the cursor of the conversation. If sockets are refused but the server answers over HTTP, it falls back
// to the event stream of `sse.ts`.

import { currentSession, lockedOut, url } from "../api/client";
import { parse } from "../api/json";
import type { OwnerEvent } from "../api/types";
import { Pause, pauseMs } from "./backoff";
import { CursorReader, type Follower } from "./cursor";
import { EventStream } from "./sse";

/** The interval of the pings of this page, because a browser shows no pings of the server. */
const PING_MS = 10_000;
/** Time limit for any frame after a ping. */
const ANSWER_MS = 8_000;
const OPEN_MS = 15_000;
/** A connection that lasted so long was a good one. */
const GOOD_MS = 5_000;
/** After so many refused sockets in a row, the page uses event streams. */
const MOST_REFUSED = 2;

interface Reply {
  id?: number;
  result?: unknown;
  error?: { code?: string };
}

export interface Following {
  stop(): void;
  /** Tries at once, if it waits. */
  hurry(): void;
}

/** The receiver of the changes of the user's list. */
export interface OwnerFollower {
  /** Called when changes begin to arrive. Earlier ones may be missing. */
  opened(): void;
  event(event: OwnerEvent): void;
  closed(): void;
}

class Subscription {
  readonly reader: CursorReader;
  readonly follower: Follower;
  /** The request that subscribed. */
  request = 0;

  constructor(conversation: string, follower: Follower) {
    this.reader = new CursorReader(conversation, follower);
    this.follower = follower;
  }
}

export class TabSocket {
  #socket: WebSocket | null = null;
  #subscription: Subscription | null = null;
  #owner: OwnerFollower | null = null;
  /** The request that subscribed to the user's list. */
  #ownerRequest = 0;
  #isRunning = false;
  #requests = 0;
  #refused = 0;
  #heard = 0;
  readonly #pause = new Pause();

  /** Follows one conversation; an earlier one is left. */
  follow(conversation: string, follower: Follower): Following {
    if (this.#refused >= MOST_REFUSED) return new EventStream(conversation, follower);
    this.#leave();
    const subscription = new Subscription(conversation, follower);
    this.#subscription = subscription;
    let fallback: EventStream | null = null;
    this.#fallBack = () => {
      this.#subscription = null;
      fallback = new EventStream(conversation, follower, subscription.reader.cursor);
    };
    this.#subscribe();
    this.#start();
    return {
      stop: () => {
        fallback?.stop();
        subscription.reader.stop();
        if (this.#subscription !== subscription) return;
        this.#leave();
      },
      hurry: () => (fallback === null ? this.hurry() : fallback.hurry()),
    };
  }

  /** Follows the list of the user for the life of the tab. */
  followOwner(follower: OwnerFollower): void {
    this.#owner = follower;
    this.#subscribeOwner();
    this.#start();
  }

  /** Opens the connection again, after a sign-in. */
  renew(): void {
    this.#socket?.close();
    this.hurry();
    this.#start();
  }

  hurry(): void {
    this.#pause.end();
  }

  #fallBack: () => void = () => undefined;

  #start(): void {
    if (this.#isRunning) return;
    this.#isRunning = true;
    void this.#run().finally(() => (this.#isRunning = false));
  }

  async #run(): Promise<void> {
    for (let tries = 0; ; tries += 1) {
      const begun = performance.now();
      const outcome = await this.#connection();
      if (outcome === "locked") return;
      if (outcome === "refused") {
        this.#refused += 1;
        if (this.#refused >= MOST_REFUSED && (await this.#isReachable())) return this.#fallBack();
        this.#refused = Math.min(this.#refused, MOST_REFUSED - 1);
      } else {
        this.#refused = 0;
      }
      if (this.#subscription === null && this.#owner === null) return;
      if (performance.now() - begun > GOOD_MS) tries = 0;
      await this.#pause.wait(pauseMs(tries), (seconds) => this.#subscription?.follower.lost(seconds));
    }
  }

  /** Returns whether the server answers over HTTP, where the socket was refused. */
  async #isReachable(): Promise<boolean> {
    try {
      return (await fetch(new URL("../../readyz", url("/")), { signal: AbortSignal.timeout(5_000) })).ok;
    } catch {
      return false;
    }
  }

  /** Serves one socket until it closes. */
  #connection(): Promise<"refused" | "closed" | "locked"> {
    const session = currentSession();
    const address = new URL(url("/ws"));
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(address, ["capstan.v1"]);
    this.#socket = socket;
    return new Promise((resolve) => {
      let isOpen = false;
      let ping: ReturnType<typeof setInterval> | undefined;
      const done = (outcome: "refused" | "closed" | "locked") => {
        clearTimeout(opening);
        clearInterval(ping);
        if (this.#socket === socket) this.#socket = null;
        this.#owner?.closed();
        // A silent peer does not answer the close either.
        socket.onmessage = socket.onclose = null;
        socket.close();
        resolve(outcome);
      };
      const opening = setTimeout(() => done("refused"), OPEN_MS);
      socket.onopen = () => {
        isOpen = true;
        clearTimeout(opening);
        this.#heard = performance.now();
        this.#subscribeOwner();
        this.#subscribe();
        let pingedAt: number | null = null;
        ping = setInterval(() => {
          const now = performance.now();
          if (pingedAt !== null && this.#heard < pingedAt) {
            if (now - pingedAt > ANSWER_MS) done("closed");
            return;
          }
          pingedAt = null;
          if (now - this.#heard < PING_MS) return;
          pingedAt = now;
          this.#send("ping", {});
        }, 2_000);
      };
      socket.onmessage = ({ data }) => {
        this.#heard = performance.now();
        if (typeof data === "string") this.#take(data, () => done("closed"));
      };
      socket.onclose = ({ code }) => {
        if (code !== 4401) return done(isOpen ? "closed" : "refused");
        lockedOut(session);
        done("locked");
      };
    });
  }

  #send(method: string, params: object): number {
    this.#requests += 1;
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify({ id: this.#requests, method, params }));
    return this.#requests;
  }

  #subscribe(): void {
    if (this.#subscription === null) return;
    const { conversation, cursor } = this.#subscription.reader;
    this.#subscription.reader.reopen();
    this.#subscription.request = this.#send("subscribe", { conversation_id: conversation, ...(cursor === null ? {} : { after: cursor }) });
  }

  #subscribeOwner(): void {
    if (this.#owner !== null) this.#ownerRequest = this.#send("subscribe", { scope: "owner" });
  }

  #leave(): void {
    const left = this.#subscription;
    this.#subscription = null;
    this.#fallBack = () => undefined;
    if (left !== null) this.#send("unsubscribe", { conversation_id: left.reader.conversation });
  }

  /** Takes one frame in: a reply, or an event. `cut` closes the connection. */
  #take(frame: string, cut: () => void): void {
    if (frame.startsWith('{"id":')) return this.#reply(JSON.parse(frame) as Reply, cut);
    if (frame.startsWith('{"type":"owner.')) return this.#owner?.event(parse(frame) as OwnerEvent);
    const subscription = this.#subscription;
    if (subscription === null) return;
    subscription.reader.take([frame]).then(
      (goesOn) => {
        if (subscription !== this.#subscription) return;
        if (!goesOn) {
          this.#leave();
          subscription.follower.gone();
        }
      },
      cut,
    );
  }

  /** Subscribes anew, which begins with a snapshot. */
  #restart(subscription: Subscription): void {
    subscription.reader.cursor = null;
    this.#send("unsubscribe", { conversation_id: subscription.reader.conversation });
    this.#subscribe();
  }

  #reply(reply: Reply, cut: () => void): void {
    if (reply.id === this.#ownerRequest && reply.error === undefined) return this.#owner?.opened();
    const subscription = this.#subscription;
    if (subscription === null || reply.id !== subscription.request) return;
    if (reply.error === undefined) return subscription.follower.back();
    if (reply.error.code === "not_found") {
      this.#leave();
      subscription.follower.gone();
    } else if (reply.error.code === "cursor_gone" || reply.error.code === "invalid_cursor") {
      this.#restart(subscription);
    } else {
      cut();
    }
  }
}

/** The only socket of this tab. */
export const tabSocket = new TabSocket();
