// Tool calls, as blocks that open.

import { print } from "./api.js";
import { brief, cut, duration, h, icon } from "./dom.js";
import { fileChip, picture } from "./files.js";

const WORDS = {
  __proto__: null,
  written: "being written",
  planned: "planned",
  awaiting_approval: "waits for you",
  started: "running",
  done: "done",
  failed: "failed",
  denied: "denied",
  cancelled: "stopped",
  unknown: "outcome unknown",
};

const ICONS = { __proto__: null, done: "done", failed: "failed", denied: "close", cancelled: "close", unknown: "unknown", awaiting_approval: "ask" };

/** The arguments of a call on one line. */
function summary(call) {
  const value = call.arguments;
  if (value === null || typeof value !== "object") return brief(call.written);
  const entries = Object.entries(value);
  if (entries.length === 1 && typeof entries[0][1] === "string") return brief(entries[0][1]);
  return entries.length === 0 ? "" : brief(print(value));
}

function content(part) {
  if (part.type === "text") return h("pre", { tabindex: "0" }, cut(part.text));
  if (part.type === "image") return picture(part);
  if (part.type === "file") return fileChip(part);
  return h("p", { class: "faint" }, "[not shown]");
}

export class CallView {
  #mark = h("span", { class: "mark" });
  #name = h("span", { class: "name" });
  #summary = h("span", { class: "summary" });
  #time = h("span", { class: "time" });
  #body = h("div", { class: "body" });
  node = h("details", { class: "call" }, h("summary", {}, this.#mark, this.#name, this.#summary, this.#time), this.#body);
  #call = null;
  #shown = "";

  constructor() {
    // The content of a closed block is not built.
    this.node.addEventListener("toggle", () => this.#draw());
  }

  update(call) {
    this.#call = call;
    const isRunning = ["written", "planned", "started"].includes(call.state);
    const state = call.isError && call.state === "done" ? "failed" : call.state;
    this.node.dataset.state = state;
    if (this.#mark.dataset.state !== state) {
      this.#mark.dataset.state = state;
      this.#mark.replaceChildren(isRunning ? h("span", { class: "spin" }) : icon(ICONS[state] ?? "unknown"), h("span", { class: "unseen" }, WORDS[state] ?? state));
    }
    this.#name.textContent = brief(call.name, 80) || "tool";
    this.#summary.textContent = summary(call);
    this.#time.textContent = this.#words(state, isRunning);
    this.#draw();
  }

  #words(state, isRunning) {
    const { progress, ms } = this.#call;
    if (isRunning && progress) {
      const part = progress.total > 0 ? `${Math.round((100 * progress.progress) / progress.total)} %` : String(progress.progress);
      return progress.message ? `${brief(progress.message, 60)} · ${part}` : part;
    }
    if (ms !== null && state === "done") return duration(ms);
    const words = WORDS[state] ?? brief(state, 30);
    return ms === null || state !== "failed" ? words : `${words} · ${duration(ms)}`;
  }

  #draw() {
    if (!this.node.open) return;
    const call = this.#call;
    // Content with pictures is large, so the key contains only values that show a change.
    const key = JSON.stringify([call.state, call.arguments === null ? call.written : 0, call.content?.length, call.server, call.truncated]);
    if (key === this.#shown) return;
    this.#shown = key;
    const title = (words) => h("div", { class: "label" }, words);
    this.#body.replaceChildren(
      ...(call.server ? [title("Server"), h("p", {}, brief(call.server, 80))] : []),
      title("Arguments"),
      h("pre", { tabindex: "0" }, cut(call.arguments === null ? call.written : print(call.arguments, 2))),
      ...(call.content ? [title(call.isError ? "Error" : "Result"), ...call.content.map(content)] : []),
      ...(call.truncated ? [h("p", { class: "faint" }, "The tool said more than this: the model reads no more of it either.")] : []),
      ...(call.state === "unknown" ? [h("p", { class: "faint" }, "Nobody knows whether this call took effect.")] : []),
    );
  }
}
