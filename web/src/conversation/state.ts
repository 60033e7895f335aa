// The state of a conversation: a function from its events to the content of the page. It knows neither the page nor the network.
//
// A conversation is a list of runs, in their order; a run is a list of items. Each run and item has a `rev` that grows when it changes,
// so that the view draws again only the parts that changed.

import type { ApprovalData, ContextBudget, Message, Part, PlannedStep, ProblemBody, QuestionData, Run, Snapshot, StreamEvent, ToolContent, ToolProgress, Usage } from "../api/types";

/** Limit of stored items; beyond it, whole runs are removed, oldest first, and can be read again. */
const MOST_ITEMS = 4000;
const KEPT_ITEMS = 3000;

/** Messages of a page of earlier ones. */
export const PAGE = 50;

export type RunStatus = Run["status"] | "over";

const ENDED: ReadonlySet<RunStatus> = new Set<RunStatus>(["completed", "failed", "cancelled", "over"]);

export interface Call {
  id: string;
  name: string;
  server: string | null;
  /** The text of the arguments as far as the model has written it. */
  written: string;
  arguments: Record<string, unknown> | null;
  state: string;
  content: ToolContent[] | null;
  isError: boolean;
  ms: number | null;
  progress: ToolProgress | null;
  truncated: boolean;
  item: MessageItem | null;
}

export interface QuestionState {
  kind: "approval" | "question";
  id: string;
  status: string;
  data: ApprovalData | QuestionData;
  answer: QuestionAnswer | null;
  item: QuestionItem | null;
}

export interface QuestionAnswer {
  scope?: string;
  edited_arguments?: unknown;
  reason?: string;
  choice?: string;
  text?: string;
}

interface ItemBase {
  key: string;
  rev: number;
  run: string;
}

/** A part that has no content of its kind yet. */
interface BegunPart {
  type: "text" | "reasoning" | "tool_call" | "image" | "file" | "source";
  id: string;
  text?: string;
  call_id?: string;
}

export type ShownPart = Part | BegunPart;

export interface MessageItem extends ItemBase {
  kind: "message";
  id: string | null;
  role: "user" | "assistant";
  parts: ShownPart[];
  model?: string | undefined;
  usage?: Usage | undefined;
  finish?: string | undefined;
  at?: string | undefined;
  rating?: "up" | "down" | undefined;
  streaming: boolean;
  partial: boolean;
}

export interface QuestionItem extends ItemBase {
  kind: "question";
  question: QuestionState;
}

export interface PlanItem extends ItemBase {
  kind: "plan";
  steps: PlanStep[];
}

export interface NoteItem extends ItemBase {
  kind: "note";
  words: string;
}

export type Item = MessageItem | QuestionItem | PlanItem | NoteItem;
export type PlanStep = PlannedStep & { state: string };

/** The end of a run. */
export interface RunEnd {
  status: "completed" | "failed" | "cancelled";
  usage: Usage | null;
  error: ProblemBody | null;
  finish: string | null;
  notice: string | null;
  by: string | null;
}

export interface RunState {
  id: string;
  rev: number;
  items: Item[];
  status: RunStatus;
  reason: string | null;
  detail: string | null;
  agent: string | null;
  agentVersion: number | null;
  model: string | null;
  steps: Set<number>;
  kind: string | null;
  begun: string[];
  plan: PlanStep[] | null;
  end: RunEnd | null;
  retry: { after_ms: number; error: ProblemBody; model?: string; at: number } | null;
  position: number;
  recalled: boolean;
  /** Whether the run was copied or imported: it has messages, and no events. */
  isCopied: boolean;
  /** The earlier versions of the run's first message, oldest first: of a user's message with all that followed, or of an answer. */
  earlier: Earlier[];
}

/** An earlier version: what the log has from the first event of one run up to the first event of the run that replaced it. */
export interface Earlier {
  from: string;
  until: string;
}

