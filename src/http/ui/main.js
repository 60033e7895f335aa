// Connects the parts of the page: one conversation is open, its stream changes the state, and the state is drawn.

import * as api from "./api.js";
import { Composer } from "./composer.js";
import { brief, byId, h, icon, number } from "./dom.js";
import { Sidebar } from "./sidebar.js";
import { PAGE, active, end, initial, isOver, newest, open as openAsks, prepend, recall, reduce } from "./state.js";
import { Stream } from "./stream.js";
import { Transcript, doing } from "./transcript.js";

const PRESETS = [
  "What time is it, and what is 17*23?",
  "What time is it in Asia/Tokyo?",
  "Calculate (2+3)^4 / 7",
  "Which files are there?",
  "Tell me a story",
];

/** Pages of events that are looked through for what a snapshot does not tell. */
const RECALLED_PAGES = 20;

/** A snapshot with fewer messages is followed by a page of those before them. */
const FEW_MESSAGES = 4;

let current = null;
/** Grows with each conversation that is opened. */
let visit = 0;
let state = initial();
let stream = null;
let isDrawn = true;
/** Whether a page of earlier messages is being read. */
let isReading = false;
/** Whether what is shown stays where it is when something is put before it. */
let keepsPlace = false;
/** The run that the stop button stops. */
let shownRun = null;
let announced = { asks: 0, run: null, status: "" };
const agents = new Map();

const transcript = new Transcript(byId("transcript"), act, showEarlier);
const composer = new Composer({ send, forgetModel });
const sidebar = new Sidebar({
  open: () => closeMenu(),
  title: (id, title) => id === current && Object.assign(state, { title }) && draw(),
  deleted: (id) => id === current && leave(),
});

// Which conversation.

function go(id) {
  history.pushState(null, "", id === null ? "#/" : `#/${id}`);
  show(id);
}

/** Leaves a conversation that is not there, so that nobody comes back to it. */
function leave() {
  history.replaceState(null, "", "#/");
  show(null);
}

const wanted = () => /^#\/(conv_[0-9a-f]{32})$/.exec(location.hash)?.[1] ?? null;

function show(id) {
  stream?.stop();
  stream = null;
  current = id;
  visit += 1;
  state = initial();
  announced = { asks: 0, run: null, status: "" };
  transcript.clear();
  composer.reset();
  notice(null);
  sidebar.select(id);
  if (id !== null) follow(id);
  draw();
  if (matchMedia("(min-width: 800px)").matches) composer.focus();
}

function follow(id) {
  stream = new Stream(id, {
    events: (events) => id === current && take(events),
    lost: (seconds) => id === current && notice(seconds),
    back: () => id === current && notice(null),
    gone: () => {
      if (id !== current) return;
      leave();
      composer.say("This conversation is not there any more.");
      sidebar.refresh();
    },
  });
}

function take(events) {
  for (const event of events) {
    try {
      reduce(state, event);
    } catch (error) {
      // One event that cannot be shown takes no other one with it.
      console.error(event.type, event.seq, error);
    }
    if (event.type === "stream.snapshot") remember(event);
    if (event.type === "stream.snapshot" && event.data.before !== null && event.data.messages.length < FEW_MESSAGES) showEarlier();
    if (event.type === "conversation.updated") sidebar.told(current, { title: event.data.title ?? state.title, status: event.data.status, reason: active(state)?.reason ?? null, updated_at: event.at });
    if (event.type === "run.started") composer.offerModel(event.data.model);
  }
  preferAgent();
  draw();
}

/** Who has answered last answers the next message, too. */
function preferAgent() {
  const run = [...state.runs.values()].findLast((known) => known.agent !== null);
  if (run !== undefined) composer.prefer(run.agent);
}

/** After a snapshot: the title, and what the events of the newest run tell beside it. */
async function remember(event) {
  const [id, from, { epoch }] = [current, visit, state];
  const isSame = () => from === visit && epoch === state.epoch;
  try {
    const conversation = await api.get(`/conversations/${id}`);
    if (isSame()) {
      state.title ??= conversation.title;
      composer.keep(conversation);
    }
    const run = active(state) ?? newest(state);
    if (run !== null) {
      const events = await eventsOf(run.id, event.data.head);
      if (!isSame()) return;
      recall(state, events);
      const told = await api.get(`/runs/${run.id}`);
      if (isSame() && isOver(run) && run.end === null && ["completed", "failed", "cancelled"].includes(told.status)) {
        Object.assign(run, { model: told.model, agent: told.agent });
        end(state, run.id, told.status, told);
        preferAgent();
      }
    }
  } catch {
    // The transcript is there without it.
  }
  if (isSame()) draw();
}

