// Reads the versions of a conversation from its log, and continues one of them in a copy.

import * as api from "../api/client";
import { print } from "../api/json";
import type { Conversation, Message, StreamEvent } from "../api/types";
import { refresh } from "../shell/conversations";
import { brief } from "../text/words";
import { versionBefore, versions, type Version } from "./versions";

/** Pages of 100 events, oldest first. */
const EVENT_PAGES = 200;

export interface Log {
  conversation: Conversation;
  events: StreamEvent[];
  found: Version[];
}

export async function read(id: string): Promise<Log> {
  const [conversation, events, current] = await Promise.all([
    api.conversation(id),
    api.all<StreamEvent>(`/conversations/${id}/events`, EVENT_PAGES),
    api.all<Message>(`/conversations/${id}/messages`, 50),
  ]);
  return { conversation, events, found: versions(events, current) };
}

/** Imports a version as a new conversation, and returns its id. */
export async function copy({ title, agent, model, tags }: Conversation, version: Version): Promise<string> {
  const document = { format: "capstan.conversation", version: 1, conversation: { title: brief(title, 250), agent, model, tags }, messages: version.messages };
  const made = await api.postText<Conversation>("/conversations/import", print(document), api.newKey());
  refresh();
  return made.id;
}

/** Copies the version that a run replaced. */
export async function copyBefore(conversation: string, run: string): Promise<string> {
  const log = await read(conversation);
  const version = versionBefore(log.found, log.events, run);
  if (version?.isWhole !== true) throw new api.Problem(410, { detail: "The log does not have all messages of this version." });
  return copy(log.conversation, version);
}
