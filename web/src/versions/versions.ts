// Earlier versions of a conversation: what it was before an edit, a new answer or a rewind. The event log keeps all of them.

import type { Message, StreamEvent } from "../api/types";

export interface Version {
  /** The event that replaced the version. */
  seq: number;
  at: string;
  /** All complete messages of the version, in their order. */
  messages: Message[];
  /** The ids of the messages that later left the conversation. */
  replaced: string[];
  /** Whether the log still has every replaced message. */
  isWhole: boolean;
}

function replacedBy(event: StreamEvent): string[] {
  return event.type === "run.queued" || event.type === "conversation.updated" ? (event.data.supersedes ?? []) : [];
}

/** Returns the versions before the current one, newest first. `current` adds copied messages, which have no events here. */
export function versions(events: readonly StreamEvent[], current: readonly Message[]): Version[] {
  const logged = new Set(events.flatMap((event) => (event.type === "message.created" || event.type === "message.completed" ? [event.data.message.id] : [])));
  const messages = new Map(current.filter(({ id }) => !logged.has(id)).map((message) => [message.id, message]));
  const found: Version[] = [];
  for (const event of events) {
    const replaced = replacedBy(event);
    if (replaced.length > 0 && "seq" in event) {
      found.push({
        seq: event.seq,
        at: event.at,
        messages: [...messages.values()].filter(({ status }) => status === "complete"),
        replaced,
        isWhole: replaced.every((id) => messages.has(id)),
      });
      for (const id of replaced) messages.delete(id);
    }
    if (event.type === "message.created" || event.type === "message.completed") messages.set(event.data.message.id, event.data.message);
  }
  return found.reverse();
}

/** Returns the version that a run replaced: with its first event, or with the event before it, as an edit does. */
export function versionBefore(found: readonly Version[], events: readonly StreamEvent[], run: string): Version | undefined {
  const first = events.find((event) => event.run_id === run);
  if (first === undefined || !("seq" in first)) return undefined;
  return found.find(({ seq }) => seq === first.seq || seq === first.seq - 1);
}
