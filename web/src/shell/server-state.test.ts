import { expect, it } from "vitest";

import type { McpServer } from "../api/types";
import { serverState, toolCount, worstState } from "./server-state";

const server = (state: string, more: object = {}) => ({ enabled: true, status: { state, tools: 1, auth: "none" }, ...more }) as unknown as McpServer;

it("names the state of a server", () => {
  const login = { status: { state: "error", tools: 0, auth: "needed" } };
  expect([server("ok"), server("starting"), server("error"), server("unknown"), server("ok", { enabled: false }), server("error", login), server("new")].map((one) => serverState(one).words)).toEqual([
    "ready",
    "starting",
    "failed",
    "not tried yet",
    "off",
    "needs a login",
    "new",
  ]);
  expect([toolCount(0), toolCount(1)]).toEqual(["0 tools", "1 tool"]);
});

it("tells of the worst state only", () => {
  expect(worstState([server("ok"), server("unknown"), server("error", { enabled: false })])).toBeNull();
  expect(worstState([server("starting"), server("ok")])?.words).toBe("starting");
  expect(worstState([server("starting"), server("error"), server("error")])).toEqual({ words: "2 failed", look: "bad" });
});
