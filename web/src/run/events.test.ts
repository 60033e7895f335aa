import { afterEach, expect, it, vi } from "vitest";

import { NO_EVENTS, readEvents } from "./events";

afterEach(() => vi.unstubAllGlobals());

/** Serves the events 1 to `count`, in pages as the server does. Returns the cursors of the requests. */
function serve(count: () => number): (string | null)[] {
  const cursors: (string | null)[] = [];
  vi.stubGlobal("fetch", (url: string) => {
    const address = new URL(url, "http://page.test");
    const after = Number(address.searchParams.get("after") ?? 0);
    cursors.push(address.searchParams.get("after"));
    const seqs = Array.from({ length: Math.max(0, Math.min(100, count() - after)) }, (_, at) => after + at + 1);
    const last = seqs.at(-1) ?? after;
    const body = { data: seqs.map((seq) => ({ seq })), next_cursor: last < count() ? String(last) : null };
    return Promise.resolve(new Response(JSON.stringify(body)));
  });
  return cursors;
}

it("says whether a run has more events than were asked for, and reads on", async () => {
  serve(() => 650);
  const first = await readEvents("run_1", NO_EVENTS, 300);
  expect([first.events.length, first.hasMore]).toEqual([300, true]);
  // Nothing more is read unless it is wanted.
  expect(await readEvents("run_1", first, 300)).toBe(first);
  const second = await readEvents("run_1", first, 600);
  expect([second.events.length, second.hasMore]).toEqual([600, true]);
  const all = await readEvents("run_1", second, 900);
  expect([all.events.at(-1), all.events.length, all.hasMore]).toEqual([{ seq: 650 }, 650, false]);
});

it("reads only the new events of a run under way", async () => {
  let count = 120;
  const cursors = serve(() => count);
  const known = await readEvents("run_1", NO_EVENTS, 5_000);
  expect(await readEvents("run_1", known, 5_000)).toBe(known);
  count = 125;
  expect((await readEvents("run_1", known, 5_000)).events.length).toBe(125);
  expect(cursors).toEqual([null, "100", "120", "120"]);
});

it("notices that a run grew beyond the limit", async () => {
  let count = 300;
  serve(() => count);
  const known = await readEvents("run_1", NO_EVENTS, 300);
  expect(known.hasMore).toBe(false);
  count = 450;
  expect((await readEvents("run_1", known, 300)).hasMore).toBe(true);
});
