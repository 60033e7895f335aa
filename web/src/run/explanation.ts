// Words the explanation of a run for people. Programs and operators read `summary`, which has ids, routes and seconds.

import type { RunExplanation } from "../api/types";
import { span } from "../text/words";

const WAITS: Record<NonNullable<RunExplanation["waiting_for"]>, string> = {
  approval: "a human to approve a tool call",
  input: "a human’s answer",
  client_tool: "its client to execute a tool call",
  backoff: "its next try",
  budget: "the budget of the day, which is spent or reserved by running calls",
};

/** Returns the state of a run in one or a few sentences. */
export function sentences(run: RunExplanation): string {
  return [cause(run), ...(run.state === "ended" ? [] : [cancellation(run), crashes(run)])].filter((sentence) => sentence !== "").join(" ");
}

function cause(run: RunExplanation): string {
  switch (run.state) {
    case "ended":
      return ended(run);
    case "working":
      return `A worker holds the run and ${activity(run)}.`;
    case "asking":
      return `A worker holds the run and ${activity(run)}, which waits for a human’s answer.${questions(run)}`;
    case "lease_expired":
      return `${lost(run)}; another one claims the run soon.`;
    case "waiting":
      return waiting(run);
    case "behind_run":
      return `The run is queued behind an earlier run of the conversation${behind(run)}.`;
    case "owner_limit":
      return `${subject(run)} waits until another run of its owner ends or waits: no more of them may be active at once.`;
    case "queued":
      return `${subject(run)} ${position(run)}.`;
    case "no_free_slot":
      return `${subject(run)} ${position(run)}, for ${claimableFor(run)}; probably no worker has a free slot.`;
    case "no_worker":
      return `${run.lease === undefined ? `${subject(run)} ${position(run)}, for ${claimableFor(run)}` : lost(run)}, and no worker holds any run: probably no worker is alive.`;
  }
}

function ended({ run, cancel_requested_by: by, last_error, resumable }: RunExplanation): string {
  if (run.status === "completed") return "The run is completed.";
  if (run.status === "cancelled") return by === undefined ? "The run was cancelled." : `The run was cancelled by ${by}.`;
  return `The run failed: ${last_error?.detail ?? "the cause was not stored"}.${resumable ? " “Resume” in the conversation continues from the stored state." : ""}`;
}

/** Returns what the worker does, as the end of a sentence. */
function activity({ step, tools_under_way: tools }: RunExplanation): string {
  if (step === undefined) return "is about to begin";
  if (step.status !== "started") return `has finished step ${step.number}`;
  if (step.kind !== "tools") return `waits for the model in step ${step.number} for ${span(step.age_ms)}`;
  // The step is as old as its first call, but an approval may have taken days.
  return tools.length === 0 ? `is about to continue the calls of step ${step.number}` : `runs tools (${tools.join(", ")}) in step ${step.number} for ${span(step.age_ms)}`;
}

const lost = ({ lease }: RunExplanation): string => `The worker of the run was lost ${span(Math.max(0, -(lease?.expires_in_ms ?? 0)))} ago`;

function waiting(run: RunExplanation): string {
  const { waiting_for: reason, claimable_in_ms: wait } = run;
  const time = wait !== undefined && wait > 0 ? span(wait) : null;
  if (reason === undefined || reason === "backoff") {
    if (time === null) return "No worker can claim the run at this moment.";
    return reason === undefined ? `The run can be claimed in ${time}.` : `The model call failed and will be retried in ${time}.`;
  }
  if (reason === "budget") return `The run waits for ${WAITS.budget}${time === null ? "" : `, and checks again in ${time}`}.`;
  return `The run waits for ${WAITS[reason]}${time === null ? "" : `, for at most ${time} more`}.${questions(run)}`;
}

/** Returns what the earlier run does, if it does not just work. */
function behind({ behind_state: state, behind_waiting_for: reason }: RunExplanation): string {
  if (state === "asking") return `, which waits for ${WAITS.input}`;
  if (state === "waiting" && reason !== undefined) return `, which waits for ${WAITS[reason]}`;
  if (state === "lease_expired") return ", whose worker was lost";
  if (state === "no_free_slot") return ", which waits for a worker with a free slot";
  return state === "no_worker" ? ", which no worker claims: probably none is alive" : "";
}

function subject({ waiting_for: reason, questions }: RunExplanation): string {
  if (reason === "backoff") return "The failed model call can be retried, and the run";
  return reason !== undefined && reason !== "budget" && questions.length === 0 ? "The answer is stored, and the run" : "The run";
}

function position({ queue_position: before = 0 }: RunExplanation): string {
  if (before === 0) return "is the next in the queue";
  return `is in the queue; ${before === 1 ? "1 run comes" : `${before} runs come`} first`;
}

const claimableFor = ({ claimable_in_ms: wait = 0 }: RunExplanation): string => span(Math.max(0, -wait));

const questions = ({ questions }: RunExplanation): string => questions.map(({ text }) => ` The question: ${text}`).join("");

function cancellation({ cancel_requested_by: by, lease }: RunExplanation): string {
  if (by === undefined) return "";
  return `Its cancellation was requested; ${lease !== undefined && lease.expires_in_ms > 0 ? "its worker ends it soon" : "the next worker that claims it ends it"}.`;
}

function crashes({ crashes }: RunExplanation): string {
  if (crashes === 0) return "";
  return crashes === 1 ? "Its worker has crashed once." : `Its workers have crashed ${crashes} times.`;
}
