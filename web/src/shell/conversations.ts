// The list of conversations: reading, changing, and deleting with a way back.

import { useInfiniteQuery, type InfiniteData } from "@tanstack/react-query";
import { useSyncExternalStore } from "react";

import * as api from "../api/client";
import type { Conversation } from "../api/types";
import { usePolling } from "./live";
import { queries } from "./queries";
import { toast } from "./toasts";

export type Pages = InfiniteData<api.Page<Conversation>, string | null>;
/** The key of a list in the cache: the search, whether it is the archive, the tag, and whether its conversations are pinned. */
export type ListKey = readonly ["conversations", string, boolean, string | null, boolean];

/** The time to take a deletion back. */
const UNDO_MS = 7_000;

export const useConversations = (search: string, isArchived: boolean, tag: string | null, isPinned: boolean) =>
  useInfiniteQuery({
    queryKey: ["conversations", search, isArchived, tag, isPinned] satisfies ListKey,
    queryFn: ({ pageParam }) => {
      const query = new URLSearchParams({ limit: "40", sort: "updated", pinned: String(isPinned) });
      if (search !== "") query.set("q", search);
      if (isArchived) query.set("archived", "true");
      if (tag !== null) query.set("tag", tag);
      if (pageParam !== null) query.set("cursor", pageParam);
      return api.get<api.Page<Conversation>>(`/conversations?${query.toString()}`);
    },
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next_cursor,
    refetchInterval: usePolling(5_000),
    placeholderData: (before) => before,
  });

export const refresh = (): void => void queries.invalidateQueries({ queryKey: ["conversations"] });

function belongs(row: Conversation, [, search, isArchived, tag, isPinned]: ListKey): boolean {
  return (row.pinned === true) === isPinned && (row.archived_at !== undefined) === isArchived && (tag === null || row.tags?.includes(tag) === true) && row.title.toLowerCase().includes(search.toLowerCase());
}

/** Returns the pages without a conversation. */
export function withoutItem(lists: Pages, id: string): Pages {
  return { ...lists, pages: lists.pages.map((page) => ({ ...page, data: page.data.filter((row) => row.id !== id) })) };
}

/** Returns the pages with the new state of a conversation, if it belongs to the list and to what was read of it. */
export function withItem(lists: Pages, key: ListKey, item: Conversation): Pages {
  const { pages } = withoutItem(lists, item.id);
  if (!belongs(item, key)) return { ...lists, pages };
  const isShown = lists.pages.some((page) => page.data.some((row) => row.id === item.id));
  const isOlder = (row: Conversation) => row.updated_at < item.updated_at || (row.updated_at === item.updated_at && row.id < item.id);
  const page = pages.find(({ data }) => data.some(isOlder));
  if (page !== undefined) page.data.splice(page.data.findIndex(isOlder), 0, item);
  else if (isShown || pages.at(-1)?.next_cursor === null) pages.at(-1)?.data.push(item);
  return { ...lists, pages };
}

/** Changes a shown row before the list is read again. An unknown conversation makes the list be read. */
export function showChange(id: string, change: Partial<Conversation>): void {
  const known: Conversation[] = [];
  queries.setQueriesData<Pages>({ queryKey: ["conversations"] }, (lists) => {
    if (lists === undefined) return lists;
    const pages = lists.pages.map((page) => ({
      ...page,
      data: page.data.map((row) => {
        if (row.id !== id) return row;
        known.push(row);
        return { ...row, ...change };
      }),
    }));
    return { ...lists, pages };
  });
  if (known.length === 0) refresh();
}

/** Changes a conversation on the server. */
export async function change(id: string, changes: Partial<Pick<Conversation, "title" | "pinned" | "tags">> & { archived?: boolean }): Promise<void> {
  try {
    const changed = await api.patch<Conversation>(`/conversations/${id}`, changes);
    showChange(id, changed);
    if ("archived" in changes) {
      toast({ words: changes.archived === true ? "Archived." : "Restored.", undo: { label: "Undo", act: () => void change(id, { archived: changes.archived !== true }) } });
    }
    refresh();
  } catch (error) {
    toast({ words: api.words(error) });
  }
}

/** Returns the tags of a text with commas between them, each once. */
export const tagsOf = (text: string): string[] => [...new Set(text.split(",").map((tag) => tag.trim()).filter(Boolean))];

/** Returns the tags of these conversations, the most used first. */
export function usedTags(rows: readonly Conversation[]): string[] {
  const counts = new Map<string, number>();
  for (const tag of rows.flatMap((row) => row.tags ?? [])) counts.set(tag, (counts.get(tag) ?? 0) + 1);
  return [...counts].sort(([one, often], [other, less]) => less - often || one.localeCompare(other)).map(([tag]) => tag);
}

/** Makes a conversation from a saved JSON file. Returns its id; `null` after an error, which the user is told. */
export async function importFile(file: File): Promise<string | null> {
  try {
    const { id } = await api.postText<Conversation>("/conversations/import", await file.text(), api.newKey());
    refresh();
    return id;
  } catch (error) {
    toast({ words: api.words(error) });
    return null;
  }
}

const deleting = new Map<string, () => void>();
let hidden: ReadonlySet<string> = new Set();
const listeners = new Set<() => void>();

function setHidden(change: (ids: Set<string>) => void): void {
  const next = new Set(hidden);
  change(next);
  hidden = next;
  for (const listener of listeners) listener();
}

/** The conversations whose deletion can still be taken back. */
export const useHidden = (): ReadonlySet<string> =>
  useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => hidden,
  );

/** Deletes a conversation, after the time to take it back. */
export function removeLater(id: string, title: string, undone: () => void): void {
  setHidden((ids) => ids.add(id));
  const now = () => {
    clearTimeout(timer);
    deleting.delete(id);
    api.remove(`/conversations/${id}`, true).then(refresh, (error: unknown) => {
      if (error instanceof api.Problem && error.status === 404) return refresh();
      setHidden((ids) => ids.delete(id));
      toast({ words: api.words(error) });
    });
  };
  const timer = setTimeout(now, UNDO_MS);
  deleting.set(id, now);
  const act = () => {
    clearTimeout(timer);
    deleting.delete(id);
    setHidden((ids) => ids.delete(id));
    undone();
  };
  toast({ words: `Deleted “${title}”.`, undo: { label: "Undo", act }, ms: UNDO_MS });
}

// A closed page cannot take anything back.
window.addEventListener("pagehide", () => {
  for (const now of deleting.values()) now();
});
