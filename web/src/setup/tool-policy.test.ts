import { expect, it } from "vitest";

import type { ToolDefinition } from "../api/types";
import { approvalMode, policy, type ApprovalRules } from "./tool-policy";

const mode = (safety: ToolDefinition["safety"], rules: ApprovalRules = {}) => approvalMode({ name: "mail__send", ...(safety && { safety }) }, rules);

it("asks for a destructive tool, and for others by the entry of the server", () => {
  expect([mode(undefined), mode({ destructive: true }), mode({ approval: "auto", destructive: true }), mode({ approval: "always_ask" })]).toEqual(["auto", "ask", "auto", "always_ask"]);
});

it("asks for tools of untrusted servers if the agent says so", () => {
  expect([mode({ untrusted: true }), mode({ untrusted: true }, { ask_untrusted: true }), mode({}, { ask_untrusted: true })]).toEqual(["auto", "ask", "auto"]);
});

it("follows the rule of the agent, which relaxes no server of a user", () => {
  const rules: ApprovalRules = { tools: { mail__send: "auto" } };
  expect([mode({ approval: "ask" }, rules), mode({ approval: "ask", of_member: true }, rules), mode({ of_member: true }, { tools: { mail__send: "ask" } })]).toEqual(["auto", "ask", "ask"]);
});

it("applies a rule that asks to a tool that was renamed by a conflict", () => {
  const [ask, auto]: ApprovalRules[] = [{ tools: { mail__send: "ask" } }, { tools: { mail__send: "auto" } }];
  const renamed = { name: "mail__send_1a2b3c4d", safety: { approval: "ask" } } as const;
  expect([approvalMode({ ...renamed, safety: {} }, ask ?? {}), approvalMode(renamed, auto ?? {})]).toEqual(["ask", "ask"]);
});

it("says that a destructive tool asks before each call", () => {
  const words = policy({ name: "mail__purge", safety: { destructive: true }, replay: { class: "unsafe" } }, {});
  expect(words).toBe("asks before each call · deletes or overwrites data");
  expect(policy({ name: "mail__read", replay: { class: "read" } }, {})).toBe("runs without asking · only reads");
});
