import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import type { StreamEvent } from "../api/types";
import { pauseMs } from "./backoff";
import { CursorReader, type Follower } from "./cursor";
import { Frames } from "./sse";
import { TabSocket } from "./socket";

const frame = (seq: number, more: object = {}) => JSON.stringify({ conversation_id: "conv_1", type: "part.delta", seq, data: {}, ...more });

class Seen implements Follower {
  seqs: number[] = [];
  types: string[] = [];
  calls: string[] = [];
  events(list: StreamEvent[]) {
    for (const event of list) {
      this.types.push(event.type);
      if ("seq" in event) this.seqs.push(event.seq);
    }
  }
  lost() {
    this.calls.push("lost");
  }
  back() {
    this.calls.push("back");
  }
  gone() {
    this.calls.push("gone");
  }
}

describe("frames of an event stream", () => {
  it("come out whole, wherever the text is cut", () => {
    const text = ": hello\nretry: 1500\n\nid: 1\ndata: {\"a\":1}\n\ndata: one\r\ndata: two\r\n\r\ndata: rest";
    for (let cut = 0; cut <= text.length; cut += 1) {
      const frames = new Frames();
      expect([...frames.take(text.slice(0, cut)), ...frames.take(text.slice(cut))]).toEqual(['{"a":1}', "one\ntwo"]);
      expect(frames.retry).toBe(1500);
    }
  });
});

describe("the cursor", () => {
  it("delivers each event once, and none of another conversation", async () => {
    const seen = new Seen();
    const reader = new CursorReader("conv_1", seen);
    await reader.take([frame(1), frame(2), frame(2), frame(1), frame(5, { conversation_id: "conv_2" }), frame(3)]);
    expect(seen.seqs).toEqual([1, 2, 3]);
    expect(reader.cursor).toBe(3);
  });

  it("begins again after a reset, with the head of the snapshot", async () => {
    const seen = new Seen();
    const reader = new CursorReader("conv_1", seen);
    reader.cursor = 90;
    const snapshot = { type: "stream.snapshot", seq: undefined, data: { head: 7, pending_approvals: [], pending_inputs: [], messages: [] } };
    await reader.take([frame(0, { type: "stream.reset", seq: undefined }), frame(0, snapshot), frame(7), frame(8)]);
    expect(seen.seqs).toEqual([8]);
    expect(reader.cursor).toBe(8);
  });

  it("stops at a frame that cannot be read, so that nothing behind it is delivered before it", async () => {
    const seen = new Seen();
    const reader = new CursorReader("conv_1", seen);
    await expect(reader.take([frame(1), "{", frame(2)])).rejects.toThrow();
    await reader.take([frame(2)]);
    expect([seen.seqs, reader.cursor]).toEqual([[1], 1]);
    reader.reopen();
    await reader.take([frame(2)]);
    expect(seen.seqs).toEqual([1, 2]);
  });

  it("reads shortened events whole, in their order", async () => {
    const seen = new Seen();
    const reader = new CursorReader("conv_1", seen);
    let answer: (response: Response) => void = () => undefined;
    vi.stubGlobal("fetch", () => new Promise<Response>((resolve) => (answer = resolve)));
    const first = reader.take([frame(1, { shortened: { bytes: 9, url: "/api/v1/runs/run_1/events?limit=1" } })]);
    const second = reader.take([frame(2)]);
    expect(seen.seqs).toEqual([]);
    answer(new Response(JSON.stringify({ data: [{ conversation_id: "conv_1", type: "part.delta", seq: 1, data: { whole: true } }], next_cursor: null })));
    await Promise.all([first, second]);
    expect(seen.seqs).toEqual([1, 2]);
    vi.unstubAllGlobals();
  });
});

describe("the wait before the next try", () => {
  it("doubles up to 16 s, and differs between clients", () => {
    expect([0, 1, 2, 3, 4, 9].map((tries) => pauseMs(tries, 0.5))).toEqual([1000, 2000, 4000, 8000, 16000, 16000]);
    expect([pauseMs(0, 0), pauseMs(0, 1)]).toEqual([750, 1250]);
  });
});

class FakeSocket {
  static OPEN = 1;
  static made: FakeSocket[] = [];
  readyState = 0;
  sent: { id: number; method: string; params: Record<string, unknown> }[] = [];
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: ((event: { code: number }) => void) | null = null;

  constructor() {
    FakeSocket.made.push(this);
  }
  send(text: string) {
    this.sent.push(JSON.parse(text) as FakeSocket["sent"][number]);
  }
  close() {
    this.readyState = 3;
  }
  open() {
    this.readyState = 1;
    this.onopen?.();
  }
  tell(data: string) {
    this.onmessage?.({ data });
  }
}

