// The actions of an open conversation, for the views inside it.

import { createContext, useContext } from "react";

import type { MessageItem, RunState } from "../conversation/state";

export interface Actions {
  /** Resumes or retries a run. */
  act(what: "resume" | "retry", run: string): Promise<void>;
  /** Cancels a queued run, and puts its message back into the composer. */
  takeBack(run: RunState): Promise<void>;
  /** Replaces a message of the user; `content` is that of the API. */
  edit(item: MessageItem, content: unknown): Promise<void>;
  fork(item: MessageItem): Promise<void>;
  /** Continues the conversation in a copy, as it was before a run replaced some of it. */
  forkEarlier(run: string): Promise<void>;
  rate(item: MessageItem, rating: "up" | "down"): Promise<void>;
  inspect(run: string): void;
}

const nothing = () => Promise.resolve();

export const ActionsContext = createContext<Actions>({ act: nothing, takeBack: nothing, edit: nothing, fork: nothing, forkEarlier: nothing, rate: nothing, inspect: () => undefined });

export const useActions = (): Actions => useContext(ActionsContext);
