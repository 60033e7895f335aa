// Builds nodes. External content only ever becomes text: nothing on this page parses markup.

/** An element. Names of attributes are those of this page's own code; a value of `true` is an empty attribute. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name === "class" ? "class" : name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** The URL if it may be a link: http and https, nothing else. */
export function webUrl(text) {
  try {
    const url = new URL(text);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}

/** A link to another site. `url` comes from [webUrl]. */
export function link(url, ...children) {
  return h("a", { href: url, target: "_blank", rel: "noopener noreferrer", referrerpolicy: "no-referrer" }, ...children);
}

const PATHS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  attach: "M20 11.5l-8 8a5 5 0 0 1-7-7l8.5-8.5a3.3 3.3 0 0 1 4.7 4.7L9.8 17a1.7 1.7 0 0 1-2.4-2.4l7.4-7.4",
  send: "M12 19V5M5.5 11.5L12 5l6.5 6.5",
  rename: "M4 20h4L19.5 8.5a2 2 0 0 0 0-2.8l-1.2-1.2a2 2 0 0 0-2.8 0L4 16zM13.5 6.5l4 4",
  remove: "M5 7h14M10 7V4.5h4V7M7 7l.8 12.5h8.4L17 7M10.2 10.5v6M13.8 10.5v6",
  close: "M6 6l12 12M18 6L6 18",
  done: "M5 12.5l4.5 4.5L19 7.5",
  failed: "M6.5 6.5l11 11M17.5 6.5l-11 11",
  unknown: "M9 9.2a3 3 0 1 1 4.2 2.8c-.8.4-1.2.9-1.2 1.9M12 17.4v.1",
  ask: "M12 6v7M12 17.2v.1",
  file: "M7 3.5h7l4 4v13H7zM14 3.5v4h4",
};

/** A picture of this page's own, which screen readers pass over. */
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of [["viewBox", "0 0 24 24"], ["aria-hidden", "true"], ["class", `i i-${name}`]]) svg.setAttribute(key, value);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", PATHS[name] ?? "");
  svg.append(path);
  return svg;
}

/** A button with words, which is off while what it does is under way. */
export function button(words, act, kind = "") {
  const element = h("button", { type: "button", class: kind }, words);
  element.addEventListener("click", async () => {
    element.disabled = true;
    try {
      await act();
    } finally {
      element.disabled = false;
    }
  });
  return element;
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages that come over plain http have no clipboard.
    const area = h("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

export function copyButton(text) {
  const element = button("Copy", async () => {
    await copy(text());
    element.textContent = "Copied";
    setTimeout(() => (element.textContent = "Copy"), 1500);
  }, "quiet small");
  return element;
}

/** How long ago, in few letters. */
export function ago(iso, now = Date.now()) {
  const seconds = Math.max(0, (now - Date.parse(iso)) / 1000);
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  if (seconds < 7 * 86400) return `${Math.floor(seconds / 86400)} d`;
  return new Date(iso).toLocaleDateString(undefined, { day: "numeric", month: "short", year: "numeric" });
}

export const number = (value) => (Number.isFinite(value) ? value.toLocaleString("en") : "?");

export function duration(ms) {
  return ms < 1000 ? `${ms} ms` : `${(ms / 1000).toFixed(ms < 10000 ? 1 : 0)} s`;
}

/** A text that is shown, cut so that no answer of a tool makes the page slow. */
export function cut(text, most = 20000) {
  return text.length > most ? `${text.slice(0, most)}\n[${number(text.length - most)} characters more]` : text;
}

/** Characters that nobody sees, or that change the order of those that are seen. All that the server holds for such are among them. */
const UNSEEN = /[\p{Default_Ignorable_Code_Point}\p{Bidi_Control}\p{Cc}\u180b-\u180f\u2028\u2029\u2800\ufe00-\ufe0f\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;

/** Of what somebody decides about, such characters are spelled out. Lines and tabs stay. */
export function spelled(text) {
  return String(text).replace(UNSEEN, (letter) => (letter === "\n" || letter === "\t" ? letter : `<U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`));
}

/** JSON whose texts have such characters as escapes, which say the same. */
export function escaped(json) {
  const escape = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return json.replace(UNSEEN, (letter) => (letter === "\n" ? letter : letter.split("").map(escape).join("")));
}

/** On one line, without those characters. */
export function brief(text, most = 120) {
  const line = String(text).replace(UNSEEN, " ").replace(/ +/g, " ").trim();
  return line.length > most ? `${line.slice(0, most)}…` : line;
}

/** An id for a request, so that sending it twice does it once. Pages over plain http have no `randomUUID`. */
export function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
