import { expect, it } from "vitest";

import { explained } from "./explained";

const ID = "0".repeat(32);

it("names no route, and days in place of seconds", () => {
  expect(explained(`The run waits for a human to approve a tool call, for at most 604797.6 s more. POST /api/v1/approvals/input_${ID} answers: May mail__send be called?`)).toBe(
    "The run waits for a human to approve a tool call, for at most 7 days more. The question: May mail__send be called?",
  );
  expect(explained("The model call failed and will be retried in 312.0 s; POST .../resume retries at once.")).toBe("The model call failed and will be retried in 5 min.");
  expect(explained("The run failed: no answer. POST .../resume continues from the stored state.")).toBe("The run failed: no answer. “Resume” in the conversation continues from the stored state.");
});

it("names no ids of machines", () => {
  expect(explained(`Worker node_${ID} holds the run and waits for the model in step 2 for 2.4 s.`)).toBe("A worker holds the run and waits for the model in step 2 for 2 s.");
  expect(explained(`The run is queued behind run_${ID} in the same conversation.`)).toBe("The run is queued behind an earlier run in the same conversation.");
});
