import { createRoot } from "react-dom/client";

import { App } from "./app";
import "./style/base.css";
import "./style/shell.css";
import "./style/chat.css";
import "./style/cards.css";
import "./style/setup.css";
import "./style/usage.css";
import "./style/share.css";
import "./style/text.css";

const root = document.getElementById("root");
if (root !== null) createRoot(root).render(<App />);
