import { QueryClientProvider } from "@tanstack/react-query";
import { act } from "react";
import { createRoot, type Root } from "react-dom/client";
import { afterEach, beforeEach, expect, it, vi } from "vitest";

import type { Agent } from "../api/types";
import { queries } from "../shell/queries";
import { AgentForm } from "./agent-form";

const AGENT = { id: "agent_1", name: "poet", description: "", scope: "own", version: 1, latest_version: 1, revision: 4, profile: { system_prompt: "Rhyme.", fallbacks: ["a/b"], tools: ["mail__send", "gone"] } } as unknown as Agent;
const WRITER = { id: "agent_2", name: "writer", scope: "own", version: 2 };
/** The agent of the settings. Another agent may be called `default`. */
const USUAL = { id: "agent_3", name: "house", scope: "config", version: 1 };
const TOOLS = [
  { name: "mail__send", server: "mail", tool: "send", description: "Sends a mail" },
  { name: "clock", tool: "clock", description: "Tells the time" },
];

let root: Root;
let box: HTMLElement;
let sent: { url: string; method: string; version: string | undefined; body: Record<string, unknown> }[];
let answer: () => Response;

beforeEach(() => {
  vi.stubGlobal("IS_REACT_ACT_ENVIRONMENT", true);
  queries.setQueryData(["me"], { id: "user_1", role: "admin" });
  queries.setQueryData(["agents"], [AGENT, { id: "agent_4", name: "default", scope: "own", version: 1 }, WRITER, USUAL]);
  queries.setQueryData(["agent", "default"], { effective: { max_rounds: 3, on_unknown: "rerun" } });
  queries.setQueryData(["agent", "writer"], { ...WRITER, effective: { max_rounds: 7 } });
  queries.setQueryData(["agent", "agent_3"], { ...USUAL, effective: { max_rounds: 20, on_limit: "summarize", approval: { tools: { mail__send: "always_ask", far: "ask", clock: "newer" } } } });
  queries.setQueryData(["models"], [{ id: "a/b" }, { id: "c/d" }]);
  queries.setQueryData(["tools", "offered"], TOOLS);
  sent = [];
  done.mockClear();
  refresh.mockClear();
  answer = () => new Response("{}");
  vi.stubGlobal("fetch", (url: string, init: RequestInit) => {
    sent.push({ url, method: init.method ?? "", version: (init.headers as Record<string, string>)["if-match"], body: JSON.parse(init.body as string) as Record<string, unknown> });
    return Promise.resolve(answer());
  });
  box = document.createElement("div");
  document.body.append(box);
  root = createRoot(box);
});
afterEach(() => {
  act(() => {
    root.unmount();
  });
  box.remove();
  queries.clear();
  vi.unstubAllGlobals();
});

const done = vi.fn();
const refresh = vi.fn();

function show(agent: Agent | null): void {
  act(() => {
    root.render(
      <QueryClientProvider client={queries}>
        <AgentForm agent={agent} refresh={refresh} done={done} />
      </QueryClientProvider>,
    );
  });
}

function one(selector: string): HTMLElement {
  const found = box.querySelector<HTMLElement>(selector);
  if (found === null) throw new Error(selector);
  return found;
}

const send = () =>
  act(async () => {
    one("form").dispatchEvent(new Event("submit", { bubbles: true, cancelable: true }));
    await new Promise((resolve) => setTimeout(resolve, 0));
  });

const choose = (select: HTMLSelectElement, value: string) =>
  act(() => {
    select.value = value;
    select.dispatchEvent(new Event("change", { bubbles: true }));
  });

it("has a label and an explanation for each input", () => {
  show(AGENT);
  const inputs = [...box.querySelectorAll<HTMLInputElement>("input:not([type=hidden]), select, textarea")];
  expect(inputs.length).toBeGreaterThan(90);
  const isNamed = (input: HTMLInputElement) => input.hasAttribute("aria-label") || input.closest("label") !== null || box.querySelector(`label[for="${input.id}"]`) !== null;
  expect(inputs.filter((input) => !isNamed(input)).map(({ name }) => name)).toEqual([]);
  const described = [...box.querySelectorAll("[aria-describedby]")].flatMap((input) => (input.getAttribute("aria-describedby") ?? "").split(" "));
  expect(described.filter((id) => box.querySelector(`[id="${id}"]`) === null)).toEqual([]);
});

it("shows what an empty field inherits", () => {
  show(AGENT);
  expect((one("[name=max_rounds]") as HTMLInputElement).placeholder).toBe("20");
  expect(one("[name=on_limit] option").textContent).toBe("As inherited: an answer from what is known");
});

