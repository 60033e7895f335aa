// The activity of a run, in words.

import { openQuestions, round, type RunState, type State } from "../conversation/state";
import { brief } from "../text/words";

const WAITS: Record<string, string> = { approval: "waits for your decision", input: "waits for your answer", backoff: "waits, and tries again", budget: "waits for a budget" };

/** Returns the activity of a run, which has at most `max` steps if that is known. */
export function progressText(run: RunState, state: State, max: number | null): string {
  const at = round(run);
  const step = at === 0 ? "" : max === null ? `Step ${at}` : `Step ${Math.min(at, max)} of ${max}`;
  return [step, activity(run, state)].filter(Boolean).join(" · ");
}

function activity(run: RunState, state: State): string {
  if (run.status === "queued") return run.position > 0 ? `waits behind ${run.position} other${run.position > 1 ? "s" : ""}` : "waits for a worker";
  if (run.status === "waiting") return (Object.hasOwn(WAITS, run.reason ?? "") ? (WAITS[run.reason ?? ""] ?? "waits") : "waits") + (run.detail === null || run.detail === "" ? "" : `: ${brief(run.detail, 160)}`);
  // A server may ask while its call is under way.
  const waiting = openQuestions(state).filter((question) => question.item?.run === run.id);
  if (waiting.length > 0) return waiting.some((question) => question.kind === "approval") ? "waits for your decision" : "waits for your answer";
  if (run.retry !== null) {
    const cause = brief(run.retry.error.title || "the model failed", 100);
    return run.retry.model !== undefined ? `${cause}; now ${brief(run.retry.model, 80)} is asked` : `${cause}; tries again in ${Math.ceil(run.retry.after_ms / 1000)} s`;
  }
  const calls = [...state.calls.values()].filter((call) => call.state === "started" && call.item?.run === run.id);
  if (calls.length > 0) return calls.length > 2 ? `${calls.length} tools at work` : `calls ${calls.map((call) => brief(call.name, 40)).join(" and ")}`;
  return run.items.some((item) => item.kind === "message" && item.streaming) ? "writes" : "thinks";
}
