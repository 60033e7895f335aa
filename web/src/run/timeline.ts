// The phases of a run: a function from its events to stretches of time.

import type { StreamEvent } from "../api/types";

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
  input: number | null;
  output: number | null;
  calls: { name: string; ms: number; isError: boolean }[];
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

/** Returns the steps with their usage and calls. */
export function steps(events: StreamEvent[]): Step[] {
  const found = new Map<number, Step>();
  let current: Step | undefined;
  for (const event of events) {
    if (event.type === "step.started") {
      current = { number: event.data.step, kind: event.data.kind, from: Date.parse(event.at), ms: null, input: null, output: null, calls: [] };
      found.set(event.data.step, current);
    } else if (event.type === "step.completed") {
      const step = found.get(event.data.step);
      if (step === undefined) continue;
      step.ms = Date.parse(event.at) - step.from;
      step.input = event.data.usage?.input_tokens ?? null;
      step.output = event.data.usage?.output_tokens ?? null;
    } else if (event.type === "tool.completed" && current !== undefined) {
      current.calls.push({ name: event.data.name, ms: event.data.duration_ms, isError: event.data.is_error });
    }
  }
  return [...found.values()];
}
