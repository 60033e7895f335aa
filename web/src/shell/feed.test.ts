import { createElement } from "react";
import { flushSync } from "react-dom";
import { createRoot } from "react-dom/client";
import { afterEach, expect, it } from "vitest";

import type { Conversation, InputRecord, OwnerEvent } from "../api/types";
import { withItem, type ListKey, type Pages } from "./conversations";
import { takeOwnerEvent } from "./feed";
import { setLive, usePolling } from "./live";
import { queries } from "./queries";

const row = (number: number, more: Partial<Conversation> = {}): Conversation =>
  ({ id: `conv_${number}`, title: `Title ${number}`, status: "idle", updated_at: `2026-01-0${number}T00:00:00.000Z`, ...more }) as Conversation;
const lists = (pages: Conversation[][], next: string | null = null): Pages => ({
  pages: pages.map((data, at) => ({ data, next_cursor: at < pages.length - 1 ? "more" : next })),
  pageParams: pages.map(() => null),
});
const ids = ({ pages }: Pages) => pages.map(({ data }) => data.map(({ id }) => Number(id.slice(5))));
const ALL: ListKey = ["conversations", "", false, null, false];

afterEach(() => queries.clear());

it("puts a new conversation where the list has it", () => {
  const pages = lists([[row(8), row(6)], [row(4)]]);
  expect([9, 7, 5].map((number) => ids(withItem(pages, ALL, row(number))))).toEqual([[[9, 8, 6], [4]], [[8, 7, 6], [4]], [[8, 6], [5, 4]]]);
  expect(ids(withItem(pages, ALL, row(1)))).toEqual([[8, 6], [4, 1]]);
  expect(ids(withItem(lists([[row(8)]], "more"), ALL, row(1)))).toEqual([[8]]);
  expect(ids(withItem(lists([[]]), ALL, row(1)))).toEqual([[1]]);
});

it("moves a changed conversation to its place, also the last one that was read", () => {
  const changed = withItem(lists([[row(8), row(6)]], "more"), ALL, row(6, { status: "processing" }));
  expect([ids(changed), changed.pages[0]?.data[1]?.status]).toEqual([[[8, 6]], "processing"]);
  expect(ids(withItem(lists([[row(8), row(6)], [row(4)]]), ALL, { ...row(4), updated_at: "2026-02-01T00:00:00.000Z" }))).toEqual([[4, 8, 6], []]);
});

it("keeps each list to what belongs to it", () => {
  const archived = row(8, { archived_at: "2026-02-01T00:00:00.000Z", tags: ["work"] });
  const key = (search: string, isArchived: boolean, tag: string | null): ListKey => ["conversations", search, isArchived, tag, false];
  const known = lists([[row(8)]]);
  const shown = [ALL, key("", true, null), key("", true, "work"), key("", true, "home"), key("TITLE 8", true, null), key("other", true, null)];
  expect(shown.map((list) => ids(withItem(known, list, archived)))).toEqual([[[]], [[8]], [[8]], [[]], [[8]], [[]]]);
  expect(ids(withItem(known, ALL, row(8, { pinned: true })))).toEqual([[]]);
});

it("changes every list that was read, and reads questions only when they are others", () => {
  queries.setQueryData(ALL, lists([[row(2)]]));
  queries.setQueryData(["questions"], { approvals: [], inputs: [{ id: "input_1", conversation_id: "conv_2" } as InputRecord] });
  const take = (type: OwnerEvent["type"], data: OwnerEvent["data"]) => {
    takeOwnerEvent({ type, at: "2026-01-01T00:00:00.000Z", data });
    return [ids(queries.getQueryData(ALL) as Pages), queries.getQueryState(["questions"])?.isInvalidated];
  };
  expect(take("owner.changed", { conversation: row(2), open_questions: [{ id: "input_1", kind: "question" }] })).toEqual([[[2]], false]);
  expect(take("owner.changed", { conversation: row(3), open_questions: [] })).toEqual([[[3, 2]], false]);
  expect(take("owner.removed", { conversation_id: "conv_3" })).toEqual([[[2]], false]);
  expect(take("owner.changed", { conversation: row(2), open_questions: [] })).toEqual([[[2]], true]);
  expect(queries.getQueryState(ALL)?.isInvalidated).toBe(false);
  take("owner.reset", {});
  expect(queries.getQueryState(ALL)?.isInvalidated).toBe(true);
});

it("reads the tool reviews again when they changed, or may have", () => {
  const invalidated = () => [["reviews"], ["questions"]].map((key) => queries.getQueryState(key)?.isInvalidated);
  const reset = () => {
    queries.setQueryData(["reviews"], []);
    queries.setQueryData(["questions"], { approvals: [], inputs: [] });
  };
  reset();
  takeOwnerEvent({ type: "owner.reviews_changed", at: "2026-01-01T00:00:00.000Z", data: {} });
  expect(invalidated()).toEqual([true, false]);
  reset();
  expect(invalidated()).toEqual([false, false]);
  takeOwnerEvent({ type: "owner.reset", at: "2026-01-01T00:00:00.000Z", data: {} });
  expect(invalidated()).toEqual([true, true]);
});

it("polls while the feed is away", () => {
  const node = document.createElement("div");
  const Interval = () => usePolling(5_000);
  flushSync(() => createRoot(node).render(createElement(Interval)));
  const shown = [false, true, false].map((isLive) => {
    flushSync(() => setLive(isLive));
    return node.textContent;
  });
  expect(shown).toEqual(["5000", "60000", "5000"]);
});
