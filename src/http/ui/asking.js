// Shows the questions of a run: approvals of calls, and other questions.

import { Problem, isExact, postText, print, words } from "./api.js";
import { brief, button, cut, escaped, h, link, newKey, spelled, webUrl } from "./dom.js";
import { schemaForm } from "./form.js";

const OUTCOMES = {
  __proto__: null,
  allowed: "Allowed",
  denied: "Denied",
  expired: "Nobody answered in time",
  cancelled: "The run ended first",
  answered: "Answered",
  applied: "Answered",
};

const SCOPES = { once: "Allow once", conversation: "Allow in this conversation", always: "Always allow" };
const HELD = { __proto__: null, once: "once", conversation: "in this conversation", always: "always" };

/** For so long a new card is not answered: it may have come under a pointer that was about to do something else. */
const FRESH_MS = 500;

/** A card of something that is asked. It is built once, and once more when it is settled. */
export class AskView {
  node = h("section", { class: "ask", tabindex: "-1" });
  #status = null;
  #trouble = h("p", { class: "trouble", role: "alert", hidden: true });
  /** The key of each answer that may have arrived: sent again, it is the same answer. */
  #keys = new Map();

  constructor() {
    const early = (event) => {
      if (this.node.dataset.fresh === undefined) return;
      event.preventDefault();
      event.stopPropagation();
    };
    for (const kind of ["click", "submit"]) this.node.addEventListener(kind, early, true);
  }

