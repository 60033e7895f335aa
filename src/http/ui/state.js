// The state of a conversation: a function from its events to the content of the page. It knows neither the page nor the network.
//
// A conversation is a list of runs, in their order; a run is a list of items. Each item has a `key` and a `rev` that grows when it
// changes, so that the view draws again only what has changed.

/** Items that are kept; beyond, whole runs go, oldest first. */
const MOST_ITEMS = 800;
const KEPT_ITEMS = 600;

/** Messages of a page of earlier ones. */
export const PAGE = 50;

const ENDED = new Set(["completed", "failed", "cancelled", "over"]);

export function initial() {
  return {
    epoch: 0,
    loaded: false,
    title: null,
    truncated: false,
    /** The cursor of the messages before those that are kept; `null` if there are none, or they cannot be read. */
    before: null,
    /** Items that the user has asked for beyond those that are kept anyway. */
    asked: 0,
    runs: new Map(),
    messages: new Map(),
    calls: new Map(),
    asks: new Map(),
    parts: new Map(),
    sent: new Map(),
    budget: null,
  };
}

/** The run that is under way: the first that is not over, and has begun if any has. */
export function active(state) {
  let queued = null;
  for (const run of state.runs.values()) {
    if (ENDED.has(run.status)) continue;
    if (run.status !== "queued") return run;
    queued ??= run;
  }
  return queued;
}

export const isOver = (run) => ENDED.has(run.status);

/** The newest run. */
export const newest = (state) => [...state.runs.values()].at(-1) ?? null;

/** Which of its model's answers a run is at, from 1; 0 before the first. */
export function round(run) {
  const answers = run.items.filter((item) => item.role === "assistant");
  const isNext = run.kind === "model" && !answers.some((item) => item.streaming);
  return Math.max(run.steps.size, answers.length + (isNext ? 1 : 0));
}

/** What is still to be answered. */
export const open = (state) => [...state.asks.values()].filter((ask) => ask.status === "pending");

function runOf(state, id) {
  let run = state.runs.get(id);
  if (run === undefined) {
    run = {
      id, rev: 0, items: [], status: "over", reason: null, detail: null, agent: null, agentVersion: null, model: null, steps: new Set(),
      kind: null, begun: [], plan: null, end: null, retry: null, position: 0, recalled: false,
    };
    state.runs.set(id, run);
  }
  return run;
}

function touch(item) {
  if (item !== undefined && item !== null) item.rev += 1;
}

function add(state, run, item) {
  item.rev = 0;
  item.run = run.id;
  run.items.push(item);
  touch(run);
  return item;
}

