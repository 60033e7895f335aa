// Shows a conversation. It draws again only the parts that have changed.

import { AskView } from "./asking.js";
import { CallView } from "./calls.js";
import { brief, button, copyButton, h, icon, number } from "./dom.js";
import { fileChip, picture } from "./files.js";
import { Markdown } from "./markdown.js";
import { isOver, round } from "./state.js";

/** What a user has said, or a model. */
class MessageView {
  #views = new Map();
  #body = h("div", { class: "parts" });
  #foot = h("div", { class: "after" });
  node = h("article", {}, this.#body, this.#foot);

  update(item, state) {
    this.node.className = `message ${item.role === "user" ? "user" : "assistant"}`;
    this.node.setAttribute("aria-label", item.role === "user" ? "You" : "Answer");
    this.node.classList.toggle("streaming", item.streaming === true);
    const nodes = item.parts.map((part) => this.#part(part, item, state)).filter((node) => node !== null);
    place(this.#body, nodes);
    const isText = item.role === "assistant" && !item.streaming && item.parts.some((part) => part.type === "text" && part.text !== "");
    const remark = item.partial ? "stopped here" : item.finish === "length" ? "cut: the model ran into its limit" : item.finish === "refused" ? "the model refused" : "";
    const key = `${isText} ${remark}`;
    if (this.#foot.dataset.key !== key) {
      this.#foot.dataset.key = key;
      const text = () => item.parts.filter((part) => part.type === "text").map((part) => part.text).join("\n\n");
      this.#foot.replaceChildren(...(isText ? [copyButton(text)] : []), ...(remark ? [h("span", { class: "faint" }, remark)] : []));
    }
  }

  #view(id, make) {
    if (!this.#views.has(id)) this.#views.set(id, make());
    return this.#views.get(id);
  }

  #part(part, item, state) {
    switch (part.type) {
      case "text": {
        if (part.text === "") return null;
        if (item.role === "user") {
          const view = this.#view(part.id, () => ({ node: h("div", { class: "said" }) }));
          if (view.node.textContent !== part.text) view.node.textContent = part.text;
          return view.node;
        }
        const view = this.#view(part.id, () => new Markdown());
        view.update(part.text);
        return view.node;
      }
      case "reasoning": {
        if (part.text === "") return null;
        const view = this.#view(part.id, () => {
          const text = h("div", { class: "thought" });
          return { text, node: h("details", { class: "thinking" }, h("summary", {}, "Thinking"), text) };
        });
        if (view.text.textContent !== part.text) view.text.textContent = part.text;
        return view.node;
      }
      case "tool_call": {
        const call = state.calls.get(part.call_id);
        if (call === undefined) return null;
        const view = this.#view(part.id, () => new CallView());
        view.update(call);
        return view.node;
      }
      case "image":
        return this.#view(part.id, () => ({ node: part.file_id ? h("p", {}, picture(part)) : fileChip(part) })).node;
      case "file":
        return this.#view(part.id, () => ({ node: fileChip(part) })).node;
      default:
        return null;
    }
  }
}

class PlanView {
  node = h("ol", { class: "plan", "aria-label": "Plan" });

  update(item) {
    const marks = { done: "done", failed: "failed", skipped: "close" };
    this.node.replaceChildren(...item.steps.map((step) =>
      h("li", { "data-state": step.state },
        h("span", { class: "mark" }, step.state === "running" ? h("span", { class: "spin" }) : marks[step.state] ? icon(marks[step.state]) : null),
        h("span", {}, brief(step.description, 500)),
        h("span", { class: "unseen" }, ` (${step.state})`))));
  }
}

class NoteView {
  node = h("p", { class: "note" });

  update(item) {
    this.node.textContent = item.words;
  }
}

const VIEWS = { message: MessageView, ask: AskView, plan: PlanView, note: NoteView };

const REASONS = { max_rounds: "the steps were used up", budget: "the budget was used up", length: "the answer was too long", refused: "the model refused" };

/** How a run ended: an error, or what it has used. */
function endOf(run, isNewest, act) {
  const { status, error, usage, finish, notice, by } = run.end;
  const parts = [];
  if (error) {
    const code = /^[a-z_]{1,60}$/.test(error.code) ? h("a", { href: `docs/errors/${error.code}`, target: "_blank", rel: "noopener" }, error.code) : brief(error.code);
    parts.push(h("p", { class: "error" }, h("strong", {}, brief(error.title || "It failed", 200)), " ", code, error.detail ? h("span", { class: "detail" }, brief(error.detail, 1000)) : null));
  }
  if (status === "cancelled") parts.push(h("span", {}, by === "interrupt" ? "Stopped for the next message." : "Stopped."));
  if (REASONS[finish]) parts.push(h("span", {}, `Ended early: ${REASONS[finish]}.`));
  if (notice === "nothing_written") parts.push(h("p", { class: "warning" }, "The answer speaks of a change, but no call that changes anything has succeeded."));
  if (usage) {
    const cost = usage.cost?.usd ?? usage.cost;
    const figures = [
      run.model ? brief(run.model, 80) : null,
      `${number(usage.model_calls)} model ${usage.model_calls === 1 ? "call" : "calls"}`,
      `${usage.estimated ? "about " : ""}${number(usage.input_tokens)} tokens in, ${number(usage.output_tokens)} out`,
      Number.isFinite(Number(cost)) && cost !== undefined && cost !== null ? `$${Number(cost).toPrecision(2)}` : null,
    ].filter(Boolean);
    parts.push(h("span", { class: "usage" }, figures.join(" · ")));
  }
  if (isNewest) {
    if (status === "failed") parts.push(button("Resume", () => act("resume", run.id), "small resume"));
    parts.push(button(status === "completed" ? "Answer again" : "Try again", () => act("retry", run.id), `small retry ${status === "completed" ? "quiet" : ""}`));
  }
  return parts;
}

