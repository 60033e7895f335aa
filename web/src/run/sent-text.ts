// The texts of a request to a model, as people read them.

import { print, spelling } from "../api/json";
import type { Message, ModelOptions, TextLimit, ToolContent } from "../api/types";
import { brief, number } from "../text/words";

const SHORT_CHARACTERS = 800;
const SHORT_LINES = 14;

const lines = (text: string): number => text.split("\n").length;

/** Returns whether a text is shown without folding it. */
export const isShort = (text: string): boolean => text.length <= SHORT_CHARACTERS && lines(text) <= SHORT_LINES;

const ROLES: Record<Message["role"], string> = { user: "User", assistant: "Model", tool: "Tool" };

/** Returns the author of a message. Internal messages of users are hints of the server. */
export const roleName = ({ role, internal }: Pick<Message, "role" | "internal">): string => `${ROLES[role]}${internal === true ? " · added by the server" : ""}`;

/** Returns the options that were set: their names in words, and their values. */
export function optionFacts(options: ModelOptions): [string, string][] {
  return Object.entries(options as Record<string, unknown>).flatMap(([name, value]): [string, string][] => {
    if (value === undefined || value === null || (Array.isArray(value) && value.length === 0)) return [];
    const words = typeof value === "string" ? value : typeof value === "number" ? spelling(options, name) : print(value, 2);
    return [[name.replaceAll("_", " "), words]];
  });
}

/** Returns the content of a tool's result as one text. Files are named. */
export function contentText(content: readonly ToolContent[]): string {
  return content.map((part) => (part.type === "text" ? part.text : `[${part.type === "image" ? "picture" : "file"}: ${brief("name" in part && part.name ? part.name : part.media_type, 100)}]`)).join("\n");
}

/** Returns how many characters and lines a text has. */
export const size = (text: string): string => `${number(text.length)} characters, ${number(lines(text))} ${lines(text) === 1 ? "line" : "lines"}`;

/** Returns in words how much of a text was sent. A limit that is not set is a huge number. */
export function sentOf({ chars, bytes }: TextLimit): string {
  return chars <= bytes ? `its first ${number(chars)} characters` : `its first ${number(bytes)} bytes`;
}
