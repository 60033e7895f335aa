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
  backoff: { kind: "backoff", label: "waits, and tries again" },
  budget: { kind: "backoff", label: "waits for a budget" },
};

/** Returns the phases of a run, in their order. The last one ends at `end`. */
export function phases(events: StreamEvent[], end: number): Phase[] {
  const found: Phase[] = [];
  let attempt: number | undefined;
  const begin = (kind: PhaseKind, at: number, label: string) => {
    const last = found.at(-1);
    if (last !== undefined) last.to = at;
    found.push({ kind, from: at, to: end, label });
  };
  for (const event of events) {
    const at = Date.parse(event.at);
    if ("attempt" in event && event.attempt !== undefined && attempt !== undefined && event.attempt > attempt) begin("takeover", at, `attempt ${event.attempt}`);
    if ("attempt" in event) attempt = event.attempt ?? attempt;
    switch (event.type) {
      case "run.queued":
        begin("queued", at, "queued");
        break;
      case "step.started":
        begin(event.data.kind === "model" ? "model" : "tools", at, event.data.kind === "model" ? `step ${event.data.step}: model` : `step ${event.data.step}: tools`);
        break;
      case "run.waiting": {
        const { kind, label } = WAITS[event.data.reason] ?? { kind: "backoff", label: "waits" };
        begin(kind, at, label);
        break;
      }
      case "run.retrying":
        begin("backoff", at, `tries again in ${Math.ceil(event.data.after_ms / 1000)} s`);
        break;
      case "run.resumed":
        begin("queued", at, "goes on");
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
        // A step that another worker repeats keeps its calls.
        current = { number, kind, from: Date.parse(event.at), ms: null, usage: null, request: null, tools, failedAttempts: [], calls: found.get(number)?.calls ?? [] };
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
