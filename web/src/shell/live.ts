// Whether the feed of this tab delivers changes. Lists poll while it does not.

import { useSyncExternalStore } from "react";

/** The interval in which lists are read although the feed is there, in milliseconds. */
const CALM_MS = 60_000;

const listeners = new Set<() => void>();
let isLive = false;

export function setLive(value: boolean): void {
  isLive = value;
  for (const listener of listeners) listener();
}

/** Returns the interval in which a list is to be read, which is `ms` without the feed. */
export function usePolling(ms: number): number {
  const live = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => isLive,
  );
  return live ? CALM_MS : ms;
}
