// Markdown as elements. A growing text changes only its last block, and its text nodes grow in place, so that a selection stays.

import { memo, useEffect, useLayoutEffect, useRef, useState, type ReactNode } from "react";

import { BlockReader, decoded, type MathToken, type Token, type Tokens } from "./blocks";
import { webUrl } from "./link-urls";
import { copy } from "./words";

const DEEPEST = 8;
/** Larger tables stay text. */
const MOST_COLUMNS = 50;
const MOST_CELLS = 5_000;
/** Longer code has no colours. */
const LONGEST_COLOURED = 60_000;

/** Shows a text of a model. `isLive`: it is being written. */
export const Markdown = memo(function Markdown({ text, isLive }: { text: string; isLive: boolean }) {
  const [reader] = useState(() => new BlockReader());
  const blocks = reader.read(text.includes("\r") ? text.replace(/\r\n?/g, "\n") : text, isLive);
  return (
    <div className="text" dir="auto">
      {blocks.map((token, at) => (
        <Block key={at} token={token} isLive={isLive && at === blocks.length - 1} depth={0} />
      ))}
    </div>
  );
});

interface BlockProps {
  token: Token;
  isLive: boolean;
  depth: number;
}

const Block = memo(
  function Block({ token, isLive, depth }: BlockProps) {
    return <>{block(token, isLive, depth)}</>;
  },
  (one, other) => one.token.raw === other.token.raw && one.token.type === other.token.type && one.isLive === other.isLive && one.depth === other.depth,
);

