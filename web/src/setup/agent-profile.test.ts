import { describe, expect, it } from "vitest";

import reference from "../../../docs/reference/settings.md?raw";
import { parse, print } from "../api/json";
import { FIELDS } from "./agent-fields";
import { acceptsFromMember, errorsByField, inheritedWords, isNothing, nothingName, readProfile, restOf, valueAt, written, writtenRest, type Profile } from "./agent-profile";

const fieldAt = (path: string) => {
  const found = FIELDS.find((field) => field.path === path);
  if (found === undefined) throw new Error(path);
  return found;
};

/** The texts of the inputs of a profile by their names, after a person changed some. */
const form = (profile: Profile, typed: Record<string, string> = {}) => (name: string) => {
  const [, path] = /^nothing:(.*)/.exec(name) ?? [];
  return typed[name] ?? (path === undefined ? written(fieldAt(name), profile).trim() : isNothing(fieldAt(path), profile) ? "on" : "");
};

/** A profile with one value. */
const nested = (path: string, value: unknown) => path.split("/").reduceRight((inner, name) => ({ [name]: inner }), value) as Profile;

/** A profile with a value of each kind. */
const PROFILE: Profile = {
  extends: "poet",
  system_prompt: "Rhyme.",
  options: { temperature: 0.7, stop: ["END", "STOP"], tool_choice: { tool: "mail__send" }, output_schema: { name: "a", schema: {} } },
  tools: null,
  builtin_tools: [],
  tool_timeout_ms: 1500,
  approval: { tools: { mail__send: "always_ask" }, ask_untrusted: false },
  llm_retry: { delays_ms: [500, 3000], classes: ["timeout"] },
  fallbacks: ["a/b"],
  budget: { run_usd: 0.5, unknown: 1 },
  newer: { field: [1] },
};