/** Reads the page of messages before those that are shown. */
async function showEarlier() {
  const [id, from, { epoch, before }] = [current, visit, state];
  if (isReading || before === null) return;
  isReading = true;
  try {
    const page = await api.get(`/conversations/${id}/messages?limit=${PAGE}&before=${encodeURIComponent(before)}`);
    if (from !== visit || epoch !== state.epoch || before !== state.before) return;
    prepend(state, page);
    keepsPlace = true;
    draw();
  } catch (error) {
    composer.say(api.words(error));
  } finally {
    isReading = false;
  }
}

/** The events of a run up to one. How full the context was is told by the last ones only. */
async function eventsOf(run, head) {
  const events = [];
  let cursor = null;
  for (let page = 0; page < RECALLED_PAGES; page += 1) {
    const answer = await api.get(`/runs/${run}/events?limit=100${cursor === null ? "" : `&cursor=${cursor}`}`);
    events.push(...answer.data.filter((event) => event.seq <= head));
    cursor = answer.next_cursor;
    if (cursor === null || answer.data.at(-1)?.seq >= head) return events;
  }
  return events.filter((event) => event.type !== "context.budget");
}

// Actions of the user.

async function send(content, text, choice, key) {
  if (current === null) {
    const from = visit;
    const { run } = await api.post("/runs", { input: content, ...choice, on_busy: undefined }, key);
    // If the user has opened another conversation meanwhile, the page stays there.
    if (from === visit) go(run.conversation_id);
  } else {
    const id = current;
    const { message } = await api.post(`/conversations/${id}/messages`, { content, ...choice }, key);
    if (id === current) {
      if (!state.messages.has(message.id)) state.sent.set(message.id, text || "(files)");
      draw();
      toBottom();
    }
  }
  sidebar.refresh();
}

async function forgetModel() {
  if (current !== null) await api.patch(`/conversations/${current}`, { model: "" });
}

async function act(what, run) {
  try {
    await api.post(`/runs/${run}/${what}`);
    composer.say("");
  } catch (error) {
    composer.say(api.words(error));
  }
}

async function stop() {
  const run = active(state);
  if (run === null) return;
  byId("stop").disabled = true;
  try {
    await api.post(`/runs/${run.id}/cancel`);
  } catch (error) {
    composer.say(api.words(error));
    byId("stop").disabled = false;
  }
}

// Drawing: once per animation frame for all changes. A hidden tab is drawn rarely.

function draw() {
  if (!isDrawn) return;
  isDrawn = false;
  const paint = () => {
    if (isDrawn) return;
    isDrawn = true;
    const isAtEnd = atEnd();
    const below = scroller.scrollHeight - scroller.scrollTop;
    transcript.update(state);
    if (keepsPlace) scroller.scrollTop = scroller.scrollHeight - below;
    keepsPlace = false;
    drawHead();
    drawProgress();
    announce();
    if (isAtEnd) toBottom();
    byId("down").hidden = atEnd();
  };
  if (document.hidden) setTimeout(paint, 500);
  else requestAnimationFrame(paint);
}

// A hidden tab does not get the animation frame that it requested.
document.addEventListener("visibilitychange", () => {
  if (!isDrawn) {
    isDrawn = true;
    draw();
  }
  if (!document.hidden) {
    stream?.hurry();
    sidebar.refresh();
  }
});

function drawHead() {
  const title = current === null ? "New conversation" : brief(state.title || (state.loaded ? "Untitled" : "…"), 255);
  byId("title").textContent = title;
  document.title = current === null ? "Capstan" : `${title} · Capstan`;
  byId("presets").hidden = current !== null;
  byId("transcript").setAttribute("aria-busy", String(active(state) !== null));
}

function drawProgress() {
  const run = active(state);
  byId("progress").hidden = run === null;
  byId("busy-field").hidden = run === null;
  if (run === null || run.id !== shownRun) byId("stop").disabled = false;
  shownRun = run?.id ?? null;
  if (run !== null) byId("step").textContent = doing(run, state, mostRounds(run));
  document.body.classList.toggle("busy", run !== null && run.status !== "waiting");
  const { budget } = state;
  byId("context").hidden = budget === null || current === null;
  if (budget === null) return;
  const percent = Math.min(100, Math.round((100 * budget.used) / Math.max(1, budget.window)));
  byId("context-words").textContent = `Context ${percent} %`;
  byId("context").title = `${budget.tokenizer ? "" : "about "}${number(budget.used)} of ${number(budget.window)} ${budget.unit}; ${number(budget.remaining)} left`;
  byId("meter").setAttribute("aria-valuenow", String(percent));
  byId("meter").firstElementChild.style.width = `${percent}%`;
  byId("meter").classList.toggle("high", percent >= 80);
}

