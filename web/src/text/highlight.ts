// Syntax colours. The highlighter and each language are loaded when the first block needs them.

import hljs from "highlight.js/lib/core";
import type { LanguageFn } from "highlight.js";

import { cleanCode } from "./sanitize";

type Loader = () => Promise<{ default: LanguageFn }>;

const LANGUAGES: Record<string, Loader> = {
  bash: () => import("highlight.js/lib/languages/bash"),
  c: () => import("highlight.js/lib/languages/c"),
  cpp: () => import("highlight.js/lib/languages/cpp"),
  csharp: () => import("highlight.js/lib/languages/csharp"),
  css: () => import("highlight.js/lib/languages/css"),
  diff: () => import("highlight.js/lib/languages/diff"),
  dockerfile: () => import("highlight.js/lib/languages/dockerfile"),
  go: () => import("highlight.js/lib/languages/go"),
  ini: () => import("highlight.js/lib/languages/ini"),
  java: () => import("highlight.js/lib/languages/java"),
  javascript: () => import("highlight.js/lib/languages/javascript"),
  json: () => import("highlight.js/lib/languages/json"),
  kotlin: () => import("highlight.js/lib/languages/kotlin"),
  lua: () => import("highlight.js/lib/languages/lua"),
  makefile: () => import("highlight.js/lib/languages/makefile"),
  markdown: () => import("highlight.js/lib/languages/markdown"),
  php: () => import("highlight.js/lib/languages/php"),
  powershell: () => import("highlight.js/lib/languages/powershell"),
  python: () => import("highlight.js/lib/languages/python"),
  r: () => import("highlight.js/lib/languages/r"),
  ruby: () => import("highlight.js/lib/languages/ruby"),
  rust: () => import("highlight.js/lib/languages/rust"),
  sql: () => import("highlight.js/lib/languages/sql"),
  swift: () => import("highlight.js/lib/languages/swift"),
  typescript: () => import("highlight.js/lib/languages/typescript"),
  xml: () => import("highlight.js/lib/languages/xml"),
  yaml: () => import("highlight.js/lib/languages/yaml"),
};

const ALIASES: Record<string, string> = {
  sh: "bash", shell: "bash", zsh: "bash", console: "bash", h: "c", "c++": "cpp", hpp: "cpp", cs: "csharp", docker: "dockerfile", golang: "go", toml: "ini",
  js: "javascript", jsx: "javascript", mjs: "javascript", jsonc: "json", kt: "kotlin", make: "makefile", md: "markdown", ps1: "powershell", py: "python", rb: "ruby",
  rs: "rust", postgres: "sql", sqlite: "sql", ts: "typescript", tsx: "typescript", html: "xml", svg: "xml", vue: "xml", yml: "yaml", patch: "diff",
};

/** Returns code with colours as nodes; `null` for a language without a grammar. */
export async function highlight(code: string, language: string): Promise<DocumentFragment | null> {
  const wanted = language.toLowerCase();
  const name = Object.hasOwn(ALIASES, wanted) ? (ALIASES[wanted] ?? wanted) : wanted;
  const load = Object.hasOwn(LANGUAGES, name) ? LANGUAGES[name] : undefined;
  if (load === undefined) return null;
  if (hljs.getLanguage(name) === undefined) hljs.registerLanguage(name, (await load()).default);
  return cleanCode(hljs.highlight(code, { language: name, ignoreIllegals: true }).value);
}
