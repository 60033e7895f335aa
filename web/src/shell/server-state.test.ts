import { expect, it } from "vitest";

import type { McpServer } from "../api/types";
import { failureCount, mayLogIn, needsLogin, nextAttempt, serverState, toolCount, worstState } from "./server-state";

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

it("counts failures of servers that are away", () => {
  const status = (more: object) => ({ state: "error", tools: 0, auth: "none", ...more }) as McpServer["status"];
  expect([status({ failures: 1 }), status({ failures: 4 }), status({}), status({ failures: 2, auth: "needed" }), status({ failures: 1, state: "ok" })].map(failureCount)).toEqual(["failed once", "failed 4 times in a row", null, null, null]);
});

it("names the time of the next attempt", () => {
  const at = "2026-01-01T12:00:05.250Z";
  const status = { state: "error", tools: 0, auth: "none", failures: 2 } as McpServer["status"];
  expect([nextAttempt({ ...status, next_attempt_at: at }), nextAttempt(status)]).toEqual([`next attempt at ${new Date(at).toLocaleTimeString()}`, null]);
});

it("offers a login to those who may change the server", () => {
  const [admin, member] = [{ role: "admin" }, { role: "member" }] as const;
  const may = (scope: McpServer["scope"]) => [mayLogIn({ scope }, member), mayLogIn({ scope }, admin), mayLogIn({ scope }, undefined)];
  expect([may("own"), may("global"), may("config")]).toEqual([
    [true, true, false],
    [false, true, false],
    [false, true, false],
  ]);
  const login = { status: { state: "error", tools: 0, auth: "needed" } };
  expect([needsLogin(server("error", login)), needsLogin(server("error", { ...login, enabled: false })), needsLogin(server("ok"))]).toEqual([true, false, false]);
});
