// Rows of links, with a button that revokes each.

import { useRef, useState, type RefObject } from "react";

import * as api from "../api/client";
import type { Share } from "../api/types";
import { Action } from "../setup/parts";
import { queries } from "../shell/queries";
import { brief, date, number } from "../text/words";

/** Begins the keys of all lists of shares in the cache. */
export const SHARES = "shares";

/** Revokes shares. The heading gets the focus then, because the button goes away with its row, and `news` is for screen readers. */
export function useRevoking(revoked?: (share: string) => void): { revoke: (share: Share) => Promise<void>; news: string; heading: RefObject<HTMLHeadingElement | null> } {
  const [news, setNews] = useState("");
  const heading = useRef<HTMLHeadingElement>(null);
  const revoke = async ({ id, conversation_id: conversation }: Share) => {
    await api.remove(`/conversations/${conversation}/shares/${id}`);
    revoked?.(id);
    setNews("The link is revoked.");
    heading.current?.focus();
    await queries.invalidateQueries({ queryKey: [SHARES] });
  };
  return { revoke, news, heading };
}

interface Props {
  shares: readonly Share[];
  revoke: (share: Share) => Promise<void>;
  /** Shows the titles, as links to the conversations; called when one is followed. */
  follow?: () => void;
}

export function ShareRows({ shares, revoke, follow }: Props) {
  return (
    <ul>
      {shares.map((share) => {
        const title = brief(share.title || "Untitled", 80);
        const made = `created ${date(share.created_at)}, with ${messages(share.message_count)}`;
        const facts = `${hasEnded(share) ? "ended" : "ends"} ${date(share.expires_at)} · ${messages(share.message_count)}`;
        return (
          <li key={share.id} data-share={share.id}>
            <span className="facts-line">
              {follow === undefined ? (
                <>
                  <span>{`Created ${date(share.created_at)}`}</span>
                  <span className="faint">{facts}</span>
                </>
              ) : (
                <>
                  <a href={`#/${share.conversation_id}`} dir="auto" onClick={follow}>
                    {title}
                  </a>
                  <span className="faint">{`created ${date(share.created_at)} · ${facts}`}</span>
                </>
              )}
            </span>
            <Action act={() => revoke(share)} label={follow === undefined ? `Revoke the link ${made}` : `Revoke the link to “${title}” ${made}`}>
              Revoke
            </Action>
          </li>
        );
      })}
    </ul>
  );
}

const hasEnded = (share: Share): boolean => Date.parse(share.expires_at) <= Date.now();
const messages = (count: number): string => (count === 1 ? "1 message" : `${number(count)} messages`);