export interface State {
  /** Grows with each snapshot. */
  epoch: number;
  loaded: boolean;
  title: string | null;
  truncated: boolean;
  /** The cursor of the messages before those that are stored; `null` if there are none, or they cannot be read. */
  before: string | null;
  /** Whether the messages before the stored ones must be looked for from the end, because their cursor is unknown. */
  trimmed: boolean;
  runs: Map<string, RunState>;
  messages: Map<string, MessageItem>;
  calls: Map<string, Call>;
  questions: Map<string, QuestionState>;
  parts: Map<string, { item: MessageItem; part: ShownPart }>;
  sent: Map<string, string>;
  budget: (ContextBudget & { recalled?: boolean }) | null;
  /** The messages that the newest event took out of the conversation, until the next event replaces them or not. */
  rewound: { seq: number; from: string; earlier: Earlier[] } | null;
}

export function initial(): State {
  return {
    epoch: 0, loaded: false, title: null, truncated: false, before: null, trimmed: false, runs: new Map(), messages: new Map(), calls: new Map(),
    questions: new Map(), parts: new Map(), sent: new Map(), budget: null, rewound: null,
  };
}

/** Returns the active run: the first that has not ended, and has begun if any has. */
export function active(state: State): RunState | null {
  let queued: RunState | null = null;
  for (const run of state.runs.values()) {
    if (ENDED.has(run.status)) continue;
    if (run.status !== "queued") return run;
    queued ??= run;
  }
  return queued;
}

export const isOver = (run: RunState): boolean => ENDED.has(run.status);

export const newest = (state: State): RunState | null => [...state.runs.values()].at(-1) ?? null;

export const messagesOf = (run: RunState): MessageItem[] => run.items.filter((item) => item.kind === "message");

const hasAsked = (run: RunState): boolean => messagesOf(run)[0]?.role === "user";

/** Returns whether a run is shown with its versions: it has messages, or will have them. */
export const hasVersions = (run: RunState, isNewest: boolean): boolean => run.earlier.length > 0 && (isNewest || messagesOf(run).length > 0);

/** Returns whether a run shows its end: a run that replaces or continues it shows the end instead. */
export function showsEnd(run: RunState, next: RunState | undefined): boolean {
  const first = next?.items[0];
  return run.end !== null && (next === undefined || (run.items.length > 0 && first?.kind === "message" && first.role === "user"));
}

/** Returns the number of the model's answer that a run is at, from 1; 0 before the first. */
export function round(run: RunState): number {
  const answers = messagesOf(run).filter((item) => item.role === "assistant");
  const isNext = run.kind === "model" && !answers.some((item) => item.streaming);
  return Math.max(run.steps.size, answers.length + (isNext ? 1 : 0));
}

/** Returns the open questions. */
export const openQuestions = (state: State): QuestionState[] => [...state.questions.values()].filter((question) => question.status === "pending");

function runOf(state: State, id: string): RunState {
  let run = state.runs.get(id);
  if (run === undefined) {
    run = {
      id, rev: 0, items: [], status: "over", reason: null, detail: null, agent: null, agentVersion: null, model: null, steps: new Set(),
      kind: null, begun: [], plan: null, end: null, retry: null, position: 0, recalled: false, isCopied: false, earlier: [],
    };
    state.runs.set(id, run);
  }
  return run;
}

function touch(state: State, item: Item | null | undefined): void {
  if (item === undefined || item === null) return;
  item.rev += 1;
  const run = state.runs.get(item.run);
  if (run !== undefined) run.rev += 1;
}

function add<T extends Item>(run: RunState, item: Omit<T, "rev" | "run">): T {
  const added = { ...item, rev: 0, run: run.id } as T;
  run.items.push(added);
  run.rev += 1;
  return added;
}

function callOf(state: State, id: string, name?: string): Call {
  let call = state.calls.get(id);
  if (call === undefined) {
    call = {
      id, name: name ?? "", server: null, written: "", arguments: null, state: "written", content: null, isError: false, ms: null,
      progress: null, truncated: false, item: null,
    };
    state.calls.set(id, call);
  }
  if (name) call.name = name;
  return call;
}

