// The command palette: commands, conversations and messages by a few letters.

import { useQuery } from "@tanstack/react-query";
import { useDeferredValue, useState, type KeyboardEvent } from "react";

import * as api from "../api/client";
import type { Conversation, FoundMessage } from "../api/types";
import { brief } from "../text/words";
import { Dialog } from "./dialog";

interface Entry {
  key: string;
  label: string;
  detail?: string;
  to: string;
  act?: () => void;
}

const COMMANDS: Entry[] = [
  { key: "new", label: "New conversation", detail: "Ctrl+Shift+O", to: "" },
  { key: "inbox", label: "Inbox", to: "inbox" },
  { key: "setup", label: "Set up", to: "setup" },
  { key: "servers", label: "MCP servers", to: "setup/tools" },
  { key: "usage", label: "Usage", to: "usage" },
];

interface Props {
  close: () => void;
  go: (to: string) => void;
  /** Opens the list of shared links. */
  openShares: () => void;
  /** Shares the open conversation, if there is one. */
  share: (() => void) | null;
}

export default function Palette({ close, go, openShares, share }: Props) {
  const [query, setQuery] = useState("");
  const [place, setPlace] = useState(0);
  const typed = query.trim();
  const wanted = useDeferredValue(typed);
  const { data } = useQuery({
    queryKey: ["palette", wanted],
    queryFn: async (): Promise<Entry[]> => {
      const q = encodeURIComponent(wanted);
      const titles = await api.get<api.Page<Conversation>>(`/conversations?limit=8${wanted === "" ? "" : `&q=${q}`}`);
      const messages = wanted === "" ? { data: [] } : await api.get<api.Page<FoundMessage>>(`/search?q=${q}&limit=8`);
      return [
        ...titles.data.map((row) => ({ key: row.id, label: brief(row.title || "Untitled", 80), to: row.id })),
        ...messages.data.map((found) => ({ key: found.message_id, label: brief(found.title || "Untitled", 60), detail: brief(found.snippet.map((part) => part.text).join(""), 80), to: `${found.conversation_id}/${found.message_id}` })),
      ];
    },
  });
  const commands: Entry[] = [...COMMANDS, { key: "shares", label: "Shared links", to: "", act: openShares }];
  if (share !== null) commands.push({ key: "share", label: "Share this conversation…", to: "", act: share });
  // Enter may follow the last letter before anything was found, so nothing of an earlier text is offered then.
  const found = typed === wanted ? (data ?? []) : [];
  const entries = [...commands.filter((entry) => entry.label.toLowerCase().includes(typed.toLowerCase())), ...found];
  const at = Math.min(place, Math.max(0, entries.length - 1));
  const choose = (entry: Entry | undefined) => {
    if (entry === undefined) return;
    close();
    if (entry.act === undefined) go(entry.to);
    else entry.act();
  };
  const key = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const next = (at + (event.key === "ArrowDown" ? 1 : entries.length - 1)) % Math.max(1, entries.length);
      setPlace(next);
      document.getElementById(`palette-${next}`)?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter") {
      event.preventDefault();
      choose(entries[at]);
    }
  };
  return (
    <Dialog label="Go to" isOpen close={close} className="palette">
      <input
        type="search"
        placeholder="Go to a conversation, message or command"
        aria-label="Go to"
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={entries.length > 0 ? `palette-${at}` : undefined}
        maxLength={200}
        autoFocus
        value={query}
        onChange={(event) => {
          setQuery(event.target.value);
          setPlace(0);
        }}
        onKeyDown={key}
      />
      <div className="options" role="listbox" id="palette-list" aria-label="Results">
        {entries.map((entry, number) => (
          <div key={entry.key} id={`palette-${number}`} role="option" aria-selected={number === at} className={`option${number === at ? " at" : ""}`} onPointerMove={() => setPlace(number)} onClick={() => choose(entry)}>
            <span className="option-name">{entry.label}</span>
            {entry.detail !== undefined && <span className="option-detail">{entry.detail}</span>}
          </div>
        ))}
        {entries.length === 0 && typed === wanted && data !== undefined && <p className="faint empty">No matches</p>}
      </div>
    </Dialog>
  );
}
