// A chip that opens a list to choose from, with a search field.

import { Popover } from "radix-ui";
import { useId, useState, type KeyboardEvent } from "react";

import { Icon, type IconName } from "../shell/icons";
import { brief } from "../text/words";

export interface Option {
  value: string;
  label: string;
  group?: string;
  detail?: string;
  isOff?: boolean;
}

interface Props {
  id: string;
  icon: IconName;
  label: string;
  value: string;
  /** The name of the empty value. */
  own: string;
  options: Option[];
  isLoading?: boolean;
  trouble?: string | undefined;
  /** Whether a typed name that is not in the list may be chosen. */
  isOpen?: boolean;
  choose: (value: string) => void;
  hint?: string;
}

export function Picker({ id, icon, label, value, own, options, isLoading = false, trouble, isOpen: isFree = false, choose, hint }: Props) {
  const [isShown, setShown] = useState(false);
  const name = value === "" ? own : value;
  return (
    <Popover.Root open={isShown} onOpenChange={setShown}>
      <Popover.Trigger asChild>
        <button type="button" id={id} className="chip pick" aria-label={`${label}: ${brief(name, 80)}`} title={`${label}: ${brief(name, 200)}`}>
          <Icon name={icon} />
          <span className="pick-name">{brief(name.replace(/^[^/]+\//, ""), 40)}</span>
          <Icon name="chevron" />
        </button>
      </Popover.Trigger>
      <Popover.Portal>
        <Popover.Content className="popover picker" side="top" align="start" sideOffset={8} collisionPadding={12} aria-label={label}>
          <List
            id={id}
            label={label}
            value={value}
            own={own}
            options={options}
            isLoading={isLoading}
            trouble={trouble}
            isFree={isFree}
            hint={hint}
            choose={(chosen) => {
              setShown(false);
              choose(chosen);
            }}
          />
        </Popover.Content>
      </Popover.Portal>
    </Popover.Root>
  );
}

interface ListProps extends Pick<Props, "id" | "label" | "value" | "own" | "options" | "trouble" | "choose"> {
  isLoading: boolean;
  isFree: boolean;
  hint: string | undefined;
}

function List({ id, label, value, own, options, isLoading, trouble, isFree, hint, choose }: ListProps) {
  const [query, setQuery] = useState("");
  const [place, setPlace] = useState(0);
  const list = useId();
  const wanted = query.trim().toLowerCase();
  const fits = (option: Option) => wanted.split(/\s+/).every((word) => `${option.label} ${option.group ?? ""} ${option.value}`.toLowerCase().includes(word));
  const found = options.filter(fits);
  const shown: Option[] = [
    ...(wanted === "" ? [{ value: "", label: own }] : []),
    ...found,
    ...(isFree && wanted !== "" && !found.some((option) => option.value === query.trim()) ? [{ value: query.trim(), label: `Use “${brief(query.trim(), 60)}”` }] : []),
  ];
  const at = Math.min(place, shown.length - 1);
  const key = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      const next = (at + step + shown.length) % Math.max(1, shown.length);
      setPlace(next);
      document.getElementById(`${list}-${next}`)?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter") {
      event.preventDefault();
      const option = shown[at];
      if (option !== undefined && option.isOff !== true) choose(option.value);
    }
  };
  let group: string | undefined;
  return (
    <>
      <input
        type="search"
        id={`${id}-search`}
        className="picker-search"
        placeholder="Search"
        aria-label={`Search: ${label}`}
        role="combobox"
        aria-expanded="true"
        aria-controls={list}
        aria-activedescendant={shown.length > 0 ? `${list}-${at}` : undefined}
        autoComplete="off"
        maxLength={200}
        spellCheck={false}
        value={query}
        autoFocus
        onChange={(event) => {
          setQuery(event.target.value);
          setPlace(0);
        }}
        onKeyDown={key}
      />
      <div className="options" role="listbox" id={list} aria-label={label}>
        {shown.map((option, number) => {
          const heading = option.group !== undefined && option.group !== group ? option.group : undefined;
          group = option.group;
          return (
            <div key={option.value} role="presentation">
              {heading !== undefined && <div className="option-group" role="presentation">{heading}</div>}
              <div
                id={`${list}-${number}`}
                role="option"
                aria-selected={option.value === value}
                aria-disabled={option.isOff}
                className={`option${number === at ? " at" : ""}`}
                onPointerMove={() => setPlace(number)}
                onClick={() => option.isOff !== true && choose(option.value)}
              >
                <span className="option-name">{brief(option.label, 80)}</span>
                {option.detail !== undefined && <span className="option-detail">{brief(option.detail, 160)}</span>}
                {option.value === value && <Icon name="done" />}
              </div>
            </div>
          );
        })}
        {shown.length === 0 && <p className="faint empty">No matches</p>}
      </div>
      {isLoading && <p className="faint empty">Asking the providers…</p>}
      {trouble !== undefined && <p className="faint empty">{trouble}</p>}
      {hint !== undefined && <p className="picker-hint">{hint}</p>}
    </>
  );
}