describe("the profile of an agent", () => {
  it("stays as it is when its form is saved without a change", () => {
    const rest = restOf(PROFILE);
    expect(rest).toEqual({ budget: { unknown: 1 }, newer: { field: [1] } });
    expect(readProfile(form(PROFILE), print(rest), PROFILE)).toEqual({ profile: PROFILE, errors: [] });
    // Values whose inputs are empty are not inherited ones.
    const kinds = ["lines", "times", "number", "seconds", "long"];
    const kept = FIELDS.filter(({ kind }) => kinds.includes(kind)).flatMap(({ path }) => [[], null, "", ["\n\n"]].map((value) => nested(path, value)));
    expect(kept.length).toBeGreaterThan(100);
    expect(kept.map((profile) => readProfile(form(profile), print(restOf(profile)), profile))).toEqual(kept.map((profile) => ({ profile, errors: [] })));
  });

  it("keeps all other parts and their order when one field is changed", () => {
    const before = { zeta: [], sampling: { tool_turn: {} }, options: { top_p: 0.5, temperature: 1 }, approval: { tools: {} }, budget: {}, fallbacks: [], builtin_tools: "none", context: { limit: null } };
    const read = (typed: Record<string, string>) => print(readProfile(form(before, typed), writtenRest(before), before).profile);
    expect(read({ max_rounds: "7" })).toBe(print({ ...before, max_rounds: 7 }));
    expect(read({ "options/top_p": "" })).toBe(print({ ...before, options: { temperature: 1 } }));
    expect(read({ "nothing:context/limit": "" })).toBe(print({ ...before, context: undefined }));
    expect(read({ "budget/run_usd": "2" })).toBe(print({ ...before, budget: { run_usd: 2 } }));
    // The empty objects can be removed where they are shown.
    expect(readProfile(form(before), '{"zeta": []}', before).profile).toEqual({ ...before, sampling: undefined, budget: undefined });
  });

  it("tells a value without content from an inherited one", () => {
    const fields = FIELDS.filter(({ nothing }) => nothing !== undefined);
    expect(fields.length).toBeGreaterThan(25);
    const read = (before: Profile, typed: Record<string, string>) => readProfile(form(before, typed), writtenRest(before), before).profile;
    for (const { path, nothing } of fields) {
      const stored = nested(path, nothing);
      expect(written(fieldAt(path), stored)).toBe("");
      expect([isNothing(fieldAt(path), stored), isNothing(fieldAt(path), {})]).toEqual([true, false]);
      expect([read({}, { [nothingName(path)]: "on" }), read(stored, {}), read(stored, { [nothingName(path)]: "" }), read({}, {})]).toEqual([stored, stored, {}, {}]);
    }
    // A text has priority.
    expect(read({}, { system_prompt: "Rhyme.", "nothing:system_prompt": "on" })).toEqual({ system_prompt: "Rhyme." });
    const effort = { options: { reasoning_effort: null } };
    expect([read({}, { "options/reasoning_effort": "null" }), read(effort, {}), read(effort, { "options/reasoning_effort": "" })]).toEqual([effort, effort, {}]);
    expect(read({}, { "options/tool_choice": "null" })).toEqual({ options: { tool_choice: null } });
  });

  it("takes no other line ends for a change, and sends those of a change as LF", () => {
    const read = (stored: string, typed: string) => readProfile(form({}, { final_text: typed }), "", { final_text: stored }).profile.final_text;
    expect([read("a\nb", "a\r\nb"), read("a\r\nb", "a\nb"), read("a\r\nb", "a\r\nb"), read("a\nb", "a\r\nc")]).toEqual(["a\nb", "a\r\nb", "a\r\nb", "a\nc"]);
  });

  it("has the values that were typed, and inherits those that were removed", () => {
    const typed = {
      max_rounds: "7",
      system_prompt: "",
      tool_timeout_ms: "2.5",
      "options/stop": " END \n\n",
      "options/tool_choice": "none",
      "llm_retry/delays_ms": "1 2.5",
      "llm_retry/classes": "",
      "approval/rationale": "true",
      "context/unit": "chars",
      tools: '["mail__send"]',
    };
    const { profile, errors } = readProfile(form(PROFILE, typed), "", PROFILE);
    expect(errors).toEqual([]);
    expect(profile).toMatchObject({ max_rounds: 7, tool_timeout_ms: 2500, options: { stop: ["END"], tool_choice: "none" }, tools: ["mail__send"], context: { unit: "chars" } });
    expect(profile.approval).toEqual({ tools: { mail__send: "always_ask" }, ask_untrusted: false, rationale: true });
    expect(profile.llm_retry).toEqual({ delays_ms: [1000, 2500] });
    expect(Object.keys(profile)).not.toContain("system_prompt");
    expect(valueAt(profile, "budget/run_usd")).toBe(0.5);
  });

  it("keeps the digits of numbers", () => {
    const profile = parse('{"options": {"temperature": 0.70}}') as Profile;
    const text = written(fieldAt("options/temperature"), profile);
    expect(JSON.stringify(readProfile(form(profile), "", profile).profile)).toBe(`{"options":{"temperature":${text}}}`);
    const deep = parse('{"newer":{"list":[1.50]},"options":{"output_schema":{"schema":{"minimum":1.0}}}}') as Profile;
    expect(JSON.stringify(readProfile(form(deep), writtenRest(deep), deep).profile)).toBe(print(deep));
  });

  it("names the inputs that cannot be sent", () => {
    const { errors } = readProfile(form({}, { max_rounds: "many", tool_timeout_ms: "soon", "repair/aliases": "{" }), "[]", {});
    expect([...errorsByField(errors).keys()]).toEqual(["rest", "tool_timeout_ms", "repair/aliases", "max_rounds"]);
  });

  it("shows an error of the server at its field", () => {
    const at = (pointer: string) => [...errorsByField([{ pointer, detail: "no" }]).keys()][0];
    expect(["/name", "/profile/max_rounds", "/profile/tools/3", "/profile/approval/tools/mail__send", "/profile/options/tool_choice/tool", "/profile/tool_filter/k", "/profile/elsewhere", "/profile"].map(at)).toEqual([
      "name",
      "max_rounds",
      "tools",
      "approval/tools",
      "options/tool_choice",
      "tool_filter/k",
      undefined,
      undefined,
    ]);
  });

  it("tells in words what an empty field inherits", () => {
    const base = { max_rounds: 20, on_limit: "summarize", approval: { ask_untrusted: false }, tools: null, tool_timeout_ms: 30_000 };
    expect(["max_rounds", "on_limit", "approval/ask_untrusted", "tools", "tool_timeout_ms", "title"].map((path) => inheritedWords(fieldAt(path), base))).toEqual(["20", "an answer from what is known", "no", "", "30", ""]);
  });
});

