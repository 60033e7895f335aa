// Pictures of this page's own, which screen readers pass over.

const PATHS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  attach: "M20 11.5l-8 8a5 5 0 0 1-7-7l8.5-8.5a3.3 3.3 0 0 1 4.7 4.7L9.8 17a1.7 1.7 0 0 1-2.4-2.4l7.4-7.4",
  send: "M12 19V5M5.5 11.500L12 5l6.500 6.500",
  stop: "M7 7h10v10H7z",
  rename: "M4 20h4L19.500 8.500a2 2 0 0 0 0-2.800l-1.200-1.200a2 2 0 0 0-2.800 0L4 16zM13.500 6.500l4 4",
  remove: "M5 7h14M10 7V4.500h4V7M7 7l.8 12.500h8.400L17 7M10.200 10.500v6M13.800 10.500v6",
  close: "M6 6l12 12M18 6L6 18",
  done: "M5 12.500l4.500 4.500L19 7.500",
  failed: "M6.500 6.500l11 11M17.500 6.500l-11 11",
  unknown: "M9 9.200a3 3 0 1 1 4.200 2.800c-.8.4-1.200.9-1.200 1.900M12 17.400v.1",
  ask: "M12 6v7M12 17.200v.1",
  file: "M7 3.500h7l4 4v13H7zM14 3.500v4h4",
  copy: "M9 9h10v10H9zM5 15V5h10",
  good: "M7 11v9H4v-9zM7 11l4-7c1.500 0 2.200 1 2 2.500L12.500 10H18a2 2 0 0 1 2 2.300l-1 6a2 2 0 0 1-2 1.700H7",
  bad: "M7 13V4H4v9zM7 13l4 7c1.500 0 2.200-1 2-2.500L12.500 14H18a2 2 0 0 0 2-2.300l-1-6A2 2 0 0 0 17 4H7",
  fork: "M7 6v12M7 9c0 4 10 2 10 6v3M7 3.500a1.500 1.500 0 1 0 0 3 1.500 1.500 0 0 0 0-3zM7 17.500a1.500 1.500 0 1 0 0 3 1.500 1.500 0 0 0 0-3zM17 17.500a1.500 1.500 0 1 0 0 3 1.500 1.500 0 0 0 0-3z",
  again: "M19 8a8 8 0 1 0 1 5M19.500 3.500V8H15",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  plus: "M12 5v14M5 12h14",
  pin: "M9 4h6l-1 6 3 3H7l3-3zM12 13v7",
  archive: "M4 5h16v4H4zM5.500 9v10h13V9M10 13h4",
  command: "M4 6h16v12H4zM8 10l2.500 2-2.500 2M13 14h3",
  search: "M10.500 4.500a6 6 0 1 0 0 12 6 6 0 0 0 0-12zM15 15l5 5",
  down: "M12 5v14M5.500 12.500L12 19l6.500-6.500",
  chevron: "M8 10l4 4 4-4",
  back: "M14 7l-5 5 5 5",
  forth: "M10 7l5 5-5 5",
  settings: "M4 7h10M18 7h2M4 17h2M10 17h10M16 5a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM8 15a2 2 0 1 0 0 4 2 2 0 0 0 0-4z",
  inbox: "M4 13l3-8h10l3 8v6H4zM4 13h5a3 3 0 0 0 6 0h5",
  usage: "M5 20V12M12 20V5M19 20v-5",
  key: "M14.500 4.500a5 5 0 1 0 0 10 5 5 0 0 0 0-10zM11 13l-7 7M6.500 17.500l2.500 2.500",
  look: "M4 5h16M4 12h10M4 19h6M17 14v6M14 17h6",
  model: "M12 3.500l7.500 4.200v8.600L12 20.500l-7.500-4.200V7.700zM12 12l7.500-4.300M12 12v8.500M12 12L4.500 7.700",
  agent: "M5 19c0-4 3-6 7-6s7 2 7 6M12 4.500a3.500 3.500 0 1 0 0 7 3.500 3.500 0 0 0 0-7z",
  export: "M12 4v11M7.500 8.500L12 4l4.500 4.500M5 15v5h14v-5",
  import: "M12 15V4M7.500 10.500L12 15l4.500-4.500M5 15v5h14v-5",
  share: "M10 14a4 4 0 0 0 5.700 0l3-3a4 4 0 0 0-5.700-5.700l-1 1M14 10a4 4 0 0 0-5.700 0l-3 3a4 4 0 0 0 5.700 5.700l1-1",
  tool: "M14.500 6.500a4 4 0 0 1 5-2.500l-2.500 2.500.5 2 2 .5L22 6.500a4 4 0 0 1-5.500 5L8 20a1.700 1.700 0 0 1-2.400 0l-1.100-1.100a1.700 1.700 0 0 1 0-2.400L13 8a4 4 0 0 1 1.500-1.500",
  tag: "M4 12V4h8l8 8-8 8zM8 8h.01",
  play: "M8 5l11 7-11 7z",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg viewBox="0 0 24 24" aria-hidden="true" className={`i i-${name}`}>
      <path d={PATHS[name]} />
    </svg>
  );
}

/** The mark of the program. */
export function Mark() {
  return (
    <svg viewBox="0 0 64 64" aria-hidden="true" className="mark-logo">
      <g fill="none" stroke="currentColor" strokeWidth="5" strokeLinecap="round">
        <path d="M32 20V9M42.400 26l9.500-5.500M42.400 38l9.500 5.500M32 44v11M21.600 38l-9.500 5.500M21.600 26l-9.500-5.500" />
        <circle cx="32" cy="32" r="12" />
      </g>
      <circle cx="32" cy="32" r="4" fill="currentColor" />
    </svg>
  );
}
