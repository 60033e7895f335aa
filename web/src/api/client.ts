// Requests to the API of the server that this page comes from, with the session of this browser.

import { parse } from "./json";
import type { Conversation, FieldError, ProblemBody } from "./types";

const BASE = new URL("api/v1", document.baseURI).href;

/** Time limit of a response with its body. */
const PATIENCE_MS = 60_000;
const FILE_PATIENCE_MS = 600_000;

/** An error with the words of the server. */
export class Problem extends Error {
  readonly status: number;
  readonly code: string;
  /** The invalid fields of the request. */
  readonly errors: readonly FieldError[];

  constructor(status: number, body: Partial<ProblemBody>) {
    const said = body.detail || body.title || `the server answered ${status}`;
    const fields = (body.errors ?? []).filter((error) => !said.includes(error.detail)).map((error) => `${error.pointer}: ${error.detail}`);
    super([said, fields.join("; ")].filter(Boolean).join(" — "));
    this.status = status;
    this.code = body.code ?? "";
    this.errors = body.errors ?? [];
  }
}

const listeners = new Set<() => void>();
/** Grows with each sign-in: a late refusal of a request from before says nothing. */
let session = 0;

export const currentSession = (): number => session;

/** Calls `listener` whenever the server wants a key. Returns a function that ends that. */
export function onLockedOut(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Reports that the server refused a request of this session. */
export function lockedOut(of: number): void {
  if (of === session) for (const listener of listeners) listener();
}

/** Returns the result of `act` on the store of this tab; `null` where there is none. */
export function inStore<T>(act: (store: Storage) => T): T | null {
  try {
    return act(sessionStorage);
  } catch {
    return null;
  }
}

/** Signs in: the server sets a cookie that no script can read. */
export async function signIn(key: string): Promise<void> {
  await post("/session", { key });
  session += 1;
}

/** Signs out, and removes all that this tab stored. */
export async function signOut(): Promise<void> {
  await remove("/session");
  inStore((store) => store.clear());
}

export const url = (path: string): string => BASE + path;

interface Options {
  body?: unknown;
  raw?: BodyInit | undefined;
  type?: string;
  once?: string | undefined;
  /** The version of the record that the request acts on; it is refused with 412 for any other version. */
  version?: number | undefined;
  patience?: number;
  keepalive?: boolean;
  /** The token of a share, which is sent instead of the session. */
  share?: string;
}

async function send(method: string, path: string, { body, raw, type, once, version, patience = PATIENCE_MS, keepalive = false, share }: Options = {}): Promise<Response> {
  const of = session;
  const named: Record<string, string> = { accept: "application/json" };
  if (body !== undefined) named["content-type"] = "application/json";
  if (type !== undefined) named["content-type"] = type;
  if (once !== undefined) named["idempotency-key"] = once;
  if (version !== undefined) named["if-match"] = `"${version}"`;
  if (share !== undefined) named["share-token"] = share;
  const answer = await fetch(url(path), {
    method,
    headers: named,
    body: raw ?? (body === undefined ? null : JSON.stringify(body)),
    cache: "no-store",
    credentials: share === undefined ? "same-origin" : "omit",
    keepalive,
    signal: AbortSignal.timeout(patience),
  });
  if (answer.ok) return answer;
  if (answer.status === 401 && path !== "/session" && share === undefined) lockedOut(of);
  throw new Problem(answer.status, (await answer.json().catch(() => ({}))) as Partial<ProblemBody>);
}

/** Returns the JSON of the response; `null` if it has none. */
async function json<T>(method: string, path: string, options?: Options): Promise<T> {
  const answer = await send(method, path, options);
  const text = answer.status === 204 ? "" : await answer.text();
  return (text === "" ? null : parse(text)) as T;
}

export const get = <T>(path: string): Promise<T> => json<T>("GET", path);
/** Reads the conversation of a share, without the session of this browser. */
export const getShared = <T>(token: string): Promise<T> => json<T>("GET", "/shared", { share: token });
export const post = <T>(path: string, body: unknown = {}, once?: string): Promise<T> => json<T>("POST", path, { body, once });
/** Sends a body that is JSON already. */
export const postText = <T>(path: string, raw: string, once?: string): Promise<T> => json<T>("POST", path, { raw, type: "application/json", once });
export const patch = <T>(path: string, body: unknown, version?: number): Promise<T> => json<T>("PATCH", path, { body, version });
export const remove = (path: string, keepalive = false): Promise<null> => json<null>("DELETE", path, { keepalive });
export const upload = <T>(file: File): Promise<T> =>
  json<T>("POST", `/files?name=${encodeURIComponent(file.name)}`, { raw: file, type: file.type || "application/octet-stream", patience: FILE_PATIENCE_MS });

/** Returns the bytes of a file. */
export async function bytes(path: string): Promise<Blob> {
  return (await send("GET", path, { patience: FILE_PATIENCE_MS })).blob();
}

/** A page of a list. */
export interface Page<T> {
  data: T[];
  next_cursor: string | null;
}

/** Reads the pages of a list, at most `most`. */
export async function all<T>(path: string, most = 10): Promise<T[]> {
  const found: T[] = [];
  let cursor: string | null = null;
  for (let at = 0; at < most; at += 1) {
    const glue = path.includes("?") ? "&" : "?";
    const page: Page<T> = await get<Page<T>>(`${path}${glue}limit=100${cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`}`);
    found.push(...page.data);
    cursor = page.next_cursor;
    if (cursor === null) break;
  }
  return found;
}

/** Returns the complete value where the server had to shorten it; else the value itself. */
export async function whole<T>(value: T): Promise<T> {
  const path = (value as { shortened?: { url?: string } }).shortened?.url;
  return path === undefined ? value : get<T>(path.slice(path.indexOf("/api/v1") + "/api/v1".length));
}

/** Returns what a person is told of an error. */
export function words(error: unknown): string {
  if (error instanceof Problem) return error.message;
  return (error as Error).name === "TimeoutError" ? "The server has not answered in time." : "The server cannot be reached.";
}

/** Returns a key for a request, so that sending it twice has one effect. Pages over plain HTTP have no `randomUUID`. */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export const conversation = (id: string): Promise<Conversation> => get<Conversation>(`/conversations/${id}`);