/** Returns a call. A call that belongs to no stored message is shown by itself. */
function shownCall(state: State, run: RunState, data: { call_id: string; name: string }): Call {
  const call = callOf(state, data.call_id, data.name);
  call.item ??= add<MessageItem>(run, {
    key: `call:${call.id}`, kind: "message", id: null, role: "assistant", parts: [{ type: "tool_call", id: call.id, call_id: call.id }], streaming: false, partial: false,
  });
  return call;
}

type PutMessage = Pick<Message, "id" | "run_id" | "role" | "parts" | "status"> & Partial<Message>;

function putMessage(state: State, message: PutMessage, streaming = false): void {
  const run = runOf(state, message.run_id);
  state.sent.delete(message.id);
  for (const part of message.parts) {
    if (part.type !== "tool_result") continue;
    const call = callOf(state, part.call_id, part.name);
    Object.assign(call, { content: part.content, isError: part.is_error, state: part.state, progress: null });
    touch(state, call.item);
  }
  if (message.role === "tool") return;
  if (message.internal === true) return dropMessage(state, message.id);
  let item = state.messages.get(message.id);
  if (item === undefined) {
    item = add<MessageItem>(run, { key: message.id, kind: "message", id: message.id, role: message.role, parts: [], streaming, partial: false });
    state.messages.set(message.id, item);
  }
  for (const part of item.parts) state.parts.delete(part.id);
  const { parts, model, usage, finish_reason: finish, status, created_at: at = item.at, feedback } = message;
  Object.assign(item, { parts: [...parts], model, usage, finish, at, streaming, partial: status === "partial" && !streaming });
  if (feedback !== undefined) item.rating = feedback.rating;
  for (const part of item.parts) {
    if (streaming) state.parts.set(part.id, { item, part });
    if (part.type !== "tool_call" || part.call_id === undefined) continue;
    const written = "arguments" in part ? part.arguments : null;
    const call = callOf(state, part.call_id, "name" in part ? part.name : undefined);
    if (streaming && typeof written?._raw === "string") call.written = written._raw;
    else call.arguments = written;
    call.item = item;
  }
  touch(state, item);
}

function dropMessage(state: State, id: string): void {
  const item = state.messages.get(id);
  if (item === undefined) return;
  state.messages.delete(id);
  const calls = new Set<string>();
  for (const part of item.parts) {
    state.parts.delete(part.id);
    if (part.type !== "tool_call" || part.call_id === undefined || state.calls.get(part.call_id)?.item !== item) continue;
    state.calls.delete(part.call_id);
    calls.add(part.call_id);
  }
  const run = state.runs.get(item.run);
  if (run === undefined) return;
  // Questions about the message's calls are removed with it.
  const isOf = (other: Item) => other === item || (other.kind === "question" && calls.has(other.question.data.call_id ?? ""));
  for (const other of run.items.filter(isOf)) if (other.kind === "question") state.questions.delete(other.question.id);
  run.items = run.items.filter((other) => !isOf(other));
  run.rev += 1;
}

/** Removes messages, and what belongs to them. */
function dropMessages(state: State, ids: string[]): void {
  const lost = new Set(ids.map((id) => state.messages.get(id)?.run));
  for (const id of ids) dropMessage(state, id);
  // Plans, questions and notes of a replaced answer belong to it.
  for (const id of lost) {
    const replaced = state.runs.get(id ?? "");
    if (replaced !== undefined) replaced.items = messagesOf(replaced);
  }
}

/** Removes the answer that a new run replaces, and records it as an earlier version. A run that continues one replaces nothing. */
function replace(state: State, run: RunState, ids: string[]): void {
  const runs = [...state.runs.values()];
  const before = runs.slice(0, runs.indexOf(run));
  const previous = before.at(-1);
  if (previous === undefined || hasAsked(run)) return dropMessages(state, ids);
  if (ids.length === 0) {
    if (messagesOf(previous).length === 0) run.earlier = previous.earlier;
    return;
  }
  // The answer may consist of several runs: a failed one, and those that resumed it.
  let [at, earlier] = [before.length - 1, [] as Earlier[]];
  for (; at >= 0; at -= 1) {
    const one = before[at];
    if (one === undefined || hasAsked(one)) break;
    if (earlier.length === 0) earlier = one.earlier;
    const behind = before.slice(0, at).findLast((run) => messagesOf(run).length > 0);
    if (behind === undefined || (messagesOf(one).length > 0 && messagesOf(behind).at(-1)?.role === "user")) break;
  }
  const from = before[at];
  run.earlier = from === undefined || from.isCopied ? earlier : [...earlier, { from: from.id, until: run.id }];
  dropMessages(state, ids);
}

