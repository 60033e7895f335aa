// A form of a JSON Schema: a flat object with plain values, as models and MCP servers ask for.

import { exact, spelling, typedNumber } from "./api.js";
import { brief, h, spelled } from "./dom.js";

const TYPES = { __proto__: null, date: "date", email: "email", uri: "url", "date-time": "datetime-local" };

const words = (text, most = 120) => brief(spelled(text), most);

/** The values to choose from: each as it is sent, with its label and its spelling in the schema. None if the schema names none. */
function choices(schema) {
  const titled = schema?.oneOf ?? schema?.anyOf;
  const isPlain = (value) => ["string", "number", "boolean"].includes(typeof value);
  const choice = (holder, name, title) => {
    const spelt = spelling(holder, name);
    return { value: exact(holder, name), label: String(title ?? spelt), spelt };
  };
  if (Array.isArray(titled)) return titled.filter((one) => isPlain(one?.const)).map((one) => choice(one, "const", one.title));
  if (!Array.isArray(schema?.enum)) return [];
  return schema.enum.flatMap((value, at) => (isPlain(value) ? [choice(schema.enum, at, schema.enumNames?.[at])] : []));
}

/** A number that was typed, to be sent as it was typed. Throws if this browser would round it. */
function numeric(text) {
  const number = typedNumber(text);
  if (number === undefined) throw new RangeError(`This browser would round ${text}: answer with a shorter number, or with another browser`);
  return number;
}

/** One field: its nodes, and what reads its value; `undefined` if it is left out. */
function field(name, schema, required, id) {
  const label = words(schema.title ?? name) + (required ? "" : " (optional)");
  const help = schema.description ? h("small", { id: `${id}-help` }, words(schema.description, 500)) : null;
  const described = help ? { "aria-describedby": `${id}-help` } : {};
  const line = (control) => h("div", { class: "line" }, h("label", { for: id }, label), control, help);
  if (schema.type === "boolean") {
    const box = h("input", { type: "checkbox", id, ...described });
    box.checked = schema.default === true;
    return { node: h("div", { class: "line check" }, box, h("label", { for: id }, label), help), read: () => box.checked };
  }
  if (schema.type === "array") return several(schema, required, id, label, help, line);
  const options = choices(schema);
  if (options.length > 0) {
    const select = h("select", { id, required, ...described }, h("option", { value: "" }, "—"), options.map((option, at) => h("option", { value: at }, words(option.label))));
    const preset = "default" in schema ? options.findIndex((option) => option.spelt === spelling(schema, "default")) : -1;
    if (preset >= 0) select.value = String(preset);
    return { node: line(select), read: () => (select.value === "" ? undefined : options[Number(select.value)].value) };
  }
  if (schema.type === "number" || schema.type === "integer") {
    const [min, max] = ["minimum", "maximum"].map((name) => (typeof schema[name] === "number" ? spelling(schema, name) : undefined));
    const input = h("input", { type: "number", id, required, min, max, step: schema.type === "integer" ? 1 : "any", ...described });
    if (typeof schema.default === "number") input.value = spelling(schema, "default");
    return { node: line(input), read: () => (input.value === "" ? undefined : numeric(input.value)) };
  }
  const input = h("input", { type: TYPES[schema.format] ?? "text", id, required, minlength: schema.minLength, maxlength: schema.maxLength, ...described });
  if (typeof schema.default === "string") input.value = schema.default;
  const read = () => {
    if (input.value === "") return required ? "" : undefined;
    return schema.format === "date-time" ? new Date(input.value).toISOString() : input.value;
  };
  return { node: line(input), read };
}

/** A list of values: those that are ticked, or one in each line. */
function several(schema, required, id, label, help, line) {
  const list = (chosen) => (chosen.length === 0 && !required ? undefined : chosen);
  const preset = Array.isArray(schema.default) ? schema.default : [];
  const options = choices(schema.items);
  if (options.length === 0) {
    const isNumber = ["number", "integer"].includes(schema.items?.type);
    const area = h("textarea", { id, rows: 3, required, placeholder: "One in each line" });
    area.value = preset.map((_, at) => spelling(preset, at)).join("\n");
    const lines = () => area.value.split("\n").map((text) => text.trim()).filter(Boolean);
    return { node: line(area), read: () => list(lines().map((text) => (isNumber ? numeric(text) : text))) };
  }
  const chosen = new Set(preset.map((_, at) => spelling(preset, at)));
  const boxes = options.map(({ value, label: called, spelt }, at) => {
    const box = h("input", { type: "checkbox", id: `${id}-${at}` });
    box.checked = chosen.has(spelt);
    return { value, box, node: h("div", { class: "check" }, box, h("label", { for: `${id}-${at}` }, words(called))) };
  });
  const node = h("fieldset", { class: "line" }, h("legend", {}, label), boxes.map((one) => one.node), help);
  return { node, read: () => list(boxes.filter(({ box }) => box.checked).map(({ value }) => value)) };
}

/** The fields of a form, and what reads them all. `prefix` makes their ids unique on the page. */
export function schemaForm(schema, prefix) {
  const required = new Set(Array.isArray(schema.required) ? schema.required : []);
  const entries = Object.entries(schema.properties ?? {});
  const fields = entries.map(([name, one], at) => [name, field(name, one ?? {}, required.has(name), `${prefix}-${at}`)]);
  const read = () => {
    const values = fields.map(([name, { read }]) => [name, read()]).filter(([, value]) => value !== undefined);
    return Object.fromEntries(values);
  };
  return { nodes: fields.map(([, { node }]) => node), read };
}
