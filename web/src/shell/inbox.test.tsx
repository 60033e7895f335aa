import { QueryClientProvider } from "@tanstack/react-query";
import { act } from "react";
import { createRoot } from "react-dom/client";
import { afterEach, beforeEach, expect, it, vi } from "vitest";

import Inbox from "./inbox";
import { queries } from "./queries";

const status = (auth: string) => ({ state: "error", tools: 0, auth });
const SERVERS = [
  { id: "mcp_1", name: "mail", enabled: true, scope: "own", status: status("needed") },
  { id: "mcp_2", name: "shared", enabled: true, scope: "global", status: status("needed") },
  { id: "mcp_3", name: "off", enabled: false, scope: "own", status: status("needed") },
  { id: "mcp_4", name: "ready", enabled: true, scope: "own", status: status("ok") },
];
const WAIT = { id: "run_1", conversation_id: "conv_1", status: "waiting", reason: "client_tool", created_at: "2026-01-31T12:00:00Z" };

let root: ReturnType<typeof createRoot> | null = null;

function close(): void {
  act(() => {
    root?.unmount();
  });
  root = null;
}

beforeEach(() => vi.stubGlobal("IS_REACT_ACT_ENVIRONMENT", true));
afterEach(() => {
  close();
  vi.unstubAllGlobals();
});

function shown(role: string, waits: object[] = [], servers: object[] = SERVERS): HTMLElement {
  queries.setQueryData(["me"], { id: "user_1", role });
  queries.setQueryData(["questions"], { approvals: [], inputs: [] });
  queries.setQueryData(["reviews"], []);
  queries.setQueryData(["mcp-servers"], servers);
  queries.setQueryData(["client-waits"], waits);
  queries.setQueryData(["title", "conv_1"], "Look around");
  close();
  const box = document.createElement("div");
  root = createRoot(box);
  act(() => {
    root?.render(
      <QueryClientProvider client={queries}>
        <Inbox />
      </QueryClientProvider>,
    );
  });
  return box;
}

it("lists the servers at which the user has to log in", () => {
  const names = (role: string) => [...shown(role).querySelectorAll<HTMLElement>("[data-login]")].map((card) => card.dataset.login);
  expect([names("member"), names("admin")]).toEqual([["mail"], ["mail", "shared"]]);
  expect(shown("member").querySelector("[data-login] button")?.getAttribute("aria-label")).toBe("Log in at mail");
});

it("shows runs that wait for their client, with a link and no button", () => {
  const entry = shown("member", [WAIT]).querySelector("[data-client-wait]");
  expect([entry?.querySelector("a")?.getAttribute("href"), entry?.querySelector("a")?.textContent, entry?.querySelector("button")]).toEqual(["#/conv_1", "Look around", null]);
});

it("says when nothing waits", () => {
  const isEmpty = (body: HTMLElement) => body.querySelector(".inbox-empty") !== null;
  expect([isEmpty(shown("member", [], [])), isEmpty(shown("member", [WAIT], [])), isEmpty(shown("member"))]).toEqual([true, false, false]);
});