/** Takes messages out of the conversation. The next message replaces them, if it follows at once. */
function rewind(state: State, seq: number, ids: string[]): void {
  const gone = new Set(ids);
  const from = [...state.runs.values()].find((run) => messagesOf(run).some((item) => item.role === "user" && gone.has(item.id ?? "")));
  if (from !== undefined && !from.isCopied) {
    // A message that joined a run has no versions of its own.
    const isFirst = gone.has(messagesOf(from)[0]?.id ?? "");
    state.rewound = { seq, from: from.id, earlier: isFirst ? from.earlier : [] };
  }
  dropMessages(state, ids);
}

function putQuestion(state: State, runId: string, kind: QuestionState["kind"], data: QuestionState["data"]): void {
  if (state.questions.has(data.id)) return;
  const run = runOf(state, runId);
  const question: QuestionState = { kind, id: data.id, status: "pending", data, answer: null, item: null };
  question.item = add<QuestionItem>(run, { key: data.id, kind: "question", question });
  state.questions.set(data.id, question);
  const call = data.call_id === undefined ? undefined : state.calls.get(data.call_id);
  if (call !== undefined && kind === "approval") {
    call.state = "awaiting_approval";
    touch(state, call.item);
  }
}

function settle(state: State, id: string, change: Partial<QuestionState>): void {
  const question = state.questions.get(id);
  if (question === undefined) return;
  Object.assign(question, change);
  touch(state, question.item);
}

function snapshot(state: State, data: Snapshot): void {
  const { epoch, title, sent } = state;
  Object.assign(state, initial(), { epoch: epoch + 1, title, sent, loaded: true, truncated: data.truncated, before: data.before });
  for (const message of data.messages) putMessage(state, message);
  const current = data.active_run;
  if (current) {
    const ids = [...state.runs.keys()];
    const run = runOf(state, current.run.id);
    const place = ids.indexOf(run.id);
    // Runs behind the active run wait for it.
    for (const id of place < 0 ? [] : ids.slice(place + 1)) runOf(state, id).status = "queued";
    const { status, reason = null, agent, agent_version: agentVersion, model } = current.run;
    Object.assign(run, { status, reason, agent, agentVersion, model });
    if (current.partial_message) {
      putMessage(state, current.partial_message, true);
      run.begun = [current.partial_message.id];
    }
  }
  for (const approval of data.pending_approvals) putQuestion(state, approval.run_id, "approval", approval);
  for (const input of data.pending_inputs) putQuestion(state, input.run_id, "question", input);
}

/** Takes in a page of the messages before those that are stored. */
export function prepend(state: State, page: { data: Message[]; next_cursor: string | null }): void {
  const known = state.runs;
  state.runs = new Map();
  for (const message of page.data) if (!state.messages.has(message.id)) putMessage(state, message);
  for (const [id, run] of known) {
    // The oldest known run may have begun among these messages.
    run.items.unshift(...(state.runs.get(id)?.items ?? []));
    state.runs.set(id, run);
    run.rev += 1;
  }
  state.before = page.next_cursor;
  state.truncated = state.before !== null;
  state.trimmed = false;
}

type EndData = Partial<Pick<Run, "usage" | "error" | "finish_reason">> & { notice?: string; by?: string };

