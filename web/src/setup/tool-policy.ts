// Tells whether the calls of a tool ask first, for an agent. Mirrors `ApprovalPolicy::mode` in src/domain/tool/approval.rs: change both.

import type { ToolDefinition } from "../api/types";

export type ApprovalMode = "auto" | "ask" | "always_ask";

/** The part of an agent's profile that decides about approvals. */
export interface ApprovalRules {
  tools?: Record<string, ApprovalMode>;
  ask_untrusted?: boolean;
}

const STRICTNESS: ApprovalMode[] = ["auto", "ask", "always_ask"];
const WORDS: Record<ApprovalMode, string> = { auto: "runs without asking", ask: "asks first, unless you allowed it before", always_ask: "asks before each call" };

/** Returns the mode that applies to a tool: the agent's rule, the entry of the server, or the facts about the tool. */
export function approvalMode({ name, safety }: Pick<ToolDefinition, "name" | "safety">, rules: ApprovalRules): ApprovalMode {
  const isAsked = safety?.destructive === true || (rules.ask_untrusted === true && safety?.untrusted === true);
  const withoutRule = safety?.approval ?? (isAsked ? "ask" : "auto");
  const rule = ruleOf(name, rules.tools ?? {});
  if (rule === undefined) return withoutRule;
  // The rule of an agent was not written for a user's own server: it can only add approvals.
  return safety?.of_member === true && STRICTNESS.indexOf(rule) < STRICTNESS.indexOf(withoutRule) ? withoutRule : rule;
}

/** Returns the rule for a name. A rule that asks also holds for a tool whose name got a hash because of a conflict. */
function ruleOf(name: string, rules: Record<string, ApprovalMode>): ApprovalMode | undefined {
  if (Object.hasOwn(rules, name)) return rules[name];
  const matching = Object.entries(rules).filter(([plain, mode]) => mode !== "auto" && isHashedForm(name, plain));
  return matching.map(([, mode]) => mode).sort((one, other) => STRICTNESS.indexOf(other) - STRICTNESS.indexOf(one))[0];
}

/** Returns the server and the tool of a name, or null for another name. */
function halvesOf(name: string): [string, string] | null {
  const at = name.indexOf("__");
  return at < 0 ? null : [name.slice(0, at), name.slice(at + 2)];
}

/** Returns whether a name is `plain` with a hash after one or both of its halves. */
function isHashedForm(name: string, plain: string): boolean {
  const isForm = (half: string, wanted: string) => half === wanted || half.replace(/_[0-9a-f]{8,}$/, "") === wanted;
  const [halves, wanted] = [halvesOf(name), halvesOf(plain)];
  return halves !== null && wanted !== null && isForm(halves[0], wanted[0]) && isForm(halves[1], wanted[1]);
}

/** Returns the policy of a tool in words. */
export function policy(tool: Pick<ToolDefinition, "name" | "safety" | "replay">, rules: ApprovalRules): string {
  const mode = approvalMode(tool, rules);
  const isDestructive = tool.safety?.destructive === true;
  // No stored permission covers the call of a destructive tool.
  const words = [WORDS[isDestructive && mode === "ask" ? "always_ask" : mode], isDestructive ? "deletes or overwrites data" : "", tool.replay.class === "read" ? "only reads" : ""];
  return words.filter(Boolean).join(" · ");
}
