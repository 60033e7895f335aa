// The feed of the user: changes of the list and of tool reviews that other tabs and programs make are shown at once.

import type { Query } from "@tanstack/react-query";

import type { OwnerEvent } from "../api/types";
import { tabSocket } from "../stream/socket";
import { withItem, withoutItem, type ListKey, type Pages } from "./conversations";
import { setLive } from "./live";
import { queries, type OpenQuestions } from "./queries";

const LISTS = ["conversations"];
const QUESTIONS = ["questions"];
const REVIEWS = ["reviews"];
/** What is read again after the read under way. */
const outdated = new Set<string>();

/** Reads again what is shown. A read that is under way may have begun before the change, so another one follows it. */
function readAgain(query: Query): void {
  if (outdated.has(query.queryHash)) return;
  const again = () => {
    outdated.delete(query.queryHash);
    void queries.invalidateQueries({ queryKey: query.queryKey, exact: true });
  };
  const reading = query.state.fetchStatus === "idle" ? undefined : query.promise;
  if (reading === undefined) return again();
  outdated.add(query.queryHash);
  void reading.then(again, again);
}

const known = (queryKey: string[]) => queries.getQueryCache().findAll({ queryKey });

/** Reads everything again that the feed keeps up to date. */
const readAll = (): void => [LISTS, QUESTIONS, REVIEWS].flatMap(known).forEach(readAgain);

function changeLists(change: (lists: Pages, key: ListKey) => Pages): void {
  for (const query of known(LISTS)) {
    if (query.state.data !== undefined) queries.setQueryData(query.queryKey, change(query.state.data as Pages, query.queryKey as unknown as ListKey));
    if (query.state.fetchStatus !== "idle") readAgain(query);
  }
}

/** Reads the questions again, unless those of the conversation are known to be these. */
function checkQuestions(conversation: string, ids: readonly string[]): void {
  for (const query of known(QUESTIONS)) {
    if (query.state.fetchStatus !== "idle" || areOthers(query.state.data as OpenQuestions | undefined, conversation, ids)) readAgain(query);
  }
}

/** Returns whether the known questions of a conversation are others than these. */
function areOthers(known: OpenQuestions | undefined, conversation: string, ids: readonly string[]): boolean {
  if (known === undefined) return false;
  const shown = [...known.approvals, ...known.inputs].filter((question) => question.conversation_id === conversation);
  return shown.length !== ids.length || shown.some(({ id }) => !ids.includes(id));
}

export function takeOwnerEvent({ type, data }: OwnerEvent): void {
  const { conversation, conversation_id: removed, open_questions: open = [] } = data;
  if (type === "owner.changed" && conversation !== undefined) {
    changeLists((lists, key) => withItem(lists, key, conversation));
    checkQuestions(conversation.id, open.map(({ id }) => id));
  } else if (type === "owner.removed" && removed !== undefined) {
    changeLists((lists) => withoutItem(lists, removed));
    checkQuestions(removed, []);
  } else if (type === "owner.reviews_changed") {
    known(REVIEWS).forEach(readAgain);
  } else if (type === "owner.reset") {
    readAll();
  }
}

/** Follows the list of the user for the life of this tab. */
export function followList(): void {
  tabSocket.followOwner({
    opened: () => {
      setLive(true);
      readAll();
    },
    event: takeOwnerEvent,
    closed: () => setLive(false),
  });
}
