// Whether the calls of a tool ask first, for an agent: the rules of the server, for people to read. Knows no page.

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
  const halves = name.split("__");
  const isForm = (plain: string) => {
    const wanted = plain.split("__");
    return halves.length > 1 && wanted.length === halves.length && halves.every((half, at) => half === wanted[at] || half.replace(/_[0-9a-f]{8,}$/, "") === wanted[at]);
  };
  const kin = Object.entries(rules).filter(([plain, mode]) => mode !== "auto" && isForm(plain));
  return kin.map(([, mode]) => mode).sort((one, other) => STRICTNESS.indexOf(other) - STRICTNESS.indexOf(one))[0];
}

/** Returns the policy of a tool in words. */
export function policy(tool: Pick<ToolDefinition, "name" | "safety" | "replay">, rules: ApprovalRules): string {
  const mode = approvalMode(tool, rules);
  const isDestructive = tool.safety?.destructive === true;
  // No stored permission covers the call of a destructive tool.
  const words = [WORDS[isDestructive && mode === "ask" ? "always_ask" : mode], isDestructive ? "deletes or overwrites data" : "", tool.replay.class === "read" ? "only reads" : ""];
  return words.filter(Boolean).join(" · ");
}
