// Notifications of the browser about new open questions, while no one looks at this tab. They are off until the user switches them on.

import { useEffect, useRef, useSyncExternalStore } from "react";

import type { Approval, InputRecord, McpServer, ToolReview } from "../api/types";
import { brief } from "../text/words";

/** The switch of this browser: absent while it is off. */
const SWITCH = "capstan.notify";

const listeners = new Set<() => void>();

export const canNotify = (): boolean => "Notification" in window && window.isSecureContext;

export function isNotifying(): boolean {
  try {
    return canNotify() && Notification.permission === "granted" && localStorage.getItem(SWITCH) !== null;
  } catch {
    return false;
  }
}

/** Turns the switch. Returns whether it has the wanted position: a browser may refuse. */
export async function setNotifying(isOn: boolean): Promise<boolean> {
  if (isOn && (await Notification.requestPermission()) !== "granted") return false;
  try {
    if (isOn) localStorage.setItem(SWITCH, "on");
    else localStorage.removeItem(SWITCH);
  } catch {
    return false;
  }
  for (const listener of listeners) listener();
  return true;
}

export const useNotifying = (): boolean =>
  useSyncExternalStore((listener) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, isNotifying);

/** Remembers the entries of a list, and finds those that are new. The first list has no new ones. */
export class SeenEntries {
  #known: ReadonlySet<string> | null = null;

  findNew<T extends { id: string }>(open: readonly T[]): T[] {
    const known = this.#known;
    this.#known = new Set(open.map(({ id }) => id));
    return known === null ? [] : open.filter(({ id }) => !known.has(id));
  }
}

type Open = Approval | InputRecord | ToolReview | McpServer;

export function notice(open: Open): string {
  if ("enabled" in open) return `The MCP server ${brief(open.name, 60)} needs a login.`;
  if ("definition_hash" in open) return `The tool ${brief(open.tool, 80)} has changed, and waits for your review.`;
  return "tool" in open ? `${brief(open.tool, 80)} needs your permission.` : "A question waits for your answer.";
}

function notify(open: Open, go: (to: string) => void): void {
  try {
    // The tag keeps several tabs from telling the same twice.
    const shown = new Notification("Capstan", { body: notice(open), tag: open.id });
    shown.onclick = () => {
      window.focus();
      go("conversation_id" in open ? open.conversation_id : "inbox");
      shown.close();
    };
  } catch {
    // Some phones let only service workers notify; the badge and the title stay.
  }
}

/** Notifies of questions, tool reviews or logins that are new since the last list. */
export function useNotices(list: readonly Open[] | undefined, go: (to: string) => void): void {
  const seen = useRef(new SeenEntries());
  useEffect(() => {
    if (list === undefined) return;
    const found = seen.current.findNew(list);
    if (isNotifying() && document.hidden) for (const open of found) notify(open, go);
  }, [list, go]);
}
