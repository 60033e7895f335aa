// The time of a message. One clock for the page keeps all of them current: a time is drawn again only when its words change.

import { useSyncExternalStore, type ReactNode } from "react";

import { relative } from "./words";

const EACH_MS = 20_000;

const listeners = new Set<() => void>();
let timer: ReturnType<typeof setInterval> | undefined;

function tick(): void {
  if (!document.hidden) for (const listener of listeners) listener();
}

/** Calls `listener` every few seconds while the page is visible. Returns a function that ends that. */
function onTick(listener: () => void): () => void {
  if (listeners.size === 0) {
    timer = setInterval(tick, EACH_MS);
    // A tab that was hidden is up to date at once.
    document.addEventListener("visibilitychange", tick);
  }
  listeners.add(listener);
  return () => {
    listeners.delete(listener);
    if (listeners.size > 0) return;
    clearInterval(timer);
    document.removeEventListener("visibilitychange", tick);
  };
}

/** A time in words such as "2 minutes ago". Its title is the date and time. */
export function When({ at, className, children }: { at: string; className?: string; children?: ReactNode }) {
  const read = () => relative(at);
  const words = useSyncExternalStore(onTick, read, read);
  return (
    <time className={className} dateTime={at} title={new Date(at).toLocaleString()}>
      {words}
      {children}
    </time>
  );
}
