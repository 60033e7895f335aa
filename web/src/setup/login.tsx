// A login at another site, in a window of its own. The page notices its end by itself.

import { useEffect, useRef, useState, type ReactNode } from "react";

import * as api from "../api/client";
import type { McpServer } from "../api/types";
import { queries, readServers } from "../shell/queries";
import { webUrl } from "../text/link-urls";
import { brief } from "../text/words";
import { Action } from "./parts";

/** How often the page asks whether the login is finished, in milliseconds. */
const EACH_MS = 2_000;

/** A login that has begun. */
interface Begun {
  url: string;
  expires_in: number;
}

interface Waiting {
  url: string;
  /** Whether the browser refused to open a window. */
  isBlocked: boolean;
  until: number;
}

interface Props {
  begin: () => Promise<Begun>;
  /** Returns whether the login is finished, once the page has taken note of that. */
  check: () => Promise<boolean>;
  className?: string;
  label?: string;
  children: ReactNode;
}

export function Login({ begin, check, className = "small", label, children }: Props) {
  const [waiting, setWaiting] = useState<Waiting | null>(null);
  const [trouble, setTrouble] = useState("");
  const asked = useRef(check);
  useEffect(() => {
    asked.current = check;
  }, [check]);
  useEffect(() => {
    if (waiting === null) return undefined;
    let [isAsking, isOver] = [false, false];
    const ask = async () => {
      if (isAsking) return;
      isAsking = true;
      let [isFinished, words] = [false, ""];
      try {
        isFinished = await asked.current();
      } catch (error) {
        words = api.words(error);
      }
      isAsking = false;
      if (isOver) return;
      // An answer ends the trouble of an earlier question.
      setTrouble(words);
      if (isFinished || Date.now() > waiting.until) setWaiting(null);
    };
    const timer = setInterval(() => void ask(), EACH_MS);
    const seen = () => void ask();
    // People come back from the window of the login.
    document.addEventListener("visibilitychange", seen);
    return () => {
      isOver = true;
      clearInterval(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [waiting]);
  const open = async () => {
    setTrouble("");
    // Browsers block windows that open after the click: it opens empty, and gets its address later.
    const opened = window.open("", "_blank");
    // The other site must not reach this page.
    if (opened !== null) opened.opener = null;
    try {
      const { url, expires_in: seconds } = await begin();
      const address = webUrl(url);
      if (address === null) throw new api.Problem(0, { detail: "the address of the login is no web address" });
      opened?.location.replace(address);
      setWaiting({ url: address, isBlocked: opened === null, until: Date.now() + seconds * 1000 });
    } catch (error) {
      opened?.close();
      throw error;
    }
  };
  return (
    <>
      <Action act={open} className={className} {...(label === undefined ? {} : { label })}>
        {children}
      </Action>
      {waiting !== null && (
        <span className="login-wait" role="status">
          {waiting.isBlocked ? "The browser blocked the window." : "Finish the login in the other window."}{" "}
          <a href={waiting.url} target="_blank" rel="noopener noreferrer">
            {waiting.isBlocked ? "Open the login page" : "Open it again"}
          </a>
        </span>
      )}
      {waiting !== null && trouble !== "" && (
        <span className="action-trouble" role="alert">
          {trouble}
        </span>
      )}
    </>
  );
}

/** The login at an MCP server. */
export function ServerLogin({ server }: { server: McpServer }) {
  const check = async () => {
    const servers = await queries.query({ queryKey: ["mcp-servers"], queryFn: readServers, staleTime: 0 });
    const isFinished = servers.find(({ id }) => id === server.id)?.status.auth !== "needed";
    if (isFinished) void queries.invalidateQueries({ queryKey: ["tools"] });
    return isFinished;
  };
  return (
    <Login begin={() => api.post<Begun>(`/mcp-servers/${server.id}/login`)} check={check} className="small primary" label={`Log in at ${brief(server.name, 60)}`}>
      Log in
    </Login>
  );
}
