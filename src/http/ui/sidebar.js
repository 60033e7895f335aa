// The list of conversations.

import * as api from "./api.js";
import { ago, brief, byId, h, icon } from "./dom.js";

const STATES = { __proto__: null, queued: "queued", processing: "at work", tool_loop: "at work", waiting: "waits", failed: "failed" };
const REASONS = { __proto__: null, approval: "waits for you", input: "waits for you", backoff: "waits to try again", budget: "waits for a budget" };

/** Asks whether something is to be done. */
export function confirm(question, yes) {
  const dialog = byId("confirm");
  byId("confirm-words").textContent = question;
  byId("confirm-yes").textContent = yes;
  return new Promise((resolve) => {
    const answer = (is) => () => {
      dialog.close();
      resolve(is);
    };
    byId("confirm-yes").onclick = answer(true);
    byId("confirm-no").onclick = answer(false);
    dialog.oncancel = () => resolve(false);
    dialog.showModal();
    byId("confirm-no").focus();
  });
}

export class Sidebar {
  #node = byId("conversations");
  #search = byId("search");
  #rows = [];
  #next = null;
  #open = null;
  #asked = 0;
  #renaming = null;
  #on;
  #trouble = "";
  #pages = 1;

  /** `on` has `open(id)`, `title(id, title)` and `deleted(id)`. */
  constructor(on) {
    this.#on = on;
    let timer = null;
    this.#search.addEventListener("input", () => {
      clearTimeout(timer);
      this.#pages = 1;
      timer = setTimeout(() => this.refresh(), 250);
    });
  }

  /** Reads as many pages as are shown. */
  async refresh() {
    const number = ++this.#asked;
    try {
      const rows = [];
      let cursor = null;
      for (let page = 0; page < this.#pages; page += 1) {
        const answer = await this.#page(cursor);
        rows.push(...answer.data);
        cursor = answer.next_cursor;
        if (cursor === null) break;
      }
      if (number !== this.#asked) return;
      [this.#rows, this.#next, this.#trouble] = [rows, cursor, ""];
    } catch (error) {
      if (number !== this.#asked) return;
      this.#trouble = error.status === 401 ? "" : api.words(error);
    }
    this.draw();
  }

  #page(cursor) {
    const query = new URLSearchParams({ limit: "40" });
    if (this.#search.value.trim()) query.set("q", this.#search.value.trim());
    if (cursor !== null) query.set("cursor", cursor);
    return api.get(`/conversations?${query}`);
  }

  select(id) {
    this.#open = id;
    this.draw();
  }

  /** What the stream of a conversation says of it, before the list is read again. */
  told(id, change) {
    const row = this.#rows.find((row) => row.id === id);
    if (row === undefined) return this.refresh();
    Object.assign(row, change);
    return this.draw();
  }

  draw() {
    // A title that is being written is not taken away.
    if (this.#renaming !== null) return;
    const focused = document.activeElement?.dataset?.key;
    const rows = this.#rows.map((row) => this.#row(row));
    if (rows.length === 0) rows.push(h("p", { class: "faint empty" }, this.#trouble || (this.#search.value ? "Nothing is called that." : "No conversations yet.")));
    else if (this.#trouble) rows.unshift(h("p", { class: "faint empty" }, this.#trouble));
    if (this.#next !== null) {
      const more = h("button", { type: "button", class: "quiet small more", "data-key": "more" }, "More");
      more.addEventListener("click", () => {
        this.#pages += 1;
        this.refresh();
      });
      rows.push(more);
    }
    this.#node.replaceChildren(...rows);
    if (focused) [...this.#node.querySelectorAll("[data-key]")].find((node) => node.dataset.key === focused)?.focus();
  }

  #row(row) {
    const title = brief(row.title || "Untitled", 200);
    const state = (row.status === "waiting" && REASONS[row.reason]) || STATES[row.status];
    const isOpen = row.id === this.#open;
    const name = h("a", { href: `#/${row.id}`, class: "name", "aria-current": isOpen ? "page" : undefined, "data-key": row.id, title },
      h("span", { class: "words" }, title),
      h("span", { class: "when" }, state ? h("span", { class: `dot ${row.status}`, title: state }, h("span", { class: "unseen" }, state)) : null, ago(row.updated_at)));
    name.addEventListener("click", () => this.#on.open(row.id));
    const act = (kind, label, does) => {
      const control = h("button", { type: "button", class: "quiet icon", "aria-label": `${label} ${title}`, "data-key": `${kind} ${row.id}` }, icon(kind));
      control.addEventListener("click", does);
      return control;
    };
    const node = h("div", { class: `conversation ${isOpen ? "open" : ""}` }, name,
      act("rename", "Rename", () => this.#rename(row, node)),
      act("remove", "Delete", () => this.#remove(row, title)));
    return node;
  }

  #rename(row, node) {
    const field = h("input", { type: "text", maxlength: "255", "aria-label": "Title" });
    field.value = row.title;
    this.#renaming = row.id;
    let isDone = false;
    const end = async (keep) => {
      if (isDone) return;
      isDone = true;
      const title = field.value.trim();
      this.#renaming = null;
      if (keep && title && title !== row.title) {
        try {
          const changed = await api.patch(`/conversations/${row.id}`, { title });
          Object.assign(this.#rows.find((known) => known.id === row.id) ?? row, { title: changed.title });
          this.#on.title(row.id, changed.title);
        } catch (error) {
          this.#trouble = api.words(error);
        }
      }
      this.draw();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      end(event.key === "Enter");
    });
    field.addEventListener("blur", () => end(true));
    node.replaceChildren(field);
    field.focus();
    field.select();
  }

  async #remove(row, title) {
    // The list may have been read again meanwhile.
    const drop = () => (this.#rows = this.#rows.filter((other) => other.id !== row.id));
    if (!(await confirm(`Delete “${title}”, with all that was said in it?`, "Delete"))) return;
    try {
      await api.remove(`/conversations/${row.id}`);
      drop();
      this.#on.deleted(row.id);
    } catch (error) {
      if (error.status === 404) drop();
      this.#trouble = api.words(error);
    }
    this.draw();
  }
}
