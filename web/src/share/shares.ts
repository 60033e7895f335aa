// Shares: links that show a copy of a conversation to readers without a key.

import type { SharedMessage } from "../api/types";

const DAYS = [1, 7, 30, 90];
const USUAL_DAYS = 30;

/** Returns the choices of how long a link works, in days: the usual ones within the limit, and a limit below the longest of them. */
export const lifetimes = (limit: number): number[] => [...DAYS.filter((days) => days < limit), ...(limit <= Math.max(...DAYS) ? [limit] : [])];

/** Returns the choice that the server makes for requests that name none. */
export const usualLifetime = (limit: number): number => Math.min(USUAL_DAYS, limit);

/** Returns the token of an address that shows a share; `null` for every other address. A cut address has a cut token, or an empty one. */
export function sharedToken(hash: string): string | null {
  const found = /^#\/share(?:\/(.*))?$/.exec(hash);
  return found === null ? null : (found[1] ?? "");
}

/** Returns whether a text can be a token, and so be sent in a header. */
export const isToken = (text: string): boolean => /^[\w-]{1,200}$/.test(text);

/** Returns the address that shows a share. `base`: that of the page. */
export const shareLink = (token: string, base: string): string => new URL(`./#/share/${token}`, base).href;

/** Successive tools are one piece. */
export type Piece = { type: "text"; text: string } | { type: "tools"; names: string[] };

export interface ShownMessage {
  role: SharedMessage["role"];
  created_at: string;
  pieces: Piece[];
}

/** Returns the messages as readers see them: the steps of an answer, each a message of its own, are one. */
export function shownMessages(messages: readonly SharedMessage[]): ShownMessage[] {
  const shown: ShownMessage[] = [];
  for (const { role, created_at, parts } of messages) {
    const before = shown.at(-1);
    const message = role === "assistant" && before?.role === role ? before : { role, created_at, pieces: [] };
    for (const part of parts) {
      const last = message.pieces.at(-1);
      if (part.type === "text") message.pieces.push({ type: "text", text: part.text });
      else if (last?.type === "tools") last.names.push(part.name);
      else message.pieces.push({ type: "tools", names: [part.name] });
    }
    if (message !== before && message.pieces.length > 0) shown.push(message);
  }
  return shown;
}

/** Returns each name once, with the number of its uses if there are several. */
export function counted(names: readonly string[]): [name: string, uses: number][] {
  const uses = new Map<string, number>();
  for (const name of names) uses.set(name, (uses.get(name) ?? 0) + 1);
  return [...uses];
}

/** Bounds of what is added to the page at once, so that a long share does not block it. */
const MOST_ADDED = 50;
const MOST_TEXT_ADDED = 30_000;

/** Returns the end of the next messages to add after the first `from`. */
export function nextEnd(messages: readonly ShownMessage[], from: number): number {
  let end = from;
  for (let text = 0; end < Math.min(messages.length, from + MOST_ADDED) && text < MOST_TEXT_ADDED; end += 1) {
    for (const piece of messages[end]?.pieces ?? []) text += piece.type === "text" ? piece.text.length : 0;
  }
  return end;
}
