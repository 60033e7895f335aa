// The box at the bottom: text, attachments and options of a message.

import * as api from "./api.js";
import { brief, byId, h, icon, newKey, number } from "./dom.js";

/** What the server takes if its settings say nothing else; it has the last word. */
const USUAL_MOST = 100_000;

const PICTURE = /^image\/(png|jpeg|gif|webp)$/;

export class Composer {
  #text = byId("message");
  #files = [];
  #on;
  #isSending = false;
  /** The key of what may have arrived already: sent again, it is one message. */
  #once = null;
  /** Grows with each conversation that is opened: what began in one does not end in another. */
  #visit = 0;
  /** The agent that the conversation keeps, until the user chooses another one; then null. */
  #agent = "";
  /** The model that the conversation keeps; empty if it is the agent's own. */
  #model = "";

  /** `on.send(content, choice, key)` sends, and `on.forgetModel()` has the conversation use its agent's model; both throw what went wrong. */
  constructor(on) {
    this.#on = on;
    byId("send").append(icon("send"));
    byId("attach").append(icon("attach"));
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.#text.addEventListener("input", () => this.#measure());
    this.#text.addEventListener("keydown", (event) => {
      // An Enter that ends a word of an input method is no Enter.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
      event.preventDefault();
      this.#send();
    });
    byId("agent").addEventListener("change", () => (this.#agent = null));
    byId("attach").addEventListener("click", () => byId("file").click());
    byId("file").addEventListener("change", () => this.#attach([...byId("file").files]));
    this.#text.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (files.length === 0) return;
      event.preventDefault();
      this.#attach(files);
    });
    this.#measure();
  }

  focus() {
    this.#text.focus({ preventScroll: true });
  }

  /** Takes back what was chosen for another conversation. */
  reset() {
    this.#visit += 1;
    this.#once = null;
    this.#isSending = false;
    this.say("");
    this.#files = [];
    this.#drawFiles();
    this.#agent = "";
    this.#choose();
    this.#model = "";
    byId("model").value = "";
  }

  /** Shows the agent that answers the next message, unless the user has chosen one. */
  prefer(agent) {
    if (this.#agent === null || this.#agent === agent) return;
    this.#agent = agent;
    this.#choose();
  }

  /** Shows the agent and the model that the conversation keeps, unless the user has chosen others. */
  keep({ agent, model = "" }) {
    if (agent) this.prefer(agent.replace(/@\d+$/, ""));
    if (byId("model").value.trim() === this.#model) byId("model").value = model;
    this.#model = model;
  }

  #choose() {
    const value = this.#agent === "default" ? "" : this.#agent;
    byId("agent").value = [...byId("agent").options].some((option) => option.value === value) ? value : "";
  }

  /** Sends this text; behind a draft, it becomes part of it. */
  put(text) {
    const draft = this.#text.value.trimEnd();
    this.#text.value = draft === "" ? text : `${draft}\n${text}`;
    this.#measure();
    return draft === "" ? this.#send() : this.focus();
  }

  say(words) {
    byId("trouble").textContent = words;
    byId("trouble").hidden = words === "";
  }

  /** Reads the agents on offer. */
  async offer() {
    try {
      const { data } = await api.get("/agents?limit=100");
      const select = byId("agent");
      const chosen = select.value;
      const names = data.map((agent) => agent.name);
      if (!names.includes("default")) names.unshift("default");
      names.sort((one, other) => (other === "default") - (one === "default"));
      const described = new Map(data.map((agent) => [agent.name, agent.description ?? ""]));
      select.replaceChildren(...names.map((name) => h("option", { value: name === "default" ? "" : name, title: brief(described.get(name) ?? "", 200) }, brief(name, 60))));
      if (this.#agent !== null) this.#choose();
      else if (names.includes(chosen)) select.value = chosen;
    } catch {
      // The server's own agent answers.
    }
  }

  /** Offers a model that was seen at work. */
  offerModel(model) {
    const list = byId("models");
    if (model && ![...list.options].some((option) => option.value === model)) list.append(h("option", { value: model }));
  }

  #measure() {
    const { value } = this.#text;
    const length = [...value].length;
    byId("count").textContent = number(length);
    byId("count").classList.toggle("over", length > USUAL_MOST);
    this.#text.style.height = "auto";
    this.#text.style.height = `${Math.min(this.#text.scrollHeight, window.innerHeight * 0.4)}px`;
    this.#button();
  }

  #button() {
    byId("send").disabled = this.#isSending || (this.#text.value.trim() === "" && this.#files.length === 0);
  }

  async #attach(files) {
    byId("file").value = "";
    const visit = this.#visit;
    for (const file of files) {
      const chip = { name: file.name || "file", id: null };
      this.#files.push(chip);
      this.#drawFiles();
      try {
        const stored = await api.upload(file);
        if (visit !== this.#visit) return;
        Object.assign(chip, { id: stored.id, name: stored.name || chip.name, isPicture: PICTURE.test(stored.media_type) });
      } catch (error) {
        if (visit !== this.#visit) return;
        this.#files = this.#files.filter((other) => other !== chip);
        this.say(`${chip.name}: ${api.words(error)}`);
      }
      this.#once = null;
      this.#drawFiles();
    }
  }

  #drawFiles() {
    byId("files").hidden = this.#files.length === 0;
    byId("files").replaceChildren(...this.#files.map((file) => {
      const drop = h("button", { type: "button", class: "quiet icon", "aria-label": `Leave out ${brief(file.name, 60)}` }, icon("close"));
      drop.addEventListener("click", () => {
        this.#files = this.#files.filter((other) => other !== file);
        this.#once = null;
        this.#drawFiles();
      });
      return h("span", { class: "chip" }, file.id ? icon("file") : h("span", { class: "spin" }), brief(file.name, 60), drop);
    }));
    this.#button();
  }

  async #send() {
    const text = this.#text.value.trim();
    if (this.#isSending || (text === "" && this.#files.length === 0)) return;
    if (this.#files.some((file) => file.id === null)) return this.say("A file is still being sent.");
    const [visit, files] = [this.#visit, this.#files];
    const parts = files.map((file) => ({ type: file.isPicture ? "image" : "file", file_id: file.id, name: file.name }));
    const content = parts.length === 0 ? text : [...(text === "" ? [] : [{ type: "text", text }]), ...parts];
    const choice = {};
    // The conversation stores its agent, perhaps with a version, so only a different agent is sent.
    if (this.#agent === null) choice.agent = byId("agent").value || "default";
    const model = byId("model").value.trim();
    if (model) choice.model = model;
    if (!byId("busy-field").hidden) choice.on_busy = byId("busy").value;
    const what = JSON.stringify([content, choice]);
    if (this.#once?.what !== what) this.#once = { what, key: newKey() };
    const once = this.#once;
    const forget = () => (this.#once = this.#once === once ? null : this.#once);
    this.#isSending = true;
    this.#button();
    this.say("");
    try {
      if (model === "" && this.#model !== "") await this.#on.forgetModel();
      await this.#on.send(content, text, choice, once.key);
      forget();
      if (visit === this.#visit) this.#model = model;
      // Text that the user typed meanwhile stays.
      if (this.#text.value.trim() === text) this.#text.value = "";
      this.#files = this.#files.filter((file) => !files.includes(file));
      this.#drawFiles();
    } catch (error) {
      // The server refused the message: the next attempt is another message. Without a response, the message may have arrived.
      if (error instanceof api.Problem && error.status < 500) forget();
      if (error.status !== 401) this.say(`${visit === this.#visit ? "" : "Your message to another conversation: "}${api.words(error)}`);
    }
    if (visit === this.#visit) {
      this.#isSending = false;
      this.focus();
    }
    this.#measure();
  }
}
