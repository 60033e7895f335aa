// The model of the next new conversation of this tab.

import { inStore } from "../api/client";

const CHOICE = "capstan.choice";

export interface Choice {
  agent: string;
  model: string;
}

export function storedChoice(): Choice {
  try {
    return { agent: "", model: "", ...(JSON.parse(inStore((store) => store.getItem(CHOICE)) ?? "{}") as Partial<Choice>) };
  } catch {
    return { agent: "", model: "" };
  }
}

export function storeChoice(choice: Choice): void {
  inStore((store) => store.setItem(CHOICE, JSON.stringify(choice)));
}
