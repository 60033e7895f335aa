import { act } from "react";
import { createRoot, type Root } from "react-dom/client";
import { afterEach, beforeEach, expect, it, vi } from "vitest";

import { Login } from "./login";

const URL = "https://login.test/agree?state=1";

let root: Root;
let box: HTMLElement;
/** The events of a login, in their order. */
let log: string[];

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("IS_REACT_ACT_ENVIRONMENT", true);
  box = document.createElement("div");
  root = createRoot(box);
  log = [];
});
afterEach(() => {
  act(() => {
    root.unmount();
  });
  expect(vi.getTimerCount()).toBe(0);
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

interface Opened {
  opener: unknown;
  location: { replace: (url: string) => void };
  close: () => void;
}

/** Shows a login, and clicks it. The browser opens a window, unless it is blocked. */
async function click({ isBlocked = false, begin, check = () => Promise.resolve(false) }: { isBlocked?: boolean; begin?: () => Promise<{ url: string; expires_in: number }>; check?: () => Promise<boolean> }): Promise<Opened> {
  const opened: Opened = { opener: window, location: { replace: (url) => log.push(`to ${url}`) }, close: () => log.push("closed") };
  vi.stubGlobal("open", () => {
    log.push("opened");
    return isBlocked ? null : opened;
  });
  const started = () => {
    log.push("asked the server");
    return Promise.resolve({ url: URL, expires_in: 600 });
  };
  act(() => {
    root.render(
      <Login begin={begin ?? started} check={check}>
        Log in
      </Login>,
    );
  });
  await act(async () => {
    box.querySelector("button")?.click();
    await vi.advanceTimersByTimeAsync(0);
  });
  return opened;
}

const seconds = (count: number) => act(() => vi.advanceTimersByTimeAsync(count * 1000));

it("opens the window within the click, without a way back, and leads it to the login", async () => {
  const { opener } = await click({});
  expect(log).toEqual(["opened", "asked the server", `to ${URL}`]);
  expect(opener).toBeNull();
  expect(box.querySelector("a")?.textContent).toBe("Open it again");
});

it("shows a link where the browser blocked the window", async () => {
  await click({ isBlocked: true });
  const link = box.querySelector(".login-wait a");
  expect([link?.getAttribute("href"), link?.getAttribute("rel"), link?.textContent]).toEqual([URL, "noopener noreferrer", "Open the login page"]);
});

it("notices the end of the login by itself", async () => {
  let isDone = false;
  const check = vi.fn(() => Promise.resolve(isDone));
  await click({ check });
  await seconds(5);
  expect([check.mock.calls.length, box.querySelector(".login-wait") === null]).toEqual([2, false]);
  isDone = true;
  await act(async () => {
    document.dispatchEvent(new Event("visibilitychange"));
    await vi.advanceTimersByTimeAsync(0);
  });
  expect([check.mock.calls.length, box.querySelector(".login-wait") === null]).toEqual([3, true]);
});

it("shows that it cannot ask only until it can again", async () => {
  let answer = () => Promise.reject<boolean>(new TypeError("no network"));
  await click({ check: () => answer() });
  await seconds(2);
  expect(box.querySelector("[role=alert]")?.textContent).toBe("The server cannot be reached.");
  answer = () => Promise.resolve(false);
  await seconds(2);
  expect([box.querySelector("[role=alert]"), box.querySelector(".login-wait") === null]).toEqual([null, false]);
});

it("stops to wait when the login has expired", async () => {
  await click({});
  await seconds(603);
  expect(box.querySelector(".login-wait")).toBeNull();
});

it("closes the window, and shows the error, if no login begins", async () => {
  await click({ begin: () => Promise.reject(new TypeError("no network")) });
  expect(log).toEqual(["opened", "closed"]);
  expect(box.querySelector("[role=alert]")?.textContent).toBe("The server cannot be reached.");
});

it("opens no address of another kind", async () => {
  await click({ begin: () => Promise.resolve({ url: "javascript:alert(1)", expires_in: 600 }) });
  expect(log).toEqual(["opened", "closed"]);
  expect(box.querySelector("a")).toBeNull();
});