class RunView {
  #items = new Map();
  #foot = h("footer", { class: "end" });
  node = h("section", { class: "run" });
  #key = "";

  /** `next` is the run after it, if there is one. */
  update(run, state, next, act) {
    const views = run.items.map((item) => {
      let known = this.#items.get(item.key);
      if (known === undefined) {
        known = { view: new VIEWS[item.kind](), rev: -1 };
        this.#items.set(item.key, known);
      }
      if (known.rev !== item.rev || known.item !== item) {
        known.view.update(item, state);
        Object.assign(known, { rev: item.rev, item });
      }
      return known.view.node;
    });
    if (this.#items.size > run.items.length) {
      const keys = new Set(run.items.map((item) => item.key));
      for (const key of this.#items.keys()) if (!keys.has(key)) this.#items.delete(key);
    }
    const isNewest = next === null;
    // A later run that replaces this run, or continues it, shows the end instead.
    const isEnd = run.end !== null && (isNewest || (run.items.length > 0 && next.items[0]?.role === "user"));
    const key = JSON.stringify([run.end, run.model, run.status, isNewest, isEnd]);
    if (key !== this.#key) {
      this.#key = key;
      const foot = isEnd ? endOf(run, isNewest && isOver(run), act) : run.status === "queued" ? [h("span", {}, "Waits for its turn.")] : [];
      this.#foot.replaceChildren(...foot);
      this.#foot.hidden = foot.length === 0;
      this.node.dataset.status = run.status;
    }
    place(this.node, [...views, this.#foot]);
  }
}

/** Puts nodes in their places, and moves none that stands there already. */
function place(parent, nodes) {
  let at = parent.firstChild;
  for (const node of nodes) {
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  while (at !== null) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

export class Transcript {
  #node;
  #act;
  #epoch = -1;
  #runs = new Map();
  #earlier = h("p", { class: "note" }, "There are earlier messages than these. ");
  #showEarlier;
  #sent = h("div", { class: "sent" });

  /** `act(what, run)` resumes or retries a run, `earlier()` shows a page of earlier messages. */
  constructor(node, act, earlier) {
    this.#node = node;
    this.#act = act;
    this.#showEarlier = button("Show earlier messages", earlier, "small earlier");
    this.#earlier.append(this.#showEarlier);
  }

  clear() {
    this.#epoch = -1;
    this.#runs.clear();
    this.#node.replaceChildren();
  }

  update(state) {
    if (this.#epoch !== state.epoch) {
      this.clear();
      this.#epoch = state.epoch;
    }
    const runs = [...state.runs.values()];
    const shown = runs.map((run, at) => {
      if (!this.#runs.has(run.id)) this.#runs.set(run.id, new RunView());
      const view = this.#runs.get(run.id);
      view.update(run, state, runs[at + 1] ?? null, this.#act);
      return view.node;
    });
    for (const id of this.#runs.keys()) if (!state.runs.has(id)) this.#runs.delete(id);
    const waiting = [...state.sent.values()];
    const key = waiting.join("\u0000");
    if (this.#sent.dataset.key !== key) {
      this.#sent.dataset.key = key;
      this.#sent.replaceChildren(...waiting.map((text) => h("article", { class: "message user pending" }, h("div", { class: "parts" }, h("div", { class: "said" }, text)))));
    }
    this.#showEarlier.hidden = state.before === null;
    place(this.#node, [...(state.truncated ? [this.#earlier] : []), ...shown, ...(waiting.length > 0 ? [this.#sent] : [])]);
  }
}

/** What a run does at the moment, of whose steps there are at most `max`, or nobody knows. */
export function doing(run, state, max) {
  const at = round(run);
  const step = at === 0 ? "" : max === null ? `Step ${at}` : `Step ${Math.min(at, max)} of ${max}`;
  const words = () => {
    if (run.status === "queued") return run.position > 0 ? `waits behind ${run.position} other${run.position > 1 ? "s" : ""}` : "waits for a worker";
    if (run.status === "waiting") {
      const reasons = { approval: "waits for your decision", input: "waits for your answer", backoff: "waits, and tries again", budget: "waits for a budget" };
      return (Object.hasOwn(reasons, run.reason) ? reasons[run.reason] : "waits") + (run.detail ? `: ${brief(run.detail, 160)}` : "");
    }
    if (run.retry) {
      const cause = brief(run.retry.error?.title ?? "the model failed", 100);
      return run.retry.model ? `${cause}; now ${brief(run.retry.model, 80)} is asked` : `${cause}; tries again in ${Math.ceil(run.retry.after_ms / 1000)} s`;
    }
    const calls = [...state.calls.values()].filter((call) => call.state === "started" && call.item?.run === run.id);
    if (calls.length > 0) return calls.length > 2 ? `${calls.length} tools at work` : `calls ${calls.map((call) => brief(call.name, 40)).join(" and ")}`;
    return run.items.some((item) => item.streaming) ? "writes" : "thinks";
  };
  return [step, words()].filter(Boolean).join(" · ");
}
