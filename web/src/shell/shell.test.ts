import { afterEach, expect, it, vi } from "vitest";

import type { Approval, Conversation, InputRecord, McpServer, ToolReview } from "../api/types";
import { importFile, tagsOf, usedTags } from "./conversations";
import { SeenEntries, isNotifying, notice, setNotifying } from "./notify";
import { mayAccept } from "./queries";

afterEach(() => {
  vi.unstubAllGlobals();
  localStorage.clear();
});

it("reads tags from a line, each once", () => {
  expect(tagsOf(" work, home ,,work, a b ")).toEqual(["work", "home", "a b"]);
  expect(tagsOf("")).toEqual([]);
});

it("orders the tags of conversations by use", () => {
  const rows = [{ tags: ["b", "a"] }, { tags: ["c", "b"] }, {}] as Conversation[];
  expect(usedTags(rows)).toEqual(["b", "a", "c"]);
});

it("imports a file as it is written, and returns its conversation", async () => {
  const send = vi.fn<(url: string, init: RequestInit) => Promise<Response>>().mockResolvedValue(new Response('{"id":"conv_1"}', { status: 201 }));
  vi.stubGlobal("fetch", send);
  const text = '{"format":"capstan.conversation","version":1,"messages":[{"n":1.00}]}';
  expect(await importFile(new File([text], "saved.json"))).toBe("conv_1");
  const [url, init] = send.mock.calls[0] ?? ["", {}];
  expect([url.endsWith("/api/v1/conversations/import"), init.body]).toEqual([true, text]);
});

it("returns nothing for a refused file", async () => {
  vi.stubGlobal("fetch", () => Promise.resolve(new Response('{"title":"no document"}', { status: 400 })));
  expect(await importFile(new File(["x"], "saved.json"))).toBeNull();
});

it("tells only of questions that came after the first list, and of each once", () => {
  const seen = new SeenEntries();
  const ids = (open: string[]) => seen.findNew(open.map((id) => ({ id }))).map(({ id }) => id);
  expect([ids(["a"]), ids(["a", "b"]), ids(["b"]), ids(["b", "c"])]).toEqual([[], ["b"], [], ["c"]]);
});

it("names the tool of an approval on one line", () => {
  expect(notice({ id: "1", tool: "send\u202e\nmail" } as unknown as Approval)).toBe("send mail needs your permission.");
  expect(notice({ id: "2" } as InputRecord)).toBe("A question waits for your answer.");
  expect(notice({ id: "4", name: "mail", enabled: true } as McpServer)).toBe("The MCP server mail needs a login.");
  expect(notice({ id: "3", tool: "pay", definition_hash: "0" } as ToolReview)).toBe("The tool pay has changed, and waits for your review.");
});

it("notifies only after the switch and the permission of the browser", async () => {
  const browser = { permission: "default", requestPermission: () => Promise.resolve(browser.permission) };
  vi.stubGlobal("Notification", browser);
  vi.stubGlobal("isSecureContext", true);
  expect([isNotifying(), await setNotifying(true), isNotifying()]).toEqual([false, false, false]);
  browser.permission = "granted";
  expect([isNotifying(), await setNotifying(true), isNotifying()]).toEqual([false, true, true]);
  expect([await setNotifying(false), isNotifying(), localStorage.length]).toEqual([true, false, 0]);
});

it("counts a review for those only who may accept it", () => {
  const [admin, ann] = [{ id: "user_1", role: "admin" }, { id: "user_2", role: "member" }] as const;
  expect([mayAccept({}, admin), mayAccept({}, ann), mayAccept({ owner_id: "user_2" }, ann), mayAccept({ owner_id: "user_2" }, admin), mayAccept({}, undefined)]).toEqual([true, false, true, false, false]);
});
