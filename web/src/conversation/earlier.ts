// Earlier versions of messages: which runs they consist of, after a reload, and what they were.

import * as api from "../api/client";
import type { Run, StreamEvent } from "../api/types";
import { initial, isOwn, messagesOf, newest, reduce, type Earlier, type RunState, type State } from "./state";

/** Limit of replaced runs between two shown ones whose beginnings are read. */
const MOST_REPLACED = 40;
/** Pages of 100 events of an earlier version. */
const EVENT_PAGES = 50;

/** The first events of a run, as far as they tell what it replaced. */
export interface Beginning {
  /** The user's message that the run answers, if it was sent with it. */
  userMessage: string | null;
  /** The messages that left the conversation for it. */
  replaces: string[];
}

type Stored = Exclude<StreamEvent, { type: `stream.${string}` }>;

const isShown = (state: State, run: RunState): boolean => messagesOf(run).length > 0 || run === newest(state);

/** Runs that lost their messages, and the shown run that follows them. */
interface Replaced {
  /** The shown run before them. */
  before: Run | null;
  /** Oldest first. The last one is shown. */
  runs: Run[];
}

/** Returns the runs without messages, each with its shown neighbours. `listed` are all runs, newest first. */
export function replacedRuns(state: State, listed: readonly Run[]): Replaced[] {
  const found: Replaced[] = [];
  let [before, runs]: [Run | null, Run[]] = [null, []];
  for (const run of [...listed].reverse()) {
    const known = state.runs.get(run.id);
    runs.push(run);
    if (known === undefined || !isShown(state, known)) continue;
    // Runs before the oldest shown one may belong to messages that were not read yet.
    const isWhole = before !== null || state.before === null;
    if (isWhole && runs.length > 1 && runs.length <= MOST_REPLACED) found.push({ before, runs });
    [before, runs] = [run, []];
  }
  return found;
}

/** Returns whether a run has a part of an answer in its events. */
const hasAnswered = (run: Run): boolean => isOwn(run) && (run.status === "completed" || (run.usage?.output_tokens ?? 0) > 0);

/** A message of a user with its answers. */
interface Exchange {
  userMessage: string | null;
  /** The earlier versions of the message. */
  edits: Earlier[];
  /** The earlier versions of the answer. */
  answers: Earlier[];
  first: Run;
  /** The runs of the current answer: that which began it, and those that resumed it. */
  answer: Run[];
}

/** Records the earlier versions of the shown runs that follow replaced ones. */
export function recallEarlier(state: State, found: readonly Replaced[], beginnings: ReadonlyMap<string, Beginning>): void {
  for (const { before, runs } of found) {
    const shown = state.runs.get(runs.at(-1)?.id ?? "");
    let exchanges: Exchange[] = before === null ? [] : [{ userMessage: null, edits: [], answers: [], first: before, answer: [before] }];
    for (const run of runs) {
      const { userMessage, replaces } = beginnings.get(run.id) ?? { userMessage: null, replaces: [] };
      const exchange = exchanges.at(-1);
      if (userMessage !== null || exchange === undefined) {
        const at = exchanges.findIndex((one) => one.userMessage !== null && replaces.includes(one.userMessage));
        const replaced = exchanges[at];
        const edits = replaced === undefined ? [] : isOwn(replaced.first) ? [...replaced.edits, { from: replaced.first.id, until: run.id }] : replaced.edits;
        exchanges = [...(at < 0 ? exchanges : exchanges.slice(0, at)), { userMessage, edits, answers: [], first: run, answer: [run] }];
      } else if (replaces.length > 0) {
        const from = exchange.answer.find(isOwn);
        if (from !== undefined && exchange.answer.some(hasAnswered)) exchange.answers.push({ from: from.id, until: run.id });
        exchange.answer = [run];
      } else {
        exchange.answer.push(run);
      }
    }
    const exchange = exchanges.at(-1);
    if (shown === undefined || exchange === undefined) continue;
    shown.earlier = exchange.first.id === shown.id ? exchange.edits : exchange.answers;
    shown.rev += 1;
  }
}

const first = async (path: string): Promise<Stored[]> => (await api.get<api.Page<Stored>>(path)).data;

/** Reads the beginning of a run from its first events, and from the event before them. */
export async function beginningOf(run: Run): Promise<Beginning> {
  const beginning: Beginning = { userMessage: null, replaces: [] };
  const events = await first(`/runs/${run.id}/events?limit=3`);
  for (const event of events) {
    if (event.type === "message.created" && event.data.message.role === "user") beginning.userMessage ??= event.data.message.id;
    else if (event.type === "run.queued") beginning.replaces = event.data.supersedes ?? [];
  }
  const seq = events[0]?.seq ?? 0;
  if (beginning.userMessage === null || seq < 2) return beginning;
  const [before] = await first(`/conversations/${run.conversation_id}/events?after=${seq - 2}&limit=1`);
  if (before?.type === "conversation.updated" && before.seq === seq - 1) beginning.replaces = before.data.supersedes ?? [];
  return beginning;
}

/** Returns the runs of an earlier version as they were, without the messages that are still in the conversation. */
export async function earlierVersion({ from, until }: Earlier, current: ReadonlyMap<string, unknown>): Promise<State> {
  const ofRun = (run: string) => first(`/runs/${run}/events?limit=1`);
  const [[begin], [end]] = await Promise.all([ofRun(from), ofRun(until)]);
  if (begin === undefined || end === undefined) throw new api.Problem(410, { detail: "The log does not have this version any more." });
  const path = `/conversations/${begin.conversation_id}/events`;
  const events: Stored[] = [];
  let cursor = String(begin.seq - 1);
  for (let page = 0; page < EVENT_PAGES; page += 1) {
    const read: Stored[] = await first(`${path}?limit=100&after=${cursor}`);
    events.push(...read.filter(({ seq }) => seq < end.seq));
    const last = read.at(-1);
    if (last === undefined || last.seq >= end.seq - 1) break;
    cursor = String(last.seq);
  }
  // The event that took the version out of the conversation is not part of it.
  for (let last = events.at(-1); last?.type === "conversation.updated" && (last.data.supersedes ?? []).length > 0; last = events.at(-1)) events.pop();
  const state = initial();
  for (const event of events) reduce(state, event);
  for (const run of state.runs.values()) run.items = run.items.filter((item) => item.kind !== "message" || item.id === null || !current.has(item.id));
  return state;
}
