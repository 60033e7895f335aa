// Notifications of the browser about new open questions, while no one looks at this tab. They are off until the user switches them on.

import { useEffect, useRef, useSyncExternalStore } from "react";

import type { Approval, InputRecord } from "../api/types";
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

/** Knows which questions are new. Those of the first list are not. */
export class NewQuestions {
  #known: ReadonlySet<string> | null = null;

  take<T extends { id: string }>(open: readonly T[]): T[] {
    const known = this.#known;
    this.#known = new Set(open.map(({ id }) => id));
    return known === null ? [] : open.filter(({ id }) => !known.has(id));
  }
}

type Open = Approval | InputRecord;

export const notice = (question: Open): string => ("tool" in question ? `${brief(question.tool, 80)} needs your permission.` : "A question waits for your answer.");

function notify(question: Open, go: (to: string) => void): void {
  try {
    // The tag keeps several tabs from telling the same twice.
    const shown = new Notification("Capstan", { body: notice(question), tag: question.id });
    shown.onclick = () => {
      window.focus();
      go(question.conversation_id);
      shown.close();
    };
  } catch {
    // Some phones let only service workers notify; the badge and the title stay.
  }
}

/** Notifies of questions that are new since the last list. */
export function useNotices(questions: { approvals: Approval[]; inputs: InputRecord[] } | undefined, go: (to: string) => void): void {
  const fresh = useRef(new NewQuestions());
  useEffect(() => {
    if (questions === undefined) return;
    const found = fresh.current.take<Open>([...questions.approvals, ...questions.inputs]);
    if (isNotifying() && document.hidden) for (const question of found) notify(question, go);
  }, [questions, go]);
}
