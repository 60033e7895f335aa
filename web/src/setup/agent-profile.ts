// The profile of an agent as the texts of a form, and back. A field that stays as it is keeps its value to the digit.

import { exact, exactCopy, parse, print, spelling, typedNumber } from "../api/json";
import type { FieldError } from "../api/types";
import { ABSENT, FIELDS, type AgentField } from "./agent-fields";

export type Profile = Record<string, unknown>;

const isObject = (value: unknown): value is Profile => typeof value === "object" && value !== null && !Array.isArray(value);

/** Returns the object that has the value at a path, and the name of the value in it. */
function holderOf(profile: Profile, path: string): [Profile | null, string] {
  const names = path.split("/");
  const last = names.pop() ?? "";
  let at: unknown = profile;
  for (const name of names) at = isObject(at) ? at[name] : undefined;
  return [isObject(at) ? at : null, last];
}

/** Returns the value at a path; `undefined` where the profile has none. */
export function valueAt(profile: Profile, path: string): unknown {
  const [holder, name] = holderOf(profile, path);
  return holder?.[name];
}

/** Sets a value at a path, and creates the objects above it. */
function setAt(profile: Profile, path: string, value: unknown): void {
  const names = path.split("/");
  const last = names.pop() ?? "";
  let at = profile;
  for (const name of names) {
    const next = isObject(at[name]) ? at[name] : {};
    at[name] = next;
    at = next;
  }
  at[last] = value;
}

/** Removes the value at a path, and the objects above it that have nothing else. */
function removeAt(profile: Profile, path: string): void {
  const [holder, name] = holderOf(profile, path);
  if (holder === null || !Object.hasOwn(holder, name)) return;
  Reflect.deleteProperty(holder, name);
  const above = path.split("/").slice(0, -1).join("/");
  if (above !== "" && Object.keys(holder).length === 0) removeAt(profile, above);
}

/** Returns the name of the input that tells an empty value of a field from an inherited one. */
export const nothingName = (path: string): string => `nothing:${path}`;

/** Returns whether a profile sets a field to a value without content, whose input is as empty as that of an inherited one. */
export const isNothing = (field: AgentField, profile: Profile): boolean =>
  field.nothing !== undefined && valueAt(profile, field.path) !== undefined && sentText(written(field, profile)) === "";

/** Returns the parts of a profile that no field of the form shows. Empty objects are among them. */
export function restOf(profile: Profile, under = ""): Profile {
  const rest: Profile = {};
  for (const [name, value] of Object.entries(profile)) {
    const path = `${under}${name}`;
    if (FIELDS.some((field) => field.path === path)) continue;
    const isShown = isObject(value) && Object.keys(value).length > 0 && FIELDS.some((field) => field.path.startsWith(`${path}/`));
    const left = isShown ? restOf(value, `${path}/`) : exact(profile, name);
    if (!isShown || Object.keys(left as Profile).length > 0) rest[name] = left;
  }
  return rest;
}

/** Returns those parts as the text of their input. */
export function writtenRest(profile: Profile): string {
  const rest = restOf(profile);
  return Object.keys(rest).length === 0 ? "" : print(rest, 2);
}

/** Returns the value of a field as the text of its input. It is empty where the profile inherits the value, or has one without content. */
export function written(field: AgentField, profile: Profile): string {
  const [holder, name] = holderOf(profile, field.path);
  const value = holder?.[name];
  if (holder === null || value === undefined || (value === null && field.nothing === null)) return "";
  switch (field.kind) {
    case "number":
      return typeof value === "number" ? spelling(holder, name) : "";
    case "seconds":
      return typeof value === "number" ? String(value / 1000) : "";
    case "lines":
      return Array.isArray(value) ? value.map(String).join("\n") : "";
    case "times":
      return Array.isArray(value) ? value.map((ms) => Number(ms) / 1000).join(" ") : "";
    case "toolChoice":
      return isObject(value) ? `tool:${String(value.tool)}` : plain(value);
    case "json":
      return print(value, 2);
    case "models":
    case "tools":
    case "builtins":
    case "classes":
    case "approvals":
      return print(value);
    default:
      return plain(value);
  }
}

/** Returns the text of an input as it is compared and sent. Some browsers send the lines of an input with CRLF. */
const sentText = (text: string): string => text.replace(/\r\n?/g, "\n").trim();

const plain = (value: unknown): string => (typeof value === "string" ? value : print(value));

/** An input that cannot be sent. */
class InvalidInput extends Error {}

function numberOf(text: string): unknown {
  const value = typedNumber(text);
  if (value === undefined || (typeof value === "number" && !Number.isFinite(value))) throw new InvalidInput("must be a number");
  return value;
}

function milliseconds(text: string): number {
  const ms = Math.round(Number(text.replace(",", ".")) * 1000);
  if (!Number.isFinite(ms)) throw new InvalidInput("must be a number of seconds");
  return ms;
}

function jsonOf(text: string): unknown {
  try {
    return exactCopy(parse(text));
  } catch (error) {
    throw new InvalidInput(`is no JSON: ${(error as Error).message}`);
  }
}