  update({ ask }) {
    if (this.#status === ask.status) return;
    this.#status = ask.status;
    this.node.dataset.status = ask.status;
    this.node.dataset.kind = ask.kind;
    if (ask.status === "pending") {
      this.node.replaceChildren(...(ask.kind === "approval" ? this.#approval(ask) : this.#question(ask)), this.#trouble);
      this.node.dataset.fresh = "";
      setTimeout(() => delete this.node.dataset.fresh, FRESH_MS);
    } else {
      this.node.replaceChildren(settled(ask));
    }
  }

  /** `given` are other arguments, as JSON. They are sent as they are written, for what JavaScript reads of a number may be another one. */
  async #send(path, body, given = null) {
    this.#trouble.hidden = true;
    const sent = JSON.stringify(body);
    const answer = given === null ? sent : `${sent.slice(0, -1)},"arguments":${given}}`;
    if (!this.#keys.has(answer)) this.#keys.set(answer, newKey());
    try {
      await postText(path, answer, this.#keys.get(answer));
      // The stream tells that it is settled; until then it is not answered twice.
      for (const control of this.node.querySelectorAll("button, input, textarea, select")) control.setAttribute("inert", "");
      this.node.dataset.sent = "";
      this.node.focus();
    } catch (error) {
      if (error instanceof Problem) this.#keys.delete(answer);
      this.#say(words(error));
    }
  }

  #say(what) {
    this.#trouble.textContent = what;
    this.#trouble.hidden = false;
    this.#trouble.scrollIntoView({ block: "nearest" });
  }

  #approval({ id, data }) {
    const path = `/approvals/${encodeURIComponent(id)}`;
    const shown = print(data.arguments, 2);
    const editable = escaped(shown);
    const editor = h("textarea", { class: "mono", rows: Math.min(shown.split("\n").length + 1, 14), spellcheck: "false", "aria-label": "Arguments as JSON", hidden: true });
    // The user sees the complete call, because the approval covers all of it.
    const view = h("pre", { class: "arguments", tabindex: "0" }, spelled(shown));
    const reason = h("input", { type: "text", placeholder: "Why not (the model reads it)", "aria-label": "Reason for denying", maxlength: "1000" });
    const edit = h("button", { type: "button", class: "quiet small" }, "Edit arguments");
    edit.addEventListener("click", () => {
      editor.hidden = !editor.hidden;
      view.hidden = !editor.hidden;
      edit.textContent = editor.hidden ? "Edit arguments" : "Leave them as they are";
      editor.value = editable;
      if (!editor.hidden) editor.focus();
    });
    const allow = (scope) => {
      const body = { decision: "allow", scope, arguments_hash: data.arguments_hash };
      if (editor.hidden || editor.value === editable) return this.#send(path, body);
      try {
        JSON.parse(editor.value);
      } catch (error) {
        return this.#say(`These arguments are no JSON: ${error.message}`);
      }
      return this.#send(path, body, editor.value.trim());
    };
    const deny = () => this.#send(path, { decision: "deny", ...(reason.value.trim() ? { reason: reason.value.trim() } : {}) });
    const scopes = data.scopes.filter((scope) => Object.hasOwn(SCOPES, scope));
    return [
      h("h3", {}, "May this call be made?"),
      data.destructive ? h("p", { class: "warning" }, "Its server says that it destroys something, so it can be allowed once only.") : null,
      h("p", { class: "what" }, h("code", {}, brief(spelled(data.name), 120)), data.server ? h("span", { class: "faint" }, ` of ${brief(spelled(data.server), 80)}`) : null),
      isTelling(data) ? h("p", { class: "preview" }, brief(spelled(data.preview), 500)) : null,
      data.rationale ? h("p", { class: "rationale" }, h("span", { class: "faint" }, "The model says: "), brief(spelled(data.rationale), 1000)) : null,
      h("div", { class: "label" }, "Arguments"),
      view,
      editor,
      isExact(data.arguments) ? null : h("p", { class: "warning" }, "This browser rounds large numbers: those above may not be those of the call, and cannot be edited here."),
      data.description ? h("details", { class: "plain" }, h("summary", {}, "What this tool does, in its own words"), h("p", {}, cut(spelled(data.description), 2000))) : null,
      h("div", { class: "buttons" }, scopes.map((scope) => button(SCOPES[scope], () => allow(scope), scope === "once" ? "primary allow" : `allow-${scope}`)), isExact(data.arguments) ? edit : null),
      h("div", { class: "buttons deny" }, reason, button("Deny", deny, "danger deny")),
    ].filter(Boolean);
  }

  #question({ id, data }) {
    const path = `/input-requests/${encodeURIComponent(id)}`;
    const { question, kind } = data;
    const { elicitation } = question;
    const schema = question.form ?? elicitation?.requested_schema;
    const form = schema ? schemaForm(schema, id) : null;
    const url = elicitation?.url ?? null;
    const text = h("input", { type: "text", class: "answer", "aria-label": "Your answer", placeholder: question.choices.length > 0 ? "Or in your own words" : "Your answer", maxlength: "10000" });
    // An answer about a call may have an additional text. A model's question may be answered with text alone.
    const hasText = kind !== "elicitation" && !form;
    const said = () => (hasText && text.value.trim() ? { text: text.value.trim() } : {});
    const choose = (value) => {
      const isForm = form !== null && value === "accept";
      try {
        return this.#send(path, { choice: value, ...said(), ...(isForm ? { content: form.read() } : {}) });
      } catch (error) {
        return this.#say(error.message);
      }
    };
    const choices = form && question.choices.length === 0 ? [{ value: "accept", label: "Send" }, { value: "decline", label: "Say nothing" }] : question.choices;
    const pick = ({ value, label }) => {
      const name = brief(spelled(label || value), 200);
      return form && value === "accept" ? h("button", { type: "submit", class: "primary" }, "Send") : button(name, () => choose(value), "choice");
    };
    const answerInWords = hasText && kind === "question";
    const body = h("form", {}, form?.nodes ?? [], h("div", { class: "buttons" }, choices.map(pick)),
      hasText ? h("div", { class: "buttons" }, text, answerInWords ? h("button", { type: "submit", class: "primary" }, "Answer") : null) : null);
    body.addEventListener("submit", (event) => {
      event.preventDefault();
      if (form) return choose("accept");
      if (answerInWords && text.value.trim()) return this.#send(path, { text: text.value.trim() });
      return null;
    });
    const page = url === null ? null : webUrl(url);
    return [
      h("h3", {}, elicitation ? `The server ${brief(spelled(elicitation.server), 80)} asks` : kind === "unknown_outcome" ? "Did this call take effect?" : "A question for you"),
      h("p", { class: "words" }, cut(spelled(question.text), 4000)),
      url === null ? null : h("p", {}, page === null ? h("code", {}, brief(spelled(url), 2000)) : link(page, spelled(url))),
      question.tool && !elicitation ? h("p", { class: "what" }, h("code", {}, brief(spelled(question.tool), 120))) : null,
      question.arguments ? h("pre", { class: "arguments", tabindex: "0" }, spelled(print(question.arguments, 2))) : null,
      question.arguments && !isExact(question.arguments) ? h("p", { class: "warning" }, "This browser rounds large numbers: those above may not be those of the call.") : null,
      body,
    ].filter(Boolean);
  }
}

/** Whether a preview says more than the arguments below it do. */
const isTelling = ({ preview, arguments: shown }) => Boolean(preview) && !print(shown).startsWith(preview.replace(/(…|\.\.\.)$/, ""));

/** One line in the place of a card that is settled. */
function settled({ kind, status, data, answer }) {
  const name = kind === "approval" ? data.name : data.question.text;
  const held = kind === "approval" && answer?.scope && status === "allowed" ? ` ${HELD[answer.scope] ?? ""}` : "";
  const edited = answer?.edited_arguments ? ", with other arguments" : "";
  const choice = kind === "approval" ? "" : [data.question.choices.find((one) => one.value === answer?.choice)?.label || answer?.choice, answer?.text].filter(Boolean).join(" — ");
  const why = [answer?.reason, choice].filter(Boolean).map((text) => brief(spelled(text), 300)).join(" ");
  return h("p", {}, h("strong", {}, `${OUTCOMES[status] ?? status}${held}${edited}`), ": ", h("span", {}, brief(spelled(name), 160)), why ? h("span", { class: "faint" }, ` — ${why}`) : null);
}
