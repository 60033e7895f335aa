// Drafts: the text and files of each conversation that were not sent yet. They survive a reload of the tab.

import { upload, inStore, words } from "../api/client";
import type { StoredFile } from "../api/types";
import type { MessageItem } from "../conversation/state";
import { PICTURES } from "./files";

export interface Attached {
  key: string;
  name: string;
  /** The id of the stored file; `null` while it is being sent, and for a file that has an address instead. */
  id: string | null;
  media_type: string;
  /** The address of a file that is not stored on the server. */
  url?: string;
}

/** Returns whether a file is still being sent to the server. */
export const isUploading = (file: Attached): boolean => file.id === null && file.url === undefined;

export interface Draft {
  text: string;
  files: Attached[];
}

const PREFIX = "capstan.draft.";
const known = new Map<string, Draft>();
const listeners = new Set<(id: string, trouble?: string) => void>();
let attachments = 0;

/** Returns the draft of a conversation; `new` for the next one. */
export function draftOf(id: string): Draft {
  let draft = known.get(id);
  if (draft === undefined) {
    const stored = inStore((store) => store.getItem(PREFIX + id));
    try {
      draft = { text: "", files: [], ...(JSON.parse(stored ?? "{}") as Partial<Draft>) };
    } catch {
      draft = { text: "", files: [] };
    }
    known.set(id, draft);
  }
  return draft;
}

function changed(id: string, trouble?: string): void {
  const draft = draftOf(id);
  const kept: Draft = { text: draft.text, files: draft.files.filter((file) => !isUploading(file)) };
  inStore((store) => (kept.text === "" && kept.files.length === 0 ? store.removeItem(PREFIX + id) : store.setItem(PREFIX + id, JSON.stringify(kept))));
  for (const listener of listeners) listener(id, trouble);
}

export function setText(id: string, text: string): void {
  draftOf(id).text = text;
  changed(id);
}

export function dropFile(id: string, key: string): void {
  const draft = draftOf(id);
  draft.files = draft.files.filter((file) => file.key !== key);
  changed(id);
}

/** Puts the text and the files of a message into the draft, before what is there. */
export function putBack(id: string, text: string, files: Attached[]): void {
  const draft = draftOf(id);
  const kept = draft.text.trimEnd();
  draft.text = [text, kept].filter(Boolean).join("\n");
  draft.files = [...files.filter((file) => !draft.files.some((known) => known.key === file.key)), ...draft.files];
  changed(id);
}

/** Removes what was sent. Text and files that the user added meanwhile stay. */
export function sent(id: string, text: string, files: Attached[]): void {
  const draft = draftOf(id);
  if (draft.text.trim() === text) draft.text = "";
  draft.files = draft.files.filter((file) => !files.includes(file));
  changed(id);
}

/** Sends files to the server, one after another, and attaches them to the draft. */
export async function attach(id: string, files: File[]): Promise<void> {
  const draft = draftOf(id);
  const added = files.map((file) => {
    attachments += 1;
    const attached: Attached = { key: `${Date.now()}-${attachments}`, name: file.name || "file", id: null, media_type: file.type };
    draft.files.push(attached);
    return { file, attached };
  });
  changed(id);
  for (const { file, attached } of added) {
    try {
      const stored = await upload<StoredFile>(file);
      Object.assign(attached, { id: stored.id, name: stored.name || attached.name, media_type: stored.media_type });
      changed(id);
    } catch (error) {
      draft.files = draft.files.filter((other) => other !== attached);
      changed(id, `${attached.name}: ${words(error)}`);
    }
  }
}

/** Calls `listener` after each change of a draft. */
export function onDraft(listener: (id: string, trouble?: string) => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Returns the content of a message with these files. */
export function contentOf(text: string, files: Attached[]): unknown {
  if (files.length === 0) return text;
  const parts = files.map(({ id, url, media_type, name }) => ({
    type: PICTURES.has(media_type) ? "image" : "file",
    ...(id === null ? { url, media_type } : { file_id: id }),
    ...(name === "" ? {} : { name }),
  }));
  return text === "" ? parts : [{ type: "text", text }, ...parts];
}

/** Returns the text of a message. */
export const textOf = (item: MessageItem): string => item.parts.flatMap((part) => (part.type === "text" && part.text ? [part.text] : [])).join("\n\n");

/** Returns the files of a message, to attach them to another one. */
export function filesOf(item: MessageItem): Attached[] {
  const files: Attached[] = [];
  for (const part of item.parts) {
    if ((part.type !== "image" && part.type !== "file") || !("media_type" in part)) continue;
    const { id: key, media_type, file_id: id, url, name = "" } = part;
    if (id !== undefined) files.push({ key, name, id, media_type });
    else if (url !== undefined) files.push({ key, name, id: null, media_type, url });
  }
  return files;
}
