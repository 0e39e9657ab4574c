// Inputs of the theatre: the address, keys, controls, the window.

// ---- the address keeps the moment, so that it can be shared -------------------------------------------

let writing = 0;
function remember() {
  writing ||= setTimeout(() => {
    writing = 0;
    history.replaceState(null, "", `#${address()}`);
  }, 250); // browsers refuse to do this hundreds of times in a row
}

function address() {
  const { step, layer, head, overlay } = state;
  const parts = { episode: state.episode + 1, step, layer: layer + 1, head: head === MEAN ? "mean" : head + 1 };
  if (whatIf.selected !== null) parts.edit = whatIf.selected + 1;
  return new URLSearchParams({ ...parts, heat: overlay ? "on" : "off" }).toString();
}

function restore() {
  const found = new URLSearchParams(location.hash.slice(1));
  const whole = (name, least) => Math.max(least, Number.parseInt(found.get(name), 10) || least);
  state.step = whole("step", 0);
  state.layer = whole("layer", 1) - 1;
  state.head = whole("head", 0) - 1; // `mean` is no number, and becomes MEAN
  state.overlay = found.get("heat") !== "off";
  open(whole("episode", 1) - 1);
  if (found.has("edit") && whatIf.edits.length) whatIf.select(whole("edit", 1) - 1);
}

// ---- controls ------------------------------------------------------------------------------------------------------

const KEYS = {
  " ": () => (playing ? pause() : play()),
  ArrowLeft: (event) => seek(state.step - (event.shiftKey ? 10 : 1)),
  ArrowRight: (event) => seek(state.step + (event.shiftKey ? 10 : 1)),
  Home: () => seek(0),
  End: () => seek(episode.steps - 1),
  d: nextDecision,
  l: () => attention.layers && change("layer", (state.layer + 1) % attention.layers),
  h: () => attention.heads && change("head", ((state.head + 2) % (attention.heads + 1)) - 1), // MEAN, 0, 1, ... and again
  "[": () => openNeighbour(-1),
  "]": () => openNeighbour(1),
};

// A focused control keeps the keys that it needs itself; the scrubber's are ours, since they do the same and more.
function takenBy(target, key) {
  if (target.id === "scrubber") return false;
  if (target.matches("select, video")) return key !== "[" && key !== "]";
  if (target.matches("input, button, a, summary")) return key.length > 1 || key === " ";
  return false;
}

document.addEventListener("keydown", (event) => {
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (!Object.hasOwn(KEYS, key) || event.ctrlKey || event.metaKey || event.altKey || takenBy(event.target, key)) return;
  event.preventDefault();
  KEYS[key](event);
});

function on(id, kind, act) {
  element(id).addEventListener(kind, (event) => act(event.target, event));
}

on("episode", "change", (target) => open(target.selectedIndex));
on("previous-episode", "click", () => openNeighbour(-1));
on("next-episode", "click", () => openNeighbour(1));
on("layer", "change", (target) => change("layer", Number(target.value)));
on("head", "change", (target) => change("head", Number(target.value)));
on("overlay", "change", (target) => change("overlay", target.checked));
on("scrubber", "input", (target) => seek(target.valueAsNumber));
on("back", "click", () => seek(state.step - 1));
on("forward", "click", () => seek(state.step + 1));
on("play", "click", () => (playing ? pause() : play()));
// After a choice with the mouse the keys should act on the theatre again, not on the list.
for (const list of document.querySelectorAll("#theatre select")) {
  let pointed = false;
  list.addEventListener("pointerdown", () => (pointed = true));
  list.addEventListener("keydown", () => (pointed = false));
  list.addEventListener("change", () => pointed && list.blur());
}

window.addEventListener("hashchange", restore);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colours.clear();
  timeline.paint();
  schedule();
});
restore();
new ResizeObserver(() => {
  for (const camera of cameras) camera.screen.fit();
  timeline.fit();
  whatIf.screen?.fit();
  whatIf.draw();
  schedule();
}).observe(element("theatre"));

// For tests and the console.
window.theatre = {
  get episode() { return state.episode; },
  get step() { return state.step; },
  get layer() { return state.layer; },
  get head() { return state.head; },
  get overlay() { return state.overlay; },
  get counterfactual() { return whatIf.selected; },
  get playing() { return playing; },
  get shownFrame() { return Object.fromEntries(cameras.map(({ view, screen }) => [view, screen.shown])); },
  get shownAfter() { return whatIf.screen?.shown ?? null; },
  get decoded() { return pictures.decoded.size; },
  get drawn() { return { ...drawn, timeline: timeline.painted }; },
  get settled() { return !scheduled && whatIf.settled && cameras.every((camera) => camera.screen.settled); },
};
