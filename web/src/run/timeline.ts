// The phases of a run: a function from its events to stretches of time.

import type { ContextBudget, StreamEvent, Usage } from "../api/types";

export type PhaseKind = "queued" | "model" | "tools" | "human" | "backoff" | "takeover";

export interface Phase {
  kind: PhaseKind;
  from: number;
  to: number;
  label: string;
}

/** A step with the figures of its end. */
export interface Step {
  number: number;
  kind: string;
  from: number;
  ms: number | null;
  usage: Usage | null;
  /** The size of the request to the model, and its tools if the agent selects among them. */
  request: ContextBudget | null;
  tools: { offered: number; of: number } | null;
  /** The errors of the tries that failed. */
  failedAttempts: string[];
  /** The ids of the calls that were made, or wait. */
  calls: string[];
}

const WAITS: Record<string, { kind: PhaseKind; label: string }> = {
  approval: { kind: "human", label: "waits for a decision" },
  input: { kind: "human", label: "waits for an answer" },
  client_tool: { kind: "human", label: "waits for its client" },
  backoff: { kind: "backoff", label: "waits, and tries again" },
  budget: { kind: "backoff", label: "waits for a budget" },
};

const TAKEOVER = { kind: "takeover", label: "its worker was lost, until the next claim" } as const;

/** The time between the last event of a worker and the next claim, by the cause of that claim. */
const LOST: Record<string, { kind: PhaseKind; label: string }> = {
  crash: TAKEOVER,
  handed_back: { kind: "queued", label: "was handed back, and waited for a worker" },
  reload: { kind: "backoff", label: "its worker waited for the database" },
};

/** Events that requests write too. They do not show that a worker was alive. */
const OF_REQUESTS = new Set(["run.queued", "message.created", "approval.resolved", "input.resolved"]);

/** Returns the phases of a run, in their order. The last one ends at `end`. */
export function phases(events: StreamEvent[], end: number): Phase[] {
  const found: Phase[] = [];
  let attempt = 0;
  /** The time of the last event of a worker. */
  let lastSign = 0;
  let isWorking = false;
  let step: { number: number; kind: PhaseKind } | null = null;
  const begin = (kind: PhaseKind, at: number, label: string) => {
    const last = found.at(-1);
    if (last !== undefined) last.to = at;
    found.push({ kind, from: at, to: end, label });
  };
  const work = (at: number) => {
    isWorking = true;
    if (step === null) begin("model", at, "prepares a step");
    else begin(step.kind, at, `step ${step.number}: ${step.kind}`);
  };
  /** Begins a phase without a worker, unless the run waits already. */
  const lose = ({ kind, label }: { kind: PhaseKind; label: string }) => {
    if (isWorking) begin(kind, lastSign, label);
    isWorking = false;
  };
  for (const event of events) {
    const at = Date.parse(event.at);
    if (!OF_REQUESTS.has(event.type)) {
      const isNewClaim = "attempt" in event && (event.attempt ?? 0) > attempt;
      if (isNewClaim) attempt = event.attempt ?? attempt;
      if (event.type === "run.resumed") lose(LOST[event.data.cause] ?? { kind: "queued", label: "waited for a worker" });
      // A claim may end the run at once, without `run.resumed`.
      else if (isNewClaim) lose((event.type === "step.reset" ? LOST[event.data.reason] : undefined) ?? TAKEOVER);
      lastSign = at;
    }
    switch (event.type) {
      case "run.queued":
        begin("queued", at, "queued");
        break;
      case "run.started":
      case "run.resumed":
        work(at);
        break;
      case "step.started":
        step = { number: event.data.step, kind: event.data.kind === "model" ? "model" : "tools" };
        work(at);
        break;
      case "step.completed":
        step = null;
        break;
      case "tool.started":
        // A run that repeats a call of another run begins inside of a step.
        if (step === null && found.at(-1)?.kind === "model") begin("tools", at, "calls tools");
        break;
      case "run.waiting": {
        const { kind, label } = WAITS[event.data.reason] ?? { kind: "backoff", label: "waits" };
        isWorking = false;
        begin(kind, at, label);
        break;
      }
      case "approval.resolved":
      case "input.resolved":
        // The answer is stored, and a worker must claim the run.
        if (found.at(-1)?.kind === "human") begin("queued", at, "waits for a worker");
        break;
      case "run.retrying":
        begin("backoff", at, `tries again in ${Math.ceil(event.data.after_ms / 1000)} s`);
        break;
      default:
        break;
    }
  }
  return found.filter((phase) => phase.to > phase.from);
}

/** Returns the steps with their usage, requests and calls. */
export function steps(events: StreamEvent[]): Step[] {
  const found = new Map<number, Step>();
  let current: Step | undefined;
  const call = (id: string | undefined) => {
    if (current !== undefined && id !== undefined && !current.calls.includes(id)) current.calls.push(id);
  };
  for (const event of events) {
    switch (event.type) {
      case "step.started": {
        const { step: number, kind, tools = null } = event.data;
        // A step that is tried again, or that another worker repeats, keeps its failures and calls.
        const { failedAttempts = [], calls = [] } = found.get(number) ?? {};
        current = { number, kind, from: Date.parse(event.at), ms: null, usage: null, request: null, tools, failedAttempts, calls };
        found.set(number, current);
        break;
      }
      case "step.completed": {
        const step = found.get(event.data.step);
        if (step === undefined) break;
        step.ms = Date.parse(event.at) - step.from;
        step.usage = event.data.usage ?? null;
        break;
      }
      case "context.budget":
        if (current !== undefined) current.request = event.data;
        break;
      case "run.retrying":
        current?.failedAttempts.push(event.data.error.title);
        break;
      case "approval.requested":
      case "tool.requested":
      case "tool.started":
      case "tool.completed":
      case "tool.outcome_unknown":
        call(event.data.call_id);
        break;
      default:
        break;
    }
  }
  return [...found.values()];
}
