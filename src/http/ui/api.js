// Requests to the API of the server that this page comes from, with the key of this tab if there is one.

const BASE = new URL("../api/v1", import.meta.url).href;
const STORED = "capstan.key";

/** How long an answer may take, with all of its body. */
const PATIENCE_MS = 60_000;
const FILE_PATIENCE_MS = 600_000;

/** Whether a number of the server's can be shown and sent back as it was written. */
const KEEPS_NUMBERS = typeof JSON.rawJSON === "function" && (() => {
  let written;
  JSON.parse("1.0", (_, value, context) => ((written = context?.source), value));
  return written === "1.0";
})();

/** Of objects and arrays, how those of their numbers are written that JavaScript would write in another way. */
const WRITTEN = new WeakMap();

/** JSON of the server's. Its numbers are those of JavaScript; [print] gives them back as they were written. */
export function parse(text) {
  if (!KEEPS_NUMBERS) return JSON.parse(text);
  return JSON.parse(text, function (name, value, { source }) {
    if (typeof value === "number" && String(value) !== source) {
      if (!WRITTEN.has(this)) WRITTEN.set(this, new Map());
      WRITTEN.get(this).set(name, source);
    }
    return value;
  });
}

/** JSON of what [parse] has given, or of a part of it. */
export function print(value, space = undefined) {
  const written = function (name, part) {
    const source = typeof part === "number" ? WRITTEN.get(this)?.get(name) : undefined;
    return source === undefined ? part : JSON.rawJSON(source);
  };
  return JSON.stringify(value, written, space) ?? "";
}

/** One member of an object or an array that [parse] has given, as a text. */
export function spelling(holder, name) {
  return WRITTEN.get(holder)?.get(String(name)) ?? String(holder[name]);
}

/** The same as a value that `JSON.stringify` writes as the server has. */
export function exact(holder, name) {
  const source = WRITTEN.get(holder)?.get(String(name));
  return source === undefined ? holder[name] : JSON.rawJSON(source);
}

/** A number that was typed, as a value that is sent as it was typed. `undefined` if this browser would round it. */
export function typedNumber(text) {
  const number = Number(text);
  if (String(number) === text) return number;
  if (KEEPS_NUMBERS && /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(text)) return JSON.rawJSON(text);
  return text.replace(/\D/g, "").length > 15 ? undefined : number;
}

/** Whether [print] writes every number of a value as the server has. */
export function isExact(value) {
  if (KEEPS_NUMBERS) return true;
  if (typeof value === "number") return Number.isSafeInteger(value);
  return value === null || typeof value !== "object" || Object.values(value).every(isExact);
}

/** What went wrong, in the server's words if it has said any. */
export class Problem extends Error {
  constructor(status, body) {
    const said = body.detail || body.title || `the server answered ${status}`;
    const fields = (body.errors ?? []).filter((error) => !said.includes(error.detail)).map((error) => `${error.pointer}: ${error.detail}`);
    super([said, fields.join("; ")].filter(Boolean).join(" — "));
    this.status = status;
    this.code = body.code ?? "";
  }
}

const listeners = [];

/** Calls `listener` whenever the server wants a key, or another one. */
export function whenLockedOut(listener) {
  listeners.push(listener);
}

/** The server has refused a request with this key. One of before, whose answer is late, says nothing of the key of now. */
export function lockedOut(key) {
  if (key === currentKey()) for (const listener of listeners) listener();
}

/** The key where the browser lets pages keep nothing: until the page is loaded again. */
let unkept = null;

/** What `act` makes of the store of this tab; `null` where there is none. */
function inStore(act) {
  try {
    return act(sessionStorage);
  } catch {
    return null;
  }
}

export const currentKey = () => unkept ?? inStore((store) => store.getItem(STORED));
export const hasKey = () => currentKey() !== null;

export function forgetKey() {
  unkept = null;
  inStore((store) => store.removeItem(STORED));
}

/** Keeps a key for as long as this tab lives. False if it can be none: what may stand in a header has bounds. */
export function keepKey(key) {
  const fits = /^[\x21-\x7e]{1,500}$/.test(key);
  if (!fits) return false;
  forgetKey();
  inStore((store) => store.setItem(STORED, key));
  if (currentKey() === null) unkept = key;
  return true;
}

export const url = (path) => BASE + path;

/** The headers of a request. */
export function headers(more = {}) {
  const key = currentKey();
  return key === null ? more : { ...more, authorization: `Bearer ${key}` };
}

async function send(method, path, { body, raw, type, once, patience = PATIENCE_MS } = {}) {
  const key = currentKey();
  const named = { accept: "application/json" };
  if (body !== undefined) named["content-type"] = "application/json";
  if (type !== undefined) named["content-type"] = type;
  if (once !== undefined) named["idempotency-key"] = once;
  const answer = await fetch(url(path), {
    method,
    headers: headers(named),
    body: raw ?? (body === undefined ? undefined : JSON.stringify(body)),
    cache: "no-store",
    credentials: "omit",
    signal: AbortSignal.timeout(patience),
  });
  if (answer.ok) return answer;
  if (answer.status === 401) lockedOut(key);
  throw new Problem(answer.status, await answer.json().catch(() => ({})));
}

/** The JSON of the answer; `null` if there is none. */
async function json(method, path, options) {
  const answer = await send(method, path, options);
  return answer.status === 204 ? null : parse(await answer.text());
}

export const get = (path) => json("GET", path);

/** What the server has of a value that it had to shorten; the value itself if it is whole. */
export async function whole(value) {
  const path = value.shortened?.url;
  return path === undefined ? value : get(path.slice(path.indexOf("/api/v1") + "/api/v1".length));
}

export const post = (path, body = {}, once = undefined) => json("POST", path, { body, once });
/** The same with a body that is JSON already. */
export const postText = (path, raw, once = undefined) => json("POST", path, { raw, type: "application/json", once });
export const patch = (path, body) => json("PATCH", path, { body });
export const remove = (path) => json("DELETE", path);
export const upload = (file) =>
  json("POST", `/files?name=${encodeURIComponent(file.name)}`, { raw: file, type: file.type || "application/octet-stream", patience: FILE_PATIENCE_MS });

/** The bytes of a file. */
export async function bytes(path) {
  return (await send("GET", path, { patience: FILE_PATIENCE_MS })).blob();
}

/** What a person is told of an error. */
export function words(error) {
  if (error instanceof Problem) return error.message;
  return error.name === "TimeoutError" ? "The server has not answered in time." : "The server cannot be reached.";
}