it("has own words for a tool choice that is not sent", () => {
  show(AGENT);
  const words = (name: string) => one(`[name='${name}'] option[value=null]`).textContent;
  expect([words("options/tool_choice"), words("options/reasoning_effort")]).toEqual(["not sent", "nothing: the provider decides"]);
});

it("has an input of more lines for the answer of last resort", () => {
  show({ ...AGENT, profile: { final_text: "a\nb" } } as unknown as Agent);
  expect((one("textarea[name=final_text]") as HTMLTextAreaElement).value).toBe("a\nb");
});

it("shows the permissions that are inherited", () => {
  show({ ...AGENT, profile: { approval: { tools: { own: "auto" } } } } as unknown as Agent);
  const words = (tool: string) => one(`[aria-label='Permission of ${tool}'] option`).textContent;
  expect(["mail__send", "far", "clock", "own"].map(words)).toEqual(["as inherited: asks before each call", "as inherited: asks first, unless allowed before", "as inherited: newer", "as its server says"]);
  expect((one("[name='approval/tools']") as HTMLInputElement).value).toBe('{"own":"auto"}');
});

it("offers members the permissions that the server accepts, and those that are set", () => {
  queries.setQueryData(["me"], { id: "user_1", role: "member" });
  show({ ...AGENT, profile: { on_unknown: "rerun", approval: { tools: { own: "auto" } } } } as unknown as Agent);
  const offered = (selector: string) => [...one(selector).querySelectorAll("option")].map(({ value }) => value);
  const of = (tool: string) => offered(`[aria-label='Permission of ${tool}']`);
  expect([of("mail__send"), of("far"), of("own")]).toEqual([["", "always_ask"], ["", "ask", "always_ask"], ["", "auto", "always_ask"]]);
  expect(offered("[name=on_unknown]")).toEqual(["", "tell_model", "ask", "fail", "rerun"]);
});

it("offers members no weaker value while the agent of the settings is unknown", () => {
  queries.setQueryData(["me"], { id: "user_1", role: "member" });
  const offered = () => [...one("[name='approval/on_deny']").querySelectorAll("option")].map(({ value }) => value);
  queries.setQueryData(["agents"], [AGENT]);
  show(AGENT);
  expect(offered()).toEqual(["", "end_turn"]);
});

it("offers members no limit without a value where the agent of the settings has one", () => {
  queries.setQueryData(["me"], { id: "user_1", role: "member" });
  queries.setQueryData(["agent", "agent_3"], { ...USUAL, effective: { budget: { day: { usd: 2.5 }, conversation: { usd: 9 } }, context: { limit: null } } });
  show({ ...AGENT, profile: { budget: { conversation: { usd: null } } } } as unknown as Agent);
  const isOffered = (path: string) => box.querySelector(`[name='nothing:${path}']`) !== null;
  // A value that is set stays.
  expect(["budget/day/usd", "budget/conversation/usd", "budget/run_usd", "context/limit", "system_prompt"].map(isOffered)).toEqual([false, true, true, true, true]);
});

it("tells an empty value from an inherited one, and sets each", async () => {
  show({ ...AGENT, profile: { system_prompt: "", max_rounds: 5, options: { stop: [] }, builtin_tools: "none", approval: { tools: {} }, sampling: {} } } as unknown as Agent);
  const box = (path: string) => one(`[name='nothing:${path}']`) as HTMLInputElement;
  const click = (path: string) =>
    act(() => {
      box(path).click();
    });
  expect(["system_prompt", "options/stop", "options/seed"].map((path) => box(path).checked)).toEqual([true, true, false]);
  expect((one("[name=system_prompt]") as HTMLTextAreaElement).placeholder).toBe("nothing");
  click("options/stop");
  click("options/seed");
  await send();
  const kept = { max_rounds: 5, builtin_tools: "none", approval: { tools: {} }, sampling: {} };
  expect(sent[0]?.body.profile).toEqual({ ...kept, system_prompt: "", options: { seed: null } });
  // A text replaces the choice.
  const prompt = one("[name=system_prompt]") as HTMLTextAreaElement;
  act(() => {
    prompt.value = "Rhyme.";
    prompt.dispatchEvent(new Event("input", { bubbles: true }));
  });
  expect([box("system_prompt").checked, box("system_prompt").disabled]).toEqual([false, true]);
  await send();
  expect(sent[1]?.body.profile).toEqual({ ...kept, system_prompt: "Rhyme.", options: { seed: null } });
});

it("names a limit without a value as what it is", () => {
  show({ ...AGENT, profile: { budget: { run_usd: null }, context: { limit: null }, options: { seed: null } } } as unknown as Agent);
  const words = (path: string) => one(`[name='nothing:${path}']`).closest("label")?.textContent;
  const hint = (path: string) => (one(`[name='${path}']`) as HTMLInputElement).placeholder;
  expect(["budget/run_usd", "context/limit", "options/seed"].map((path) => [words(path), hint(path)])).toEqual([
    ["No limit for Dollars of a run", "No limit"],
    ["The model’s window for Size of a request", "The model’s window"],
    ["Inherit nothing for Seed", "nothing"],
  ]);
});

