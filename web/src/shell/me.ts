// The account of the user, with the model of new conversations that choose none.

import { useQuery } from "@tanstack/react-query";

import * as api from "../api/client";
import type { Me } from "../api/types";
import { queries } from "./queries";

export const useMe = () => useQuery({ queryKey: ["me"], queryFn: () => api.get<Me>("/me") });

/** Stores the default model of the user. */
export async function setDefaultModel(model: string | null): Promise<void> {
  queries.setQueryData(["me"], await api.patch<Me>("/me", { default_model: model }));
}