function block(token: Token, isLive: boolean, depth: number): ReactNode {
  if (depth > DEEPEST) return <p dir="auto">{token.raw}</p>;
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "hr":
      return <hr />;
    case "heading": {
      const { depth: level, tokens } = token as Tokens.Heading;
      // The title of the conversation is the only first heading.
      const Tag = `h${Math.min(6, level + 2)}` as "h3";
      return <Tag dir="auto" data-level={level}>{inline(tokens, isLive, depth)}</Tag>;
    }
    case "code": {
      const { text, lang } = token as Tokens.Code;
      return <CodeBlock text={text} language={/^[\w+#.-]{1,30}/.exec(lang ?? "")?.[0] ?? ""} isLive={isLive} />;
    }
    case "blockquote":
      return <blockquote dir="auto">{blocks((token as Tokens.Blockquote).tokens, isLive, depth + 1)}</blockquote>;
    case "list":
      return list(token as Tokens.List, isLive, depth);
    case "table":
      return table(token as Tokens.Table, isLive, depth);
    case "math":
      return <Formula token={token as MathToken} />;
    case "paragraph":
      return <p dir="auto">{inline((token as Tokens.Paragraph).tokens, isLive, depth)}</p>;
    default:
      return <p dir="auto">{inline([token], isLive, depth)}</p>;
  }
}

const blocks = (tokens: Token[], isLive: boolean, depth: number): ReactNode =>
  tokens.map((token, at) => <Block key={at} token={token} isLive={isLive && at === tokens.length - 1} depth={depth} />);

function list({ ordered, start, items }: Tokens.List, isLive: boolean, depth: number): ReactNode {
  const shown = items.map((item, at) => {
    const isLast = isLive && at === items.length - 1;
    const content = item.tokens.map((token, place) => {
      const isEnd = isLast && place === item.tokens.length - 1;
      if (token.type === "text") return <Spans key={place} tokens={(token as Tokens.Text).tokens ?? [token]} isLive={isEnd} depth={depth} />;
      if (token.type === "checkbox") return <Tick key={place} isDone={item.checked === true} />;
      return <Block key={place} token={token} isLive={isEnd} depth={depth + 1} />;
    });
    return (
      <li key={at} dir="auto" className={item.task ? "task" : undefined}>
        {content}
      </li>
    );
  });
  return ordered ? <ol start={start === "" ? 1 : start}>{shown}</ol> : <ul>{shown}</ul>;
}

const Tick = ({ isDone }: { isDone: boolean }) => <input type="checkbox" disabled checked={isDone} readOnly aria-label={isDone ? "done" : "open"} />;

function Spans({ tokens, isLive, depth }: { tokens: Token[]; isLive: boolean; depth: number }) {
  return <>{inline(tokens, isLive, depth)}</>;
}

function table(token: Tokens.Table, isLive: boolean, depth: number): ReactNode {
  const { header, rows, align, raw } = token;
  if (header.length > MOST_COLUMNS || header.length * (rows.length + 1) > MOST_CELLS) return <CodeBlock text={raw} language="" isLive={isLive} />;
  return (
    <div className="table" tabIndex={0} role="group" aria-label="Table">
      <table>
        <thead>
          <tr>
            {header.map((cell, at) => (
              <th key={at} dir="auto" data-align={align[at]}>
                {inline(cell.tokens, false, depth)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, place) => (
            <tr key={place}>
              {row.map((cell, at) => (
                <td key={at} dir="auto" data-align={align[at]}>
                  {inline(cell.tokens, isLive && place === rows.length - 1, depth)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function inline(tokens: Token[] | undefined, isLive: boolean, depth: number): ReactNode {
  if (tokens === undefined) return null;
  if (depth > DEEPEST) return tokens.map((token) => token.raw).join("");
  return tokens.map((token, at) => span(token, at, isLive && at === tokens.length - 1, depth + 1));
}

function span(token: Token, key: number, isLive: boolean, depth: number): ReactNode {
  switch (token.type) {
    case "strong":
      return <strong key={key}>{inline((token as Tokens.Strong).tokens, isLive, depth)}</strong>;
    case "em":
      return <em key={key}>{inline((token as Tokens.Em).tokens, isLive, depth)}</em>;
    case "del":
      return <del key={key}>{inline((token as Tokens.Del).tokens, isLive, depth)}</del>;
    case "codespan":
      return <code key={key}>{(token as Tokens.Codespan).text}</code>;
    case "br":
      return <br key={key} />;
    case "math":
      return <Formula key={key} token={token as MathToken} />;
    case "link": {
      const { href, tokens } = token as Tokens.Link;
      const url = webUrl(href);
      return url === null ? token.raw : <Link key={key} url={url}>{inline(tokens, false, depth)}</Link>;
    }
    case "image": {
      // Loading a picture would contact its server.
      const { href, text } = token as Tokens.Image;
      const url = webUrl(href);
      return url === null ? token.raw : <Link key={key} url={url}>{text || href}</Link>;
    }
    case "text": {
      const { tokens, text } = token as Tokens.Text;
      if (tokens !== undefined) return <span key={key}>{inline(tokens, isLive, depth)}</span>;
      return isLive ? <LiveText key={key} text={decoded(text)} /> : decoded(text);
    }
    case "escape":
      return (token as Tokens.Escape).text;
    default:
      return token.raw;
  }
}

/** A link to another site. `url` comes from `webUrl`. */
export function Link({ url, children }: { url: string; children: ReactNode }) {
  return (
    <a href={url} target="_blank" rel="noopener noreferrer" referrerPolicy="no-referrer">
      {children}
    </a>
  );
}

/** Lets the text of an element grow in place. */
function grow(element: HTMLElement, text: string): void {
  const node = element.firstChild;
  if (node instanceof Text && element.childNodes.length === 1 && text.startsWith(node.data)) {
    if (text.length > node.data.length) node.appendData(text.slice(node.data.length));
  } else {
    element.textContent = text;
  }
}

function LiveText({ text }: { text: string }) {
  const node = useRef<HTMLSpanElement>(null);
  useLayoutEffect(() => {
    if (node.current !== null) grow(node.current, text);
  }, [text]);
  return <span ref={node} />;
}

/** Returns a function that calls `act` as soon as nothing inside `element` is selected, and one that gives up. */
function unselected(element: HTMLElement, act: () => void): () => void {
  const isSelected = () => {
    const selection = document.getSelection();
    return selection !== null && !selection.isCollapsed && selection.containsNode(element, true);
  };
  if (!isSelected()) {
    act();
    return () => undefined;
  }
  const changed = () => {
    if (isSelected()) return;
    document.removeEventListener("selectionchange", changed);
    act();
  };
  document.addEventListener("selectionchange", changed);
  return () => document.removeEventListener("selectionchange", changed);
}

export function CodeBlock({ text, language, isLive }: { text: string; language: string; isLive: boolean }) {
  const node = useRef<HTMLElement>(null);
  useLayoutEffect(() => {
    if (node.current !== null) grow(node.current, text);
  }, [text]);
  useEffect(() => {
    if (isLive || language === "" || text.length > LONGEST_COLOURED) return;
    let isGone = false;
    let stop = (): void => undefined;
    const colour = async () => {
      const coloured = await (await import("./highlight")).highlight(text, language);
      const element = node.current;
      if (isGone || coloured === null || element === null) return;
      stop = unselected(element, () => element.replaceChildren(coloured));
    };
    // Without colours, the code is as readable as before.
    colour().catch(() => undefined);
    return () => {
      isGone = true;
      stop();
    };
  }, [text, language, isLive]);
  return (
    <div className="code">
      <div className="code-head">
        <span>{language}</span>
        <CopyButton text={() => text} />
      </div>
      <pre tabIndex={0} dir="ltr">
        <code ref={node} />
      </pre>
    </div>
  );
}

export function CopyButton({ text, label = "Copy", className = "quiet small" }: { text: () => string; label?: string; className?: string }) {
  const [isDone, setDone] = useState(false);
  useEffect(() => {
    if (!isDone) return;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [isDone]);
  return (
    <button type="button" className={className} onClick={() => void copy(text()).then(() => setDone(true))}>
      {isDone ? "Copied" : label}
    </button>
  );
}

function Formula({ token }: { token: MathToken }) {
  const node = useRef<HTMLSpanElement>(null);
  const { text, isBlock, raw } = token;
  useEffect(() => {
    let isGone = false;
    const show = async () => {
      const { renderMath } = await import("./math");
      if (!isGone) node.current?.replaceChildren(renderMath(text, isBlock));
    };
    // A formula that cannot be read stays as it was written.
    show().catch(() => {
      if (!isGone) node.current?.replaceChildren(raw);
    });
    return () => {
      isGone = true;
    };
  }, [text, isBlock, raw]);
  return <span className={isBlock ? "formula block" : "formula"} ref={node} />;
}
