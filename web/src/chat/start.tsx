// The page of a new conversation.

import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";

import { get } from "../api/client";
import type { ToolDefinition } from "../api/types";
import { Mark } from "../shell/icons";
import { brief } from "../text/words";

/** A prompt that fits a server with such a tool. */
const BY_TOOL: [RegExp, string][] = [
  [/(^|_)calculate$/, "What time is it, and what is 17*23?"],
  [/current_time$/, "What time is it in Asia/Tokyo?"],
  [/(list_directory|list_files|list_dir)$/, "Which files are there?"],
  [/(fetch|read_url|http_get)$/, "Read https://example.org and summarise it"],
  [/(search|web_search)$/, "Search for news about Rust and list three"],
  [/(query|sql)$/, "Which tables are there, and how large are they?"],
];
const GENERAL = ["Explain how a hash map works, with a picture in text", "Compare SQLite and Postgres in a table", "Write a polite reminder for an unpaid invoice", "Tell me a story"];

interface Tools {
  data: ToolDefinition[];
}

export function Start({ put, card }: { put: (words: string) => void; card: ReactNode }) {
  const { data } = useQuery({ queryKey: ["tools"], queryFn: () => get<Tools>("/tools") });
  const names = (data?.data ?? []).map((tool) => tool.name);
  const fitting = BY_TOOL.filter(([pattern]) => names.some((name) => pattern.test(name))).map(([, words]) => words);
  const prompts = [...fitting, ...GENERAL].slice(0, 4);
  return (
    <div id="scroll">
      <div id="presets">
        <Mark />
        <h2>What shall we do?</h2>
        {card}
        <div className="presets">
          {prompts.map((words) => (
            <button key={words} type="button" className="preset" onClick={() => put(words)}>
              {words}
            </button>
          ))}
        </div>
        {names.length > 0 && (
          <p className="faint tools-line" title={names.join(", ")}>
            {`${names.length} tools: ${names.slice(0, 5).map((name) => brief(name, 30)).join(", ")}${names.length > 5 ? "…" : ""}`}
          </p>
        )}
      </div>
    </div>
  );
}
