// The state of an MCP server in words.

import type { McpServer, Me } from "../api/types";

export type Look = "good" | "bad" | "wait" | "off";

export interface ServerState {
  words: string;
  look: Look;
}

/** The states that the API lists. */
const STATES: Record<string, ServerState> = {
  unknown: { words: "not tried yet", look: "off" },
  starting: { words: "starting", look: "wait" },
  ok: { words: "ready", look: "good" },
  error: { words: "failed", look: "bad" },
};

/** Returns the state of a server. A server that needs a login can do nothing before it. */
export function serverState({ enabled, status }: Pick<McpServer, "enabled" | "status">): ServerState {
  if (!enabled) return { words: "off", look: "off" };
  if (status.auth === "needed") return { words: "needs a login", look: "wait" };
  return STATES[status.state] ?? { words: status.state, look: "wait" };
}

export const needsLogin = ({ enabled, status }: Pick<McpServer, "enabled" | "status">): boolean => enabled && status.auth === "needed";

/** Returns whether this user may log in at a server: that changes the server for all its users. */
export const mayLogIn = ({ scope }: Pick<McpServer, "scope">, me: Pick<Me, "role"> | undefined): boolean => me !== undefined && (scope === "own" || me.role === "admin");

/** Returns in words how often in a row a server failed; `null` if it has not, or if a login is all that it needs. */
export function failureCount({ failures = 0, auth, state }: McpServer["status"]): string | null {
  if (failures === 0 || auth === "needed" || state === "ok") return null;
  return failures === 1 ? "failed once" : `failed ${failures} times in a row`;
}

/** Returns in words when a server connects again after a failed attempt; `null` if none has failed yet, or if it waits for a call. */
export function nextAttempt({ next_attempt_at: at }: McpServer["status"]): string | null {
  return at === undefined ? null : `next attempt at ${new Date(at).toLocaleTimeString()}`;
}

/** Returns the number of tools in words. */
export const toolCount = (count: number): string => `${count} ${count === 1 ? "tool" : "tools"}`;

/** Returns the worst state of all servers, and its words for the button of the list. */
export function worstState(servers: readonly McpServer[]): ServerState | null {
  const states = servers.map(serverState);
  const failed = states.filter(({ look }) => look === "bad").length;
  if (failed > 0) return { words: `${failed} failed`, look: "bad" };
  return states.find(({ look }) => look === "wait") ?? null;
}