/** Records the end of a run, as its event or the run itself tells it. */
export function end(state: State, id: string, status: RunEnd["status"], data: EndData): void {
  const run = runOf(state, id);
  for (const item of run.items.filter((item) => item.kind === "message" && item.streaming)) dropMessage(state, item.key);
  // The run's pending questions are closed with it.
  for (const item of run.items) if (item.kind === "question" && item.question.status === "pending") settle(state, item.question.id, { status: "cancelled" });
  Object.assign(run, { status, reason: null, retry: null, begun: [] });
  const { usage = null, error = null, finish_reason: finish = null, notice = null, by = null } = data;
  run.end = { status, usage, error, finish, notice, by };
  run.rev += 1;
}

/** Returns whether a run was executed here: copied and imported runs have no trace, no events, and used nothing. */
export const isOwn = (run: Run): boolean => run.trace_id !== undefined;

/** Records the facts and ends of runs whose events this page has not seen. */
export function recallRuns(state: State, runs: Run[]): void {
  for (const told of runs) {
    const run = state.runs.get(told.id);
    // The end of a run may follow a snapshot that has neither the run nor its start: then only the facts are missing.
    if (run === undefined || !isOver(run) || (run.end !== null && run.model !== null)) continue;
    if (told.status !== "completed" && told.status !== "failed" && told.status !== "cancelled") continue;
    Object.assign(run, { model: told.model, agent: told.agent, agentVersion: told.agent_version, isCopied: !isOwn(told) });
    if (run.end === null) end(state, run.id, told.status, told);
    else run.rev += 1;
  }
}

/** Adds the questions of stored runs that were decided before the snapshot, each behind the message of its call. */
export function recallQuestions(state: State, kind: QuestionState["kind"], decided: (QuestionState["data"] & { run_id: string; status: string; answer: QuestionAnswer | null })[]): void {
  for (const { run_id: runId, status, answer, ...data } of decided) {
    const run = state.runs.get(runId);
    if (run === undefined || status === "pending" || state.questions.has(data.id)) continue;
    const call = data.call_id === undefined ? undefined : state.calls.get(data.call_id);
    const question: QuestionState = { kind, id: data.id, status, data: data, answer, item: null };
    const item: QuestionItem = { key: data.id, kind: "question", question, rev: 0, run: runId };
    question.item = item;
    state.questions.set(data.id, question);
    const at = call?.item == null ? -1 : run.items.indexOf(call.item);
    run.items.splice(at < 0 ? run.items.length : at + 1, 0, item);
    run.rev += 1;
  }
}

function note(run: RunState, seq: number, words: string): void {
  add<NoteItem>(run, { key: `note:${seq}`, kind: "note", words });
}

function planStep(state: State, run: RunState, step: number, how: string): void {
  const found = run.plan?.find((planned) => planned.step === step);
  if (found !== undefined) found.state = how;
  touch(state, run.items.find((item) => item.kind === "plan"));
}

/** Events that show that a run is under way. */
const WAKES = new Set(["step.started", "tool.started", "message.started"]);

/** Takes one event in. Types that this page does not know change nothing. */
export function reduce(state: State, event: StreamEvent): void {
  const run = event.run_id === undefined ? undefined : runOf(state, event.run_id);
  if (run !== undefined && WAKES.has(event.type)) Object.assign(run, { status: "processing", reason: null });
  if (run === undefined) ofConversation(state, event);
  else ofRun(state, run, event);
  trim(state);
}

function ofConversation(state: State, event: StreamEvent): void {
  switch (event.type) {
    case "stream.snapshot":
      return snapshot(state, event.data);
    case "message.created":
    case "message.completed":
      return putMessage(state, event.data.message);
    case "conversation.updated":
      if (event.data.title !== undefined) state.title = event.data.title;
      if (event.data.supersedes !== undefined && event.data.supersedes.length > 0) rewind(state, event.seq, event.data.supersedes);
      return;
    default:
      return;
  }
}

