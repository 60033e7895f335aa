// Texts of others, made fit for a page: on one line, cut, and with invisible characters spelled out.

/** Characters that are invisible, or that change the order of visible ones. All that the server holds for such are among them. */
const UNSEEN = /[\p{Default_Ignorable_Code_Point}\p{Bidi_Control}\p{Cc}\u180b-\u180f\u2028\u2029\u2800\ufe00-\ufe0f\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;

/** Spells invisible characters out, in texts that a person decides about. Lines and tabs stay. */
export function spelled(text: string): string {
  return text.replace(UNSEEN, (letter) =>
    letter === "\n" || letter === "\t" ? letter : `<U+${(letter.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}>`,
  );
}

/** Returns JSON whose texts have such characters as escapes, which mean the same. */
export function escaped(json: string): string {
  const escape = (unit: string) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return json.replace(UNSEEN, (letter) => (letter === "\n" ? letter : letter.split("").map(escape).join("")));
}

/** Returns the text on one line, without those characters. */
export function brief(text: string, most = 120): string {
  const line = text.replace(UNSEEN, " ").replace(/ +/g, " ").trim();
  return line.length > most ? `${line.slice(0, most)}…` : line;
}

/** Cuts a shown text, so that no answer of a tool makes the page slow. */
export function cut(text: string, most = 20_000): string {
  return text.length > most ? `${text.slice(0, most)}\n[${number(text.length - most)} characters more]` : text;
}

/** Returns an amount of money; small amounts with two digits that count. */
export function money(cost: { amount: string; currency: string }): string {
  const amount = Number(cost.amount);
  if (!Number.isFinite(amount)) return "?";
  return `${cost.currency === "USD" ? "$" : `${cost.currency} `}${amount !== 0 && Math.abs(amount) < 1 ? amount.toPrecision(2) : amount.toFixed(2)}`;
}

export const number = (value: number | undefined): string => (value !== undefined && Number.isFinite(value) ? value.toLocaleString("en") : "?");

/** Returns a count of tokens in few letters: 950, 12.4k. */
export function tokens(value: number): string {
  return value < 1000 ? String(value) : `${(value / 1000).toFixed(value < 100_000 ? 1 : 0)}k`;
}

export function duration(ms: number): string {
  if (ms < 1000) return `${ms} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

/** Returns a length of time in its largest fitting unit, for times of which the rest does not matter. */
export function span(ms: number): string {
  const minutes = ms / 60_000;
  if (minutes < 1) return `${Math.round(ms / 1000)} s`;
  if (minutes < 60) return `${Math.round(minutes)} min`;
  const hours = Math.round(minutes / 60);
  return hours < 48 ? `${hours} h` : `${Math.round(hours / 24)} days`;
}

/** Returns how long ago a time is, in few letters. */
export function ago(iso: string, now = Date.now()): string {
  const seconds = Math.max(0, (now - Date.parse(iso)) / 1000);
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  if (seconds < 7 * 86400) return `${Math.floor(seconds / 86400)} d`;
  return date(iso);
}

/** Returns how long ago a time is, in the room of a row: minutes, hours, days, then the date, with the year of other years. */
export function since(iso: string, now = new Date()): string {
  const at = new Date(iso);
  const seconds = Math.max(0, (now.getTime() - at.getTime()) / 1000);
  if (seconds < 7 * 86_400 || Number.isNaN(seconds)) return ago(iso, now.getTime()).replace(" min", "m").replace(/ ([hd])$/, "$1");
  const isSameYear = at.getFullYear() === now.getFullYear();
  return at.toLocaleDateString(undefined, isSameYear ? { day: "numeric", month: "short" } : { month: "short", year: "numeric" });
}

export const date = (iso: string): string => new Date(iso).toLocaleDateString(undefined, { day: "numeric", month: "short", year: "numeric" });

/** Returns the time of a message: the hour today, else the date with the hour. */
export function clock(iso: string, now = new Date()): string {
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return "";
  const hour = at.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  if (at.toDateString() === now.toDateString()) return hour;
  return `${at.toLocaleDateString(undefined, { day: "numeric", month: "short" })}, ${hour}`;
}

/** Returns the time of a message for one who reads it now: minutes of the last hour, the time of today and yesterday, else the date too. */
export function relative(iso: string, now = new Date()): string {
  const at = new Date(iso);
  const minutes = Math.floor((now.getTime() - at.getTime()) / 60_000);
  if (Number.isNaN(minutes)) return "";
  // The clock of the server may be a little ahead.
  if (minutes < 1) return minutes < -1 ? clock(iso, now) : "just now";
  if (minutes < 60) return `${minutes} ${minutes === 1 ? "minute" : "minutes"} ago`;
  const yesterday = new Date(now.getFullYear(), now.getMonth(), now.getDate() - 1);
  if (at.toDateString() === yesterday.toDateString()) return `yesterday, ${clock(iso, at)}`;
  return at.getFullYear() === now.getFullYear() ? clock(iso, now) : `${date(iso)}, ${clock(iso, at)}`;
}

/** Returns the group of the list of conversations that a time belongs to. */
export function dayGroup(iso: string, now = new Date()): string {
  const midnight = (at: Date) => new Date(at.getFullYear(), at.getMonth(), at.getDate()).getTime();
  const days = Math.round((midnight(now) - midnight(new Date(iso))) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days < 7) return "Previous 7 days";
  if (days < 30) return "Previous 30 days";
  return "Older";
}

/** Copies a text. Pages over plain HTTP have no clipboard. */
export async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const focused = document.activeElement;
    const area = document.createElement("textarea");
    area.className = "unseen";
    area.value = text;
    // Nothing outside of an open dialog can be selected.
    (focused?.closest("dialog") ?? document.body).append(area);
    area.select();
    // The only way without a clipboard.
    // eslint-disable-next-line @typescript-eslint/no-deprecated
    document.execCommand("copy");
    area.remove();
    if (focused instanceof HTMLElement) focused.focus();
  }
}
