import { afterEach, expect, it, vi } from "vitest";

import * as api from "../api/client";
import type { SharedMessage } from "../api/types";
import { copy } from "../text/words";
import { counted, isToken, lifetimes, nextEnd, shareLink, sharedToken, shownMessages, usualLifetime } from "./shares";

afterEach(() => vi.unstubAllGlobals());

it("finds the token in the address of a share only", () => {
  expect(["#/share/a-B_9", "#/share/", "#/share", "#/share/a/b", "#/shared/a", "#/", "", "#/conv_1"].map(sharedToken)).toEqual(["a-B_9", "", "", "a/b", null, null, null, null]);
  expect(["a-B_9", "", "a/b", "a b", "ä", "a\n", "a".repeat(201)].map(isToken)).toEqual([true, false, false, false, false, false, false]);
});

it("offers lifetimes within the limit of the server only, and the limit itself", () => {
  const offered = (limit: number) => [lifetimes(limit), usualLifetime(limit)];
  expect([365, 91, 90, 45, 30, 10, 7, 1].map(offered)).toEqual([
    [[1, 7, 30, 90], 30],
    [[1, 7, 30, 90], 30],
    [[1, 7, 30, 90], 30],
    [[1, 7, 30, 45], 30],
    [[1, 7, 30], 30],
    [[1, 7, 10], 10],
    [[1, 7], 7],
    [[1], 1],
  ]);
});

it("makes a link from the address of the page", () => {
  expect(shareLink("t", "https://host.example/#/conv_1")).toBe("https://host.example/#/share/t");
  expect(shareLink("t", "https://host.example/chat/?a=1#/setup")).toBe("https://host.example/chat/#/share/t");
});

it("shows the steps of an answer as one message, with successive tools together", () => {
  const at = "2026-01-01T00:00:00Z";
  const message = (role: SharedMessage["role"], ...parts: SharedMessage["parts"]): SharedMessage => ({ role, created_at: at, parts });
  const text = (text: string) => ({ type: "text" as const, text });
  const tool = (name: string) => ({ type: "tool" as const, name });
  const shown = shownMessages([message("user", text("a")), message("user", text("b")), message("assistant", text("c"), tool("x")), message("assistant", tool("y"), tool("x")), message("assistant"), message("assistant", text("d"))]);
  expect(shown.map(({ role, pieces }) => [role, pieces])).toEqual([
    ["user", [text("a")]],
    ["user", [text("b")]],
    ["assistant", [text("c"), { type: "tools", names: ["x", "y", "x"] }, text("d")]],
  ]);
  expect(shownMessages([message("user"), message("assistant")])).toEqual([]);
  expect(counted(["x", "y", "x"])).toEqual([["x", 2], ["y", 1]]);
});

it("adds messages in bounds of number and size, and at least one", () => {
  const messages = (lengths: number[]) => lengths.map((length) => ({ role: "user" as const, created_at: "", pieces: [{ type: "text" as const, text: "x".repeat(length) }] }));
  const short = messages(Array.from({ length: 70 }, () => 1));
  expect([nextEnd(short, 0), nextEnd(short, 50), nextEnd(short, 70), nextEnd([], 0)]).toEqual([50, 70, 70, 0]);
  const long = messages([20_000, 20_000, 20_000, 90_000, 1]);
  expect([nextEnd(long, 0), nextEnd(long, 2), nextEnd(long, 3), nextEnd(long, 4)]).toEqual([2, 4, 4, 5]);
});

it("reads a share without the session, and never asks for a key", async () => {
  const send = vi.fn<(url: string, init: RequestInit) => Promise<Response>>().mockResolvedValue(new Response("{}", { status: 401 }));
  vi.stubGlobal("fetch", send);
  const lockedOut = vi.fn();
  const stop = api.onLockedOut(lockedOut);
  await expect(api.getShared("a-B_9")).rejects.toThrow();
  stop();
  const [url, init] = send.mock.calls[0] ?? ["", {}];
  expect([url.endsWith("/api/v1/shared"), init.credentials, (init.headers as Record<string, string>)["share-token"]]).toEqual([true, "omit", "a-B_9"]);
  expect(lockedOut).not.toHaveBeenCalled();
});

it("copies from within an open dialog, and gives the focus back", async () => {
  const dialog = document.createElement("dialog");
  const button = dialog.appendChild(document.createElement("button"));
  document.body.append(dialog);
  button.focus();
  let place: Element | null = null;
  vi.stubGlobal("navigator", {});
  const command = () => {
    place = dialog.querySelector("textarea");
    return true;
  };
  Object.assign(document, { execCommand: command });
  await copy("a text");
  expect(place).not.toBeNull();
  expect([document.activeElement === button, dialog.children.length]).toEqual([true, 1]);
  dialog.remove();
});