/** How many steps the agent of a run may take, once that is known. */
function mostRounds(run) {
  if (run.agent === null) return null;
  const key = `${run.agent}@${run.agentVersion}`;
  if (!agents.has(key)) {
    agents.set(key, null);
    api.get(`/agents/${encodeURIComponent(run.agent)}`).then((agent) => {
      const most = (agent.effective ?? agent.profile)?.max_rounds;
      agents.set(key, Number.isFinite(most) ? most : null);
      draw();
    }, () => {});
  }
  return agents.get(key);
}

/** Tells those who cannot see the page what has changed. */
function announce() {
  const asks = openAsks(state).length;
  const run = newest(state);
  const status = run?.status ?? "";
  let words = null;
  if (asks > announced.asks) words = "Something is asked of you.";
  else if (run !== null && run.id === announced.run && status !== announced.status) {
    words = { completed: "The answer is complete.", failed: "The run has failed.", cancelled: "Stopped." }[status] ?? null;
  }
  announced = { asks, run: run?.id ?? null, status };
  if (words !== null) byId("announcer").textContent = words;
  if (words !== null && run !== null && ["completed", "failed", "cancelled"].includes(status)) sidebar.refresh();
}

const scroller = byId("scroll");
const atEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;

function toBottom() {
  scroller.scrollTop = scroller.scrollHeight;
}

scroller.addEventListener("scroll", () => (byId("down").hidden = atEnd()), { passive: true });
byId("down").addEventListener("click", toBottom);

/** The connection: `null` if it is there, else the seconds until it is tried again. */
function notice(seconds) {
  const node = byId("notice");
  node.hidden = seconds === null;
  if (seconds === null) return node.replaceChildren();
  if (node.childElementCount === 0) {
    const now = h("button", { type: "button", class: "small" }, "Try now");
    now.addEventListener("click", () => stream?.hurry());
    // Screen readers announce only the first text, not each second.
    node.append(h("span", {}, "The connection is lost."), h("span", { id: "seconds", "aria-live": "off", "aria-hidden": "true" }), now);
  }
  byId("seconds").textContent = seconds > 0 ? ` Next try in ${seconds} s.` : " Trying…";
  return undefined;
}

// The key.

api.whenLockedOut(() => {
  const dialog = byId("key-dialog");
  if (dialog.open) return;
  const trouble = byId("key-trouble");
  trouble.hidden = !api.hasKey();
  trouble.textContent = "This key does not let you in.";
  api.forgetKey();
  dialog.showModal();
  byId("key").focus();
});

byId("key-dialog").addEventListener("cancel", (event) => event.preventDefault());
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("key").value.trim();
  byId("key").value = "";
  if (!api.keepKey(key)) {
    byId("key-trouble").textContent = "A key has no spaces and no letters beyond ASCII.";
    byId("key-trouble").hidden = false;
    return;
  }
  byId("key-dialog").close();
  begin();
});
byId("forget").addEventListener("click", () => {
  api.forgetKey();
  // The page drops everything that was loaded with the key.
  location.replace(location.pathname);
});

// The rest of the page.

const isMenuOpen = () => document.body.classList.contains("menu");

function setMenu(is) {
  document.body.classList.toggle("menu", is);
  byId("shade").hidden = !is;
  // The content behind the menu cannot get the keyboard focus either.
  document.querySelector("main").inert = is;
  byId("menu").setAttribute("aria-expanded", String(is));
  if (is) byId("new").focus();
}

function closeMenu() {
  if (!isMenuOpen()) return;
  setMenu(false);
  byId("menu").focus();
}

matchMedia("(min-width: 800px)").addEventListener("change", () => isMenuOpen() && setMenu(false));
byId("menu").append(icon("menu"));
byId("menu").addEventListener("click", () => setMenu(!isMenuOpen()));
byId("shade").addEventListener("click", closeMenu);
byId("new").addEventListener("click", () => {
  closeMenu();
  go(null);
  composer.focus();
});
byId("stop").addEventListener("click", stop);
byId("presets").append(h("p", {}, "Ask something, or try one of these:"), ...PRESETS.map((words) => {
  const preset = h("button", { type: "button", class: "preset" }, words);
  preset.addEventListener("click", () => composer.put(words));
  return preset;
}));

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]") !== null) return;
  if (isMenuOpen()) closeMenu();
  else if (!event.target.closest?.(".ask, #sidebar")) stop();
});
window.addEventListener("hashchange", () => wanted() !== current && show(wanted()));
window.addEventListener("online", () => stream?.hurry());
setInterval(() => !document.hidden && sidebar.refresh(), 30_000);

function begin() {
  byId("forget").hidden = !api.hasKey();
  sidebar.refresh();
  composer.offer();
  show(wanted());
}

begin();