describe("the socket of a tab", () => {
  beforeEach(() => {
    vi.useFakeTimers();
    FakeSocket.made = [];
    vi.stubGlobal("WebSocket", FakeSocket);
  });
  afterEach(() => {
    vi.useRealTimers();
    vi.unstubAllGlobals();
  });

  it("comes back after a cut, and continues at its cursor", async () => {
    const seen = new Seen();
    const following = new TabSocket().follow("conv_1", seen);
    const [first] = FakeSocket.made;
    first?.open();
    expect(first?.sent.at(-1)).toMatchObject({ method: "subscribe", params: { conversation_id: "conv_1" } });
    first?.tell(JSON.stringify({ id: first.sent.at(-1)?.id, result: {} }));
    first?.tell(frame(1));
    first?.tell(frame(2));
    await vi.advanceTimersByTimeAsync(0);
    first?.onclose?.({ code: 1012 });
    await vi.advanceTimersByTimeAsync(3000);
    const second = FakeSocket.made[1];
    second?.open();
    expect(second?.sent.at(-1)).toMatchObject({ method: "subscribe", params: { after: 2 } });
    second?.tell(frame(2));
    second?.tell(frame(3));
    await vi.advanceTimersByTimeAsync(0);
    expect(seen.seqs).toEqual([1, 2, 3]);
    expect(seen.calls).toContain("lost");
    following.stop();
  });

  it("notices a silent server within 20 s", async () => {
    const seen = new Seen();
    const following = new TabSocket().follow("conv_1", seen);
    FakeSocket.made[0]?.open();
    await vi.advanceTimersByTimeAsync(22_000);
    expect(FakeSocket.made[0]?.sent.some((request) => request.method === "ping")).toBe(true);
    expect(seen.calls).toContain("lost");
    following.stop();
  });

  it("leaves a conversation that does not exist", async () => {
    const seen = new Seen();
    new TabSocket().follow("conv_1", seen);
    const [socket] = FakeSocket.made;
    socket?.open();
    socket?.tell(JSON.stringify({ id: socket.sent.at(-1)?.id, error: { code: "not_found" } }));
    await vi.advanceTimersByTimeAsync(0);
    expect(seen.calls).toEqual(["gone"]);
  });

  it("subscribes to the newest conversation only", () => {
    const socket = new TabSocket();
    socket.follow("conv_1", new Seen());
    FakeSocket.made[0]?.open();
    socket.follow("conv_2", new Seen());
    expect(FakeSocket.made).toHaveLength(1);
    expect(FakeSocket.made[0]?.sent.slice(1).map(({ method, params }) => [method, params.conversation_id])).toEqual([["unsubscribe", "conv_1"], ["subscribe", "conv_2"]]);
  });

  it("follows the user's list without an open conversation, and again after a cut", async () => {
    const calls: string[] = [];
    new TabSocket().followOwner({ opened: () => calls.push("opened"), event: ({ type }) => calls.push(type), closed: () => calls.push("closed") });
    const subscribed = () => {
      const socket = FakeSocket.made.at(-1);
      socket?.open();
      expect(socket?.sent).toMatchObject([{ method: "subscribe", params: { scope: "owner" } }]);
      socket?.tell(JSON.stringify({ id: socket.sent[0]?.id, result: { scope: "owner" } }));
      return socket;
    };
    const first = subscribed();
    first?.tell('{"type":"owner.reset","at":"2026-01-01T00:00:00.000Z","data":{}}');
    first?.onclose?.({ code: 1012 });
    await vi.advanceTimersByTimeAsync(3000);
    subscribed();
    expect(calls).toEqual(["opened", "owner.reset", "closed", "opened"]);
  });

  it.each([true, false])("follows no conversation that was left when it gives up sockets, also a deleted one: %s", async (isDeleted) => {
    const read: string[] = [];
    vi.stubGlobal("fetch", (url: URL | string) => {
      read.push(String(url));
      return Promise.resolve(new Response("{}"));
    });
    const socket = new TabSocket();
    socket.followOwner({ opened: () => undefined, event: () => undefined, closed: () => undefined });
    const following = socket.follow("conv_1", new Seen());
    if (isDeleted) {
      const [first] = FakeSocket.made;
      first?.open();
      first?.tell(JSON.stringify({ id: first.sent.at(-1)?.id, error: { code: "not_found" } }));
      first?.onclose?.({ code: 1012 });
      await vi.advanceTimersByTimeAsync(3000);
    } else {
      following.stop();
    }
    const before = FakeSocket.made.length;
    for (const refused of [0, 1]) {
      expect(FakeSocket.made).toHaveLength(before + refused);
      FakeSocket.made.at(-1)?.onclose?.({ code: 1006 });
      await vi.advanceTimersByTimeAsync(3000);
    }
    expect(read.filter((url) => url.endsWith("/readyz"))).toHaveLength(1);
    expect(read.filter((url) => url.includes("/events"))).toEqual([]);
  });

  it("opens no feed where the server refuses it", () => {
    const calls: string[] = [];
    new TabSocket().followOwner({ opened: () => calls.push("opened"), event: () => undefined, closed: () => undefined });
    const [socket] = FakeSocket.made;
    socket?.open();
    socket?.tell(JSON.stringify({ id: socket.sent[0]?.id, error: { code: "invalid_request" } }));
    expect(calls).toEqual([]);
  });
});
