// LaTeX as MathML. Loaded when the first formula is shown.

import temml from "temml";

import { cleanMath } from "./sanitize";

/** Returns a formula as nodes; throws if it cannot be read. */
export function renderMath(source: string, isBlock: boolean): DocumentFragment {
  const markup = temml.renderToString(source, { displayMode: isBlock, throwOnError: true, maxExpand: 200, trust: false });
  // The security policy refuses style attributes already when markup is parsed. Texts in this markup have no plain quotes.
  return cleanMath(markup.replace(/ style="[^"]*"/g, ""));
}
