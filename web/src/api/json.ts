// JSON whose numbers keep the digits of the server.

/** A reader of JSON that gets the written form of each value; newer than the types of TypeScript. */
type Reviver = (this: object, name: string, value: unknown, context?: { source?: string }) => unknown;

const parseWith = JSON.parse as (text: string, reviver: Reviver) => unknown;
const rawJSON = (JSON as { rawJSON?: (text: string) => unknown }).rawJSON;

/** Whether a number of the server can be shown and sent back as it was written. */
const KEEPS_NUMBERS =
  typeof rawJSON === "function" &&
  (() => {
    let written: string | undefined;
    parseWith("1.0", (_, value, context) => ((written = context?.source), value));
    return written === "1.0";
  })();

/** The written form of those numbers of objects and arrays that JavaScript would write in another way. */
const WRITTEN = new WeakMap<object, Map<string, string>>();

/** Parses JSON. Its numbers are those of JavaScript; {@link print} gives them back as they were written. */
export function parse(text: string): unknown {
  if (!KEEPS_NUMBERS) return JSON.parse(text);
  return parseWith(text, function (name, value, context) {
    const source = context?.source;
    if (typeof value === "number" && source !== undefined && String(value) !== source) {
      let names = WRITTEN.get(this);
      if (names === undefined) WRITTEN.set(this, (names = new Map<string, string>()));
      names.set(name, source);
    }
    return value;
  });
}

/** Returns the JSON of a value from {@link parse}, or of a part of it. */
export function print(value: unknown, space?: number): string {
  const written = function (this: object, name: string, part: unknown): unknown {
    const source = typeof part === "number" ? WRITTEN.get(this)?.get(name) : undefined;
    return source === undefined || rawJSON === undefined ? part : rawJSON(source);
  };
  const text = JSON.stringify(value, written, space) as string | undefined;
  return text ?? "";
}

/** Returns one member of an object or array from {@link parse} as a text. */
export function spelling(holder: object, name: string | number): string {
  return WRITTEN.get(holder)?.get(String(name)) ?? String((holder as Record<string, unknown>)[name]);
}

/** Returns one member as a value that `JSON.stringify` writes as the server has. */
export function exact(holder: object, name: string | number): unknown {
  const source = WRITTEN.get(holder)?.get(String(name));
  return source === undefined || rawJSON === undefined ? exactCopy((holder as Record<string, unknown>)[name]) : rawJSON(source);
}

/** Returns a copy of a value from {@link parse} that `JSON.stringify` writes as the server has. */
export function exactCopy(value: unknown): unknown {
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map((_, at) => exact(value, at));
  return Object.fromEntries(Object.keys(value).map((name) => [name, exact(value, name)]));
}

/** Returns a typed number as a value that is sent as it was typed; `undefined` if this browser would round it. */
export function typedNumber(text: string): unknown {
  const number = Number(text);
  if (String(number) === text) return number;
  if (KEEPS_NUMBERS && /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(text)) return rawJSON(text);
  return text.replace(/\D/g, "").length > 15 ? undefined : number;
}

/** Returns whether {@link print} writes every number of a value as the server has. */
export function isExact(value: unknown): boolean {
  if (KEEPS_NUMBERS) return true;
  if (typeof value === "number") return Number.isSafeInteger(value);
  return value === null || typeof value !== "object" || Object.values(value).every(isExact);
}
