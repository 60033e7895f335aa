// Short messages at the edge of the page, some with a way back.

import { useEffect, useState } from "react";

export interface Toast {
  words: string;
  /** The label and the effect of its button. */
  undo?: { label: string; act: () => void };
  ms?: number;
}

interface Shown extends Toast {
  id: number;
}

let count = 0;
const listeners = new Set<(toast: Shown) => void>();

export function toast(message: Toast): void {
  count += 1;
  for (const listener of listeners) listener({ ...message, id: count });
}

export function Toasts() {
  const [shown, setShown] = useState<Shown[]>([]);
  useEffect(() => {
    const add = (message: Shown) => {
      setShown((known) => [...known.slice(-3), message]);
      setTimeout(() => setShown((known) => known.filter((one) => one.id !== message.id)), message.ms ?? 6_000);
    };
    listeners.add(add);
    return () => {
      listeners.delete(add);
    };
  }, []);
  return (
    <div className="toasts" role="status">
      {shown.map((message) => (
        <div key={message.id} className="toast">
          <span>{message.words}</span>
          {message.undo !== undefined && (
            <button
              type="button"
              className="small"
              onClick={() => {
                message.undo?.act();
                setShown((known) => known.filter((one) => one.id !== message.id));
              }}
            >
              {message.undo.label}
            </button>
          )}
        </div>
      ))}
    </div>
  );
}