function ofRun(state: State, run: RunState, event: StreamEvent): void {
  switch (event.type) {
    case "message.created":
      if (state.rewound !== null && state.rewound.seq === event.seq - 1) run.earlier = [...state.rewound.earlier, { from: state.rewound.from, until: run.id }];
      state.rewound = null;
      return putMessage(state, event.data.message);
    case "message.started":
      run.begun.push(event.data.message_id);
      if (event.data.role === "tool") return;
      return putMessage(state, { id: event.data.message_id, run_id: run.id, role: event.data.role, parts: [], status: "partial", created_at: event.at }, true);
    case "part.started": {
      const { data } = event;
      const item = state.messages.get(data.message_id);
      if (item === undefined) return;
      const part: BegunPart = { type: data.kind as BegunPart["type"], id: data.part_id, text: "" };
      if (data.kind === "tool_call" && data.call_id !== undefined) {
        part.call_id = data.call_id;
        callOf(state, data.call_id, data.name).item = item;
      }
      item.parts.push(part);
      state.parts.set(part.id, { item, part });
      return touch(state, item);
    }
    case "part.delta": {
      const known = state.parts.get(event.data.part_id);
      if (known === undefined) return;
      const { part } = known;
      if (part.type === "tool_call") {
        const call = state.calls.get(part.call_id ?? "");
        if (call !== undefined) call.written += event.data.delta;
      } else {
        (part as { text: string }).text += event.data.delta;
      }
      return touch(state, known.item);
    }
    case "part.completed": {
      const { part, message_id: id } = event.data;
      const item = state.messages.get(id);
      if (item === undefined) return;
      const at = item.parts.findIndex((known) => known.id === part.id);
      if (at < 0) item.parts.push(part);
      else item.parts[at] = part;
      state.parts.set(part.id, { item, part });
      if (part.type === "tool_call") Object.assign(callOf(state, part.call_id, part.name), { arguments: part.arguments, item });
      return touch(state, item);
    }
    case "step.started":
      if (event.data.kind === "model") run.steps.add(event.data.step);
      Object.assign(run, { begun: [], kind: event.data.kind, retry: null });
      return;
    case "step.completed":
      run.kind = null;
      return;
    case "step.reset":
      for (const id of run.begun) dropMessage(state, id);
      run.begun = [];
      return;
    case "tool.started": {
      const call = shownCall(state, run, event.data);
      Object.assign(call, { state: "started", arguments: event.data.arguments, server: event.data.server ?? null });
      return touch(state, call.item);
    }
    case "tool.progress": {
      const call = state.calls.get(event.data.call_id);
      if (call === undefined) return;
      call.progress = event.data;
      return touch(state, call.item);
    }
    case "tool.completed": {
      const { data } = event;
      const call = shownCall(state, run, data);
      const { state: ended, content, is_error: isError, duration_ms: ms, truncated } = data;
      Object.assign(call, { state: ended, content, isError, ms, truncated, progress: null, server: data.server ?? null });
      return touch(state, call.item);
    }
    case "tool.outcome_unknown": {
      const call = shownCall(state, run, event.data);
      Object.assign(call, { state: "unknown", progress: null });
      return touch(state, call.item);
    }
    case "tool.quarantined":
      return note(run, event.seq, `The tool ${event.data.name} is not offered in this run: ${event.data.reason}`);
    case "model.adapted":
      return note(run, event.seq, `The model ${event.data.model} is asked without a part that its provider refused (${event.data.change}): ${event.data.reason}`);
    case "context.budget":
      state.budget = event.data;
      return;
    case "context.compacted": {
      const what = event.data.messages > 0 ? `${event.data.messages} older messages are` : "Long texts are";
      return note(run, event.seq, `${what} left out of what the model reads from here on, so that it fits. They stay in the conversation.`);
    }
    case "approval.requested":
      return putQuestion(state, run.id, "approval", event.data);
    case "approval.resolved":
      return settle(state, event.data.id, { status: event.data.status, answer: event.data });
    case "input.requested":
      return putQuestion(state, run.id, "question", event.data);
    case "input.resolved":
      return settle(state, event.data.id, { status: event.data.state, answer: event.data.answer ?? null });
    case "plan.created":
      run.plan = event.data.steps.map((step) => ({ ...step, state: "open" }));
      add<PlanItem>(run, { key: `plan:${run.id}`, kind: "plan", steps: run.plan });
      return;
    case "plan.step_started":
      return planStep(state, run, event.data.step, "running");
    case "plan.step_completed":
      return planStep(state, run, event.data.step, event.data.state);
    case "run.queued":
      Object.assign(run, { status: "queued", position: event.data.position });
      run.rev += 1;
      return replace(state, run, event.data.supersedes ?? []);
    case "run.started":
      Object.assign(run, { status: "processing", agent: event.data.agent, agentVersion: event.data.agent_version, model: event.data.model });
      run.rev += 1;
      return;
    case "run.resumed":
      Object.assign(run, { status: "processing", reason: null, retry: null });
      return;
    case "run.retrying":
      run.retry = { ...event.data, at: Date.parse(event.at) };
      return;
    case "run.waiting":
      Object.assign(run, { status: "waiting", reason: event.data.reason, detail: event.data.detail ?? null });
      return;
    case "run.completed":
      return end(state, run.id, "completed", event.data);
    case "run.failed":
      return end(state, run.id, "failed", event.data);
    case "run.cancelled":
      return end(state, run.id, "cancelled", event.data);
    default:
      return ofConversation(state, event);
  }
}