function callOf(state, id, name) {
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

/** A call that no message of ours holds is shown by itself. */
function shownCall(state, run, data) {
  const call = callOf(state, data.call_id, data.name);
  if (call.item === null) {
    call.item = add(state, run, { key: `call:${call.id}`, kind: "message", role: "assistant", parts: [{ type: "tool_call", id: call.id, call_id: call.id }] });
  }
  return call;
}

function putMessage(state, message, streaming = false) {
  const run = runOf(state, message.run_id);
  state.sent.delete(message.id);
  for (const part of message.parts) {
    if (part.type !== "tool_result") continue;
    const call = callOf(state, part.call_id, part.name);
    Object.assign(call, { content: part.content, isError: part.is_error, state: part.state, progress: null });
    touch(call.item);
  }
  if (message.role === "tool") return;
  if (message.internal) return dropMessage(state, message.id);
  let item = state.messages.get(message.id);
  if (item === undefined) {
    item = add(state, run, { key: message.id, kind: "message", id: message.id, role: message.role, parts: [] });
    state.messages.set(message.id, item);
  }
  for (const part of item.parts) state.parts.delete(part.id);
  const { parts, model, usage, finish_reason: finish, status, created_at: at } = message;
  Object.assign(item, { parts, model, usage, finish, at, streaming, partial: status === "partial" && !streaming });
  for (const part of parts) {
    if (streaming) state.parts.set(part.id, { item, part });
    if (part.type !== "tool_call") continue;
    const call = callOf(state, part.call_id, part.name);
    if (streaming && part.arguments && typeof part.arguments._raw === "string") call.written = part.arguments._raw;
    else call.arguments = part.arguments;
    call.item = item;
  }
  touch(item);
}

function dropMessage(state, id) {
  const item = state.messages.get(id);
  if (item === undefined) return;
  state.messages.delete(id);
  const calls = new Set();
  for (const part of item.parts) {
    state.parts.delete(part.id);
    if (part.type !== "tool_call" || state.calls.get(part.call_id)?.item !== item) continue;
    state.calls.delete(part.call_id);
    calls.add(part.call_id);
  }
  const run = state.runs.get(item.run);
  // Questions about the message's calls are removed with it.
  const isOf = (other) => other === item || (other.kind === "ask" && calls.has(other.ask.data.call_id));
  for (const { ask } of run.items.filter(isOf)) if (ask !== undefined) state.asks.delete(ask.id);
  run.items = run.items.filter((other) => !isOf(other));
  touch(run);
}

function putAsk(state, runId, kind, data) {
  if (state.asks.has(data.id)) return;
  const run = runOf(state, runId);
  const item = add(state, run, { key: data.id, kind: "ask", ask: { kind, id: data.id, status: "pending", data, answer: null } });
  item.ask.item = item;
  state.asks.set(data.id, item.ask);
  const call = data.call_id === undefined ? undefined : state.calls.get(data.call_id);
  if (call !== undefined && kind === "approval") {
    call.state = "awaiting_approval";
    touch(call.item);
  }
}

function settle(state, id, change) {
  const ask = state.asks.get(id);
  if (ask === undefined) return;
  Object.assign(ask, change);
  touch(ask.item);
}

function snapshot(state, data) {
  const { epoch, title, sent } = state;
  Object.assign(state, initial(), { epoch: epoch + 1, title, sent, loaded: true, truncated: data.truncated, before: data.before });
  for (const message of data.messages) putMessage(state, message);
  const current = data.active_run;
  if (current) {
    const ids = [...state.runs.keys()];
    const run = runOf(state, current.run.id);
    const place = ids.indexOf(run.id);
    // Runs behind the active run wait for it.
    for (const id of place < 0 ? [] : ids.slice(place + 1)) state.runs.get(id).status = "queued";
    const { status, reason = null, agent, agent_version: agentVersion, model } = current.run;
    Object.assign(run, { status, reason, agent, agentVersion, model });
    if (current.partial_message) {
      putMessage(state, current.partial_message, true);
      run.begun = [current.partial_message.id];
    }
  }
  for (const approval of data.pending_approvals) putAsk(state, approval.run_id, "approval", approval);
  for (const input of data.pending_inputs) putAsk(state, input.run_id, "question", input);
}

/** Takes in a page of the messages before those that are known. */
export function prepend(state, page) {
  const known = state.runs;
  state.runs = new Map();
  for (const message of page.data) if (!state.messages.has(message.id)) putMessage(state, message);
  for (const run of state.runs.values()) state.asked += run.items.length;
  for (const [id, run] of known) {
    // The oldest known run may have begun among these messages.
    run.items.unshift(...(state.runs.get(id)?.items ?? []));
    state.runs.set(id, run);
    touch(run);
  }
  state.before = page.next_cursor;
  state.truncated = state.before !== null;
}

/** What ended a run, as its event or the run itself tells it. */
export function end(state, id, status, data) {
  const run = runOf(state, id);
  for (const item of run.items.filter((item) => item.streaming)) dropMessage(state, item.id);
  // The run's pending questions are closed with it.
  for (const { ask } of run.items) if (ask?.status === "pending") settle(state, ask.id, { status: "cancelled" });
  Object.assign(run, { status, reason: null, retry: null, begun: [] });
  const { usage = null, error = null, finish_reason: finish = null, notice = null, by = null } = data;
  run.end = { status, usage, error, finish, notice, by };
  touch(run);
}

const HANDLERS = {
  "stream.snapshot": (state, _, data) => snapshot(state, data),
  "message.created": (state, _, data) => putMessage(state, data.message),
  "message.completed": (state, _, data) => putMessage(state, data.message),
  "message.started": (state, run, data) => {
    run.begun.push(data.message_id);
    if (data.role === "tool") return;
    putMessage(state, { id: data.message_id, run_id: run.id, role: data.role, parts: [], status: "partial" }, true);
  },
  "part.started": (state, _, data) => {
    const item = state.messages.get(data.message_id);
    if (item === undefined) return;
    const part = { type: data.kind, id: data.part_id, text: "" };
    if (data.kind === "tool_call") {
      part.call_id = data.call_id;
      callOf(state, data.call_id, data.name).item = item;
    }
    item.parts.push(part);
    state.parts.set(part.id, { item, part });
    touch(item);
  },
  "part.delta": (state, _, data) => {
    const known = state.parts.get(data.part_id);
    if (known === undefined) return;
    if (known.part.type === "tool_call") state.calls.get(known.part.call_id).written += data.delta;
    else known.part.text += data.delta;
    touch(known.item);
  },
  "part.completed": (state, _, data) => {
    const item = state.messages.get(data.message_id);
    if (item === undefined) return;
    const at = item.parts.findIndex((part) => part.id === data.part.id);
    if (at < 0) item.parts.push(data.part);
    else item.parts[at] = data.part;
    state.parts.set(data.part.id, { item, part: data.part });
    if (data.part.type === "tool_call") {
      const call = callOf(state, data.part.call_id, data.part.name);
      Object.assign(call, { arguments: data.part.arguments, item });
    }
    touch(item);
  },
  "step.started": (_, run, data) => {
    if (data.kind === "model") run.steps.add(data.step);
    Object.assign(run, { begun: [], kind: data.kind, retry: null });
  },
  "step.completed": (_, run) => {
    run.kind = null;
  },
  "step.reset": (state, run) => {
    for (const id of run.begun) dropMessage(state, id);
    run.begun = [];
  },
  "tool.started": (state, run, data) => {
    const call = shownCall(state, run, data);
    Object.assign(call, { state: "started", arguments: data.arguments, server: data.server ?? null });
    touch(call.item);
  },
  "tool.progress": (state, _, data) => {
    const call = state.calls.get(data.call_id);
    if (call === undefined) return;
    call.progress = data;
    touch(call.item);
  },
  "tool.completed": (state, run, data) => {
    const call = shownCall(state, run, data);
    const { state: ended, content, is_error: isError, duration_ms: ms, truncated } = data;
    Object.assign(call, { state: ended, content, isError, ms, truncated, progress: null, server: data.server ?? null });
    touch(call.item);
  },
  "tool.outcome_unknown": (state, run, data) => {
    const call = shownCall(state, run, data);
    Object.assign(call, { state: "unknown", progress: null });
    touch(call.item);
  },
  "tool.quarantined": (state, run, data, event) => note(state, run, event, `The tool ${data.name} is not offered in this run: ${data.reason}`),
  "model.adapted": (state, run, data, event) =>
    note(state, run, event, `The model ${data.model} is asked without a part that its provider refused (${data.change}): ${data.reason}`),
  "context.budget": (state, _, data) => {
    state.budget = data;
  },
  "context.compacted": (state, run, data, event) => {
    const what = data.messages > 0 ? `${data.messages} older messages are` : "Long texts are";
    note(state, run, event, `${what} left out of what the model reads from here on, so that it fits. They stay in the conversation.`);
  },
  "approval.requested": (state, run, data) => putAsk(state, run.id, "approval", data),
  "approval.resolved": (state, _, data) => settle(state, data.id, { status: data.status, answer: data }),
  "input.requested": (state, run, data) => putAsk(state, run.id, "question", data),
  "input.resolved": (state, _, data) => settle(state, data.id, { status: data.state, answer: data.answer ?? null }),
  "plan.created": (state, run, data) => {
    run.plan = data.steps.map((step) => ({ ...step, state: "open" }));
    add(state, run, { key: `plan:${run.id}`, kind: "plan", steps: run.plan });
  },
  "plan.step_started": (_, run, data) => planStep(run, data.step, "running"),
  "plan.step_completed": (_, run, data) => planStep(run, data.step, data.state),
  "run.queued": (state, run, data) => {
    Object.assign(run, { status: "queued", position: data.position });
    for (const id of data.supersedes ?? []) dropMessage(state, id);
    touch(run);
  },
  "run.started": (_, run, data) => {
    Object.assign(run, { status: "processing", agent: data.agent, agentVersion: data.agent_version, model: data.model });
    touch(run);
  },
  "run.resumed": (_, run) => Object.assign(run, { status: "processing", reason: null, retry: null }),
  "run.retrying": (_, run, data) => {
    run.retry = data;
  },
  "run.waiting": (_, run, data) => Object.assign(run, { status: "waiting", reason: data.reason, detail: data.detail ?? null }),
  "run.completed": (state, run, data) => end(state, run.id, "completed", data),
  "run.failed": (state, run, data) => end(state, run.id, "failed", data),
  "run.cancelled": (state, run, data) => end(state, run.id, "cancelled", data),
  "conversation.updated": (state, _, data) => {
    if (data.title !== undefined) state.title = data.title;
    for (const id of data.supersedes ?? []) dropMessage(state, id);
  },
};

/** Where runs of another status than the one that they are known to have cannot be. */
const WAKES = new Set(["step.started", "tool.started", "message.started"]);

function note(state, run, event, words) {
  add(state, run, { key: `note:${event.seq}`, kind: "note", words });
}

function planStep(run, step, how) {
  const found = run.plan?.find((planned) => planned.step === step);
  if (found !== undefined) found.state = how;
  touch(run.items.find((item) => item.kind === "plan"));
}

/** Takes one event in. Types that this page does not know change nothing. */
export function reduce(state, event) {
  const handler = HANDLERS[event.type];
  if (handler === undefined || !Object.hasOwn(HANDLERS, event.type)) return;
  const run = event.run_id === undefined ? undefined : runOf(state, event.run_id);
  if (run !== undefined && WAKES.has(event.type)) Object.assign(run, { status: "processing", reason: null });
  handler(state, run, event.data, event);
  trim(state);
}

/**
 * Adds events from before the snapshot, for facts that a snapshot omits: plans, times of calls, the size of the context. Values
 * that are known to be newer stay.
 */
export function recall(state, events) {
  for (const { type, data, run_id: id } of events) {
    const run = state.runs.get(id);
    if (run === undefined) continue;
    const call = state.calls.get(data.call_id);
    if (type === "plan.created" && run.plan === null) {
      run.plan = data.steps.map((step) => ({ ...step, state: "open" }));
      const item = { key: `plan:${run.id}`, kind: "plan", steps: run.plan, rev: 0, run: run.id };
      const at = run.items.findIndex((known) => known.role === "assistant");
      run.items.splice(at < 0 ? run.items.length : at, 0, item);
      run.recalled = true;
      touch(run);
    } else if (run.recalled && (type === "plan.step_started" || type === "plan.step_completed")) {
      planStep(run, data.step, type === "plan.step_started" ? "running" : data.state);
    } else if (type === "tool.started" && call !== undefined && call.state === "written") {
      Object.assign(call, { state: "started", arguments: data.arguments, server: data.server ?? null });
      touch(call.item);
    } else if (type === "tool.completed" && call !== undefined && call.ms === null) {
      Object.assign(call, { ms: data.duration_ms, content: call.content ?? data.content, truncated: data.truncated, server: data.server ?? null });
      if (["written", "started"].includes(call.state)) Object.assign(call, { state: data.state, isError: data.is_error });
      touch(call.item);
    } else if (type === "context.budget" && (state.budget === null || state.budget.recalled)) {
      state.budget = { ...data, recalled: true };
    } else if (type === "step.started" && data.kind === "model") {
      // A repeated step is counted once.
      run.steps.add(data.step);
    }
  }
}

function trim(state) {
  let count = 0;
  for (const run of state.runs.values()) count += run.items.length;
  if (count <= MOST_ITEMS + state.asked) return;
  const current = active(state);
  for (const run of [...state.runs.values()]) {
    if (count <= KEPT_ITEMS + state.asked || run === current) break;
    count -= run.items.length;
    for (const item of run.items) {
      if (item.ask !== undefined) state.asks.delete(item.ask.id);
      for (const part of item.parts ?? []) if (part.call_id) state.calls.delete(part.call_id);
      state.messages.delete(item.key);
    }
    state.runs.delete(run.id);
    Object.assign(state, { truncated: true, before: null });
  }
}