it("offers members no choice that the server refuses", () => {
  const usual = { on_unknown: "tell_model", approval: { tools: { mail__send: "ask" }, ask_untrusted: true, on_deny: "feed_back" } };
  const accepted = (path: string, values: string[], base: Profile | undefined = usual) => values.filter((value) => acceptsFromMember(path, value, base));
  const modes = ["auto", "ask", "always_ask"];
  expect([accepted("approval/tools/mail__send", modes), accepted("approval/tools/clock", modes), accepted("approval/tools/clock", modes, undefined)]).toEqual([["ask", "always_ask"], ["always_ask"], ["always_ask"]]);
  expect(accepted("approval/ask_untrusted", ["true", "false"])).toEqual(["true"]);
  expect(accepted("approval/on_deny", ["feed_back", "end_turn"])).toEqual(["feed_back", "end_turn"]);
  expect(accepted("approval/on_deny", ["feed_back", "end_turn"], { approval: { on_deny: "end_turn" } })).toEqual(["end_turn"]);
  expect(accepted("on_unknown", ["tell_model", "rerun"])).toEqual(["tell_model"]);
  expect(accepted("on_unknown", ["rerun"], { on_unknown: "rerun" })).toEqual(["rerun"]);
  expect(accepted("on_limit", ["fail"])).toEqual(["fail"]);
  const absent = (base: Profile | undefined) => acceptsFromMember("budget/day/usd", "null", base);
  expect([absent({ budget: { day: { usd: 2.5 } } }), absent({ budget: { day: { usd: null } } }), absent({}), absent(undefined)]).toEqual([false, true, true, false]);
  expect(["feed_back", "end_turn"].filter((value) => acceptsFromMember("approval/on_deny", value, undefined))).toEqual(["end_turn"]);
});

describe("the fields of the form", () => {
  it("are explained in one sentence each, and each path is there once", () => {
    expect(new Set(FIELDS.map(({ path }) => path)).size).toBe(FIELDS.length);
    expect(FIELDS.filter(({ hint }) => !/^[A-Z].{8,110}\.$/.test(hint)).map(({ path }) => path)).toEqual([]);
  });

  it("have own words for a limit without a value", () => {
    const isLimit = ({ path, nothing }: (typeof FIELDS)[number]) => nothing === null && /^budget\/|max_output_tokens$|^context\/limit$/.test(path);
    expect(FIELDS.filter(isLimit)).toHaveLength(9);
    expect(FIELDS.filter((field) => isLimit(field) !== (field.nothingWords !== undefined))).toEqual([]);
  });

  it("are those of the reference of settings", () => {
    const rows = reference.split("\n").filter((line) => line.startsWith("| `agent."));
    const names = rows.flatMap((row) => [...(row.split(" | ")[0] ?? "").matchAll(/`agent\.([a-z_.]+)/g)].map(([, name]) => (name ?? "").replace(/\.$/, "").replaceAll(".", "/")));
    expect(names.length).toBeGreaterThan(80);
    // The server sets the name and the version.
    const missing = names.filter((name) => name !== "name" && name !== "version" && !FIELDS.some(({ path }) => path === name || path.startsWith(`${name}/`)));
    expect(missing).toEqual([]);
  });
});