/** Returns the value of an input's text; `undefined` for an empty one. */
function valueOf({ kind }: AgentField, text: string): unknown {
  if (text === "") return undefined;
  switch (kind) {
    case "number":
      return numberOf(text);
    case "seconds":
      return milliseconds(text);
    case "flag":
      return text === "true";
    case "lines":
      return text.split("\n").map((line) => line.trim()).filter(Boolean);
    case "times":
      return text.split(/[\s;]+/).filter(Boolean).map(milliseconds);
    case "choice":
      return text === ABSENT ? null : text;
    case "toolChoice":
      if (text === ABSENT) return null;
      return text.startsWith("tool:") ? { tool: text.slice("tool:".length) } : text;
    case "json":
    case "models":
    case "tools":
    case "builtins":
    case "classes":
    case "approvals":
      return jsonOf(text);
    default:
      return text;
  }
}

export interface ReadProfile {
  profile: Profile;
  /** The inputs that cannot be sent, with pointers as those of the server. */
  errors: FieldError[];
}

/** Reads the profile from the texts of a form, by the names of its inputs. `rest` is the JSON of what has no field. */
export function readProfile(textOf: (name: string) => string, rest: string, before: Profile): ReadProfile {
  const errors: FieldError[] = [];
  const isRestKept = sentText(rest) === sentText(writtenRest(before));
  let profile: Profile = {};
  try {
    // Unchanged fields keep their order: models see a schema in its order, and versions are compared by their texts.
    const base = isRestKept ? exactCopy(before) : rest === "" ? {} : jsonOf(rest);
    if (!isObject(base)) throw new InvalidInput("must be a JSON object");
    profile = base;
  } catch (error) {
    errors.push({ pointer: "/profile/rest", detail: (error as Error).message });
  }
  for (const field of FIELDS) {
    const text = sentText(textOf(field.path));
    const wantsNothing = text === "" && field.nothing !== undefined && textOf(nothingName(field.path)) !== "";
    try {
      const [holder, name] = holderOf(before, field.path);
      const isSame = text === sentText(written(field, before)) && wantsNothing === isNothing(field, before);
      const isKept = isSame && holder !== null && Object.hasOwn(holder, name);
      const value = isKept ? exact(holder, name) : wantsNothing ? field.nothing : valueOf(field, text);
      if (value !== undefined) setAt(profile, field.path, value);
      else if (isRestKept) removeAt(profile, field.path);
    } catch (error) {
      errors.push({ pointer: `/profile/${field.path}`, detail: (error as Error).message });
    }
  }
  return { profile, errors };
}

/** Returns the errors of a request by the paths of the fields that show them. Other errors are not among them. */
export function errorsByField(errors: readonly FieldError[]): Map<string, string> {
  const found = new Map<string, string>();
  for (const { pointer, detail } of errors) {
    const place = pointer.replace(/^\/(profile\/)?/, "").replaceAll("~1", "/").replaceAll("~0", "~");
    // An error inside of a value, as in /profile/tools/3, belongs to its field.
    const path = [...FIELDS.map((field) => field.path), "rest", "name", "description", "note"].filter((one) => place === one || place.startsWith(`${one}/`)).sort((one, other) => other.length - one.length)[0];
    if (path !== undefined && !found.has(path)) found.set(path, detail);
  }
  return found;
}

/** Returns a value that an empty field inherits in few words; empty where none is known. */
export function inheritedWords(field: AgentField, base: Profile | undefined): string {
  const value = base === undefined ? undefined : valueAt(base, field.path);
  if (value === undefined || value === null || value === "") return "";
  const text = written(field, base ?? {});
  if (field.kind === "flag") return value === true ? "yes" : "no";
  if (field.kind === "choice") return field.options?.find(([id]) => id === value)?.[1] ?? text;
  return text.replace(/\s+/g, " ");
}

/**
 * Single values that are weaker than all others of their fields. A member may only choose them where the agent of the settings has them.
 * The value of a limit is its absence. The server bounds more fields, such as numbers and lists: its refusal stands at them.
 */
const WEAKER: Readonly<Record<string, string>> = {
  "approval/ask_untrusted": "false",
  "approval/on_deny": "feed_back",
  on_unknown: "rerun",
  "options/max_output_tokens": ABSENT,
  "budget/run_usd": ABSENT,
  "budget/conversation/tokens": ABSENT,
  "budget/conversation/usd": ABSENT,
  "budget/day/tokens": ABSENT,
  "budget/day/usd": ABSENT,
  "context/limit": ABSENT,
};

/**
 * Returns whether the form offers a value to a member. It leaves out those of `WEAKER`, and permissions of tools that the server refuses.
 * `usual` is the profile of the agent of the settings. While it is unknown, no weaker value is offered. All rules are in
 * `src/service/records/agent_bounds.rs`.
 */
export function acceptsFromMember(path: string, value: string, usual: Profile | undefined): boolean {
  // The server leaves out most absent limits.
  const isUsual = () => usual !== undefined && plain(valueAt(usual, path) ?? null) === value;
  if (path.startsWith("approval/tools/")) return value === "always_ask" || isUsual();
  return WEAKER[path] !== value || isUsual();
}