/**
 * Adds events from before the snapshot, for facts that a snapshot omits: plans, times of calls, the size of the context. Values
 * that are known to be newer stay.
 */
export function recall(state: State, events: StreamEvent[]): void {
  for (const event of events) {
    const run = state.runs.get(event.run_id ?? "");
    if (run === undefined) continue;
    if (event.type === "plan.created" && run.plan === null) {
      run.plan = event.data.steps.map((step) => ({ ...step, state: "open" }));
      const at = run.items.findIndex((known) => known.kind === "message" && known.role === "assistant");
      run.items.splice(at < 0 ? run.items.length : at, 0, { key: `plan:${run.id}`, kind: "plan", steps: run.plan, rev: 0, run: run.id });
      run.recalled = true;
      run.rev += 1;
    } else if (run.recalled && event.type === "plan.step_started") {
      planStep(state, run, event.data.step, "running");
    } else if (run.recalled && event.type === "plan.step_completed") {
      planStep(state, run, event.data.step, event.data.state);
    } else if (event.type === "tool.started") {
      const call = state.calls.get(event.data.call_id);
      if (call?.state !== "written") continue;
      Object.assign(call, { state: "started", arguments: event.data.arguments, server: event.data.server ?? null });
      touch(state, call.item);
    } else if (event.type === "tool.completed") {
      const { data } = event;
      const call = state.calls.get(data.call_id);
      if (call === undefined || call.ms !== null) continue;
      Object.assign(call, { ms: data.duration_ms, content: call.content ?? data.content, truncated: data.truncated, server: data.server ?? null });
      if (["written", "started"].includes(call.state)) Object.assign(call, { state: data.state, isError: data.is_error });
      touch(state, call.item);
    } else if (event.type === "context.budget" && (state.budget === null || state.budget.recalled === true)) {
      state.budget = { ...event.data, recalled: true };
    } else if (event.type === "step.started" && event.data.kind === "model") {
      // A repeated step is counted once.
      run.steps.add(event.data.step);
    }
  }
}

/** Sets the user's rating of an answer. */
export function rate(state: State, id: string, rating: "up" | "down" | undefined): void {
  const item = state.messages.get(id);
  if (item === undefined) return;
  item.rating = rating;
  touch(state, item);
}

function trim(state: State): void {
  let count = 0;
  for (const run of state.runs.values()) count += run.items.length;
  if (count <= MOST_ITEMS) return;
  const current = active(state);
  for (const run of [...state.runs.values()]) {
    if (count <= KEPT_ITEMS || run === current) break;
    count -= run.items.length;
    for (const item of run.items) {
      if (item.kind === "question") state.questions.delete(item.question.id);
      if (item.kind === "message") for (const part of item.parts) if (part.type === "tool_call") state.calls.delete(part.call_id ?? "");
      state.messages.delete(item.key);
    }
    state.runs.delete(run.id);
    Object.assign(state, { truncated: true, before: null, trimmed: true });
  }
}
