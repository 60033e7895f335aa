import { expect, it } from "vitest";

import type { RunExplanation } from "../api/types";
import { sentences } from "./explanation";

const ID = "0".repeat(32);
const WORKER = { node: `node_${ID}`, age_ms: 5_000, expires_in_ms: 9_000 };

const said = (facts: Partial<RunExplanation>, status: RunExplanation["run"]["status"] = "processing"): string =>
  sentences({ summary: `Worker node_${ID}: POST /api/v1/runs`, moving: true, run: { status } as RunExplanation["run"], attempt: 1, crashes: 0, questions: [], tools_under_way: [], resumable: false, state: "queued", ...facts });

it("says what a run waits for, with times that people read", () => {
  const questions: RunExplanation["questions"] = [{ id: `input_${ID}`, kind: "approval", text: "May mail__send be called?" }];
  expect(said({ state: "waiting", waiting_for: "approval", claimable_in_ms: 604_797_600, questions })).toBe("The run waits for a human to approve a tool call, for at most 7 days more. The question: May mail__send be called?");
  expect(said({ state: "waiting", waiting_for: "input" })).toBe("The run waits for a human’s answer.");
  expect(said({ state: "waiting", waiting_for: "backoff", claimable_in_ms: 312_000 })).toBe("The model call failed and will be retried in 5 min.");
  expect(said({ state: "waiting", waiting_for: "budget", claimable_in_ms: 3_600_000 })).toMatch(/budget of the day, .*, and checks again in 1 h\.$/);
  expect(said({ state: "waiting", claimable_in_ms: 2_000 })).toBe("The run can be claimed in 2 s.");
  expect(said({ state: "waiting" })).toBe("No worker can claim the run at this moment.");
});

it("says what the worker does", () => {
  expect(said({ state: "working", lease: WORKER })).toBe("A worker holds the run and is about to begin.");
  const step = (kind: string, status = "started") => ({ number: 2, kind, status, age_ms: 2_400 });
  expect(said({ state: "working", lease: WORKER, step: step("model") })).toBe("A worker holds the run and waits for the model in step 2 for 2 s.");
  expect(said({ state: "working", lease: WORKER, step: step("tools") })).toBe("A worker holds the run and is about to continue the calls of step 2.");
  expect(said({ state: "working", lease: WORKER, step: step("model", "completed") })).toBe("A worker holds the run and has finished step 2.");
  const asking = said({ state: "asking", lease: WORKER, step: step("tools"), tools_under_way: ["files__read", "mail__send"], questions: [{ id: `input_${ID}`, kind: "elicitation", text: "Which one?" }] });
  expect(asking).toBe("A worker holds the run and runs tools (files__read, mail__send) in step 2 for 2 s, which waits for a human’s answer. The question: Which one?");
});

it("says why no worker holds the run", () => {
  expect(said({ queue_position: 0 })).toBe("The run is the next in the queue.");
  expect(said({ queue_position: 3, waiting_for: "backoff" })).toBe("The failed model call can be retried, and the run is in the queue; 3 runs come first.");
  expect(said({ queue_position: 1, waiting_for: "input" })).toBe("The answer is stored, and the run is in the queue; 1 run comes first.");
  expect(said({ state: "owner_limit" })).toContain("another run of its owner");
  expect(said({ state: "no_free_slot", claimable_in_ms: -65_000 })).toBe("The run is the next in the queue, for 1 min; probably no worker has a free slot.");
  expect(said({ state: "no_worker", claimable_in_ms: -65_000 })).toBe("The run is the next in the queue, for 1 min, and no worker holds any run: probably no worker is alive.");
  const expired = { ...WORKER, expires_in_ms: -600_000 };
  expect(said({ state: "no_worker", lease: expired })).toBe("The worker of the run was lost 10 min ago, and no worker holds any run: probably no worker is alive.");
  expect(said({ state: "lease_expired", lease: expired, crashes: 2 })).toBe("The worker of the run was lost 10 min ago; another one claims the run soon. Its workers have crashed 2 times.");
});

it("says what the earlier run of the conversation does", () => {
  const behind = (facts: Partial<RunExplanation>) => said({ state: "behind_run", behind_run: `run_${ID}`, ...facts }).replace("The run is queued behind an earlier run of the conversation", "…");
  expect(behind({})).toBe("….");
  expect(behind({ behind_state: "working" })).toBe("….");
  expect(behind({ behind_state: "waiting", behind_waiting_for: "input" })).toBe("…, which waits for a human’s answer.");
  expect(behind({ behind_state: "lease_expired" })).toBe("…, whose worker was lost.");
  expect(behind({ behind_state: "no_worker" })).toBe("…, which no worker claims: probably none is alive.");
});

it("says how a run ended, and what comes of a cancellation", () => {
  expect(said({ state: "ended" }, "completed")).toBe("The run is completed.");
  expect(said({ state: "ended", cancel_requested_by: "user", crashes: 1 }, "cancelled")).toBe("The run was cancelled by user.");
  const last_error = { detail: "no answer" } as RunExplanation["last_error"];
  expect(said({ state: "ended", last_error }, "failed")).toBe("The run failed: no answer.");
  expect(said({ state: "ended", last_error, resumable: true }, "failed")).toBe("The run failed: no answer. “Resume” in the conversation continues from the stored state.");
  expect(said({ state: "working", lease: WORKER, cancel_requested_by: "user" })).toBe("A worker holds the run and is about to begin. Its cancellation was requested; its worker ends it soon.");
  expect(said({ cancel_requested_by: "user" })).toBe("The run is the next in the queue. Its cancellation was requested; the next worker that claims it ends it.");
});