it("keeps a choice when the agents and tools change", async () => {
  show({ ...AGENT, profile: { extends: "gone", options: { tool_choice: "later" } } } as unknown as Agent);
  const base = () => one("[name=extends]") as HTMLSelectElement;
  const tool = () => one("[name='options/tool_choice']") as HTMLSelectElement;
  expect([base().value, tool().value]).toEqual(["gone", "later"]);
  choose(base(), "writer");
  choose(tool(), "tool:clock");
  const change = async (agents: unknown[], tools: unknown[]) => {
    await act(async () => {
      queries.setQueryData(["agents"], agents);
      queries.setQueryData(["tools", "offered"], tools);
      await new Promise((resolve) => setTimeout(resolve, 0));
    });
    return [base().options.length, base().value, tool().options.length, tool().value];
  };
  expect(await change([WRITER, { name: "new" }, { name: "other" }], [...TOOLS, { name: "new", description: "" }])).toEqual([5, "writer", 9, "tool:clock"]);
  expect(await change([], [])).toEqual([3, "writer", 7, "tool:clock"]);
});

it("shows what the chosen agent gives to empty fields", () => {
  show(AGENT);
  const rounds = () => (one("[name=max_rounds]") as HTMLInputElement).placeholder;
  const base = one("[name=extends]") as HTMLSelectElement;
  choose(base, "writer");
  expect([rounds(), one("[name=on_limit] option").textContent]).toEqual(["7", "As inherited"]);
  choose(base, "");
  expect(rounds()).toBe("20");
});

it.each([["writer@2", "7"], ["writer@1", ""], ["gone@2", ""], ["gone", ""]])("shows the values of %s only if it knows them", (base, rounds) => {
  show({ ...AGENT, profile: { extends: base } } as unknown as Agent);
  expect((one("[name=max_rounds]") as HTMLInputElement).placeholder).toBe(rounds);
});

it("sends a new version with what was changed, and all else as it was", async () => {
  show(AGENT);
  (one("[name=max_rounds]") as HTMLInputElement).value = "5";
  choose(one("[aria-label='Permission of clock']") as HTMLSelectElement, "ask");
  act(() => {
    one("[data-field=tools] input[type=checkbox]:checked").click();
  });
  act(() => {
    one("[aria-label='Remove a/b']").click();
  });
  await send();
  expect(sent).toMatchObject([{ method: "PATCH", version: '"4"', body: { name: "poet", profile: { system_prompt: "Rhyme.", max_rounds: 5, fallbacks: [], tools: ["gone"], approval: { tools: { clock: "ask" } } } } }]);
  expect(done).toHaveBeenCalledOnce();
});

it("does not replace a version that was saved meanwhile", async () => {
  show(AGENT);
  answer = () => new Response(JSON.stringify({ detail: "it has been changed since it was read" }), { status: 412 });
  await send();
  expect(one(".setup-form > .trouble").textContent).toBe("The agent was changed meanwhile. Press Edit to load it again.");
  // The list is read again, so that the button loads the newest version.
  expect([refresh.mock.calls.length, done.mock.calls.length]).toEqual([1, 0]);
});

it("shows the errors of the server at their fields, and opens their groups", async () => {
  show(null);
  const errors = [
    { pointer: "/profile/max_parallel_calls", detail: "must be at least 1" },
    { pointer: "/profile/tools/0", detail: "no such name" },
  ];
  answer = () => new Response(JSON.stringify({ title: "Invalid", detail: "the request is invalid", errors }), { status: 400 });
  await send();
  expect(one("[data-field=max_parallel_calls] .trouble").textContent).toBe("must be at least 1");
  expect([one("[name=max_parallel_calls]").getAttribute("aria-invalid"), one("[data-field=tools] fieldset").hasAttribute("data-invalid")]).toEqual(["true", true]);
  expect(one("[data-group=Tools]").hasAttribute("open")).toBe(true);
  // A field that was mended loses its error.
  answer = () => new Response(JSON.stringify({ detail: "no", errors: errors.slice(1) }), { status: 400 });
  await send();
  expect(box.querySelector("[data-field=max_parallel_calls] .trouble")).toBeNull();
});

it("sends nothing that it cannot read", async () => {
  show(null);
  (one("[name='repair/aliases']") as HTMLTextAreaElement).value = "{";
  await send();
  expect([sent.length, one("[data-field='repair/aliases'] .trouble").textContent.startsWith("is no JSON")]).toEqual([0, true]);
});
