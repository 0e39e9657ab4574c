// The memory theatre: one state and one drawing per animation frame.

const LINES = 6; // colours of lines in the style
const state = { episode: 0, step: 0, layer: 0, head: MEAN, overlay: true };
const drawn = { stage: 0 };
let episode, pictures, attention, cameras, beliefBars, recallBars;
let scheduled = false;
let playing = false;

const element = (id) => document.getElementById(id);
const percent = (share) => `${Math.round(100 * share)} %`;
const clamp = (value, low, high) => Math.min(Math.max(low, value), high);

function make(tag, classes, parent) {
  const made = document.createElement(tag);
  if (classes) made.className = classes;
  parent?.append(made);
  return made;
}

function strong(text) {
  const made = make("b");
  made.textContent = text;
  return made;
}

// Canvases do not know the style sheet. Asking it is slow, so answers are kept until the theme changes.
const colours = new Map();
function cssColour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return colours.get(name);
}

// Rows of name, bar and number that are made once and then only change their width and text.
function makeBars(parent, names, { right, chance, both } = {}) {
  parent.replaceChildren();
  const longest = Math.max(0, ...names.map((name) => name.length));
  parent.style.setProperty("--name", `${clamp(longest + 3, 8, 22)}ch`); // one column for all rows, with room for the mark
  return names.map((name, index) => {
    const row = make("div", index === right ? "reading is-right" : "reading", parent);
    row.hidden = !name; // a token that stands for nothing that the policy observes
    const label = make("span", "name", row);
    label.textContent = name;
    label.title = name;
    const track = make("span", both ? "track both" : "track", row);
    const before = both ? make("span", "fill before", track) : null;
    const fill = make("span", "fill", track);
    if (chance) make("i", "chance", track).style.left = `${100 * chance}%`;
    const number = make("span", "number", row);
    return {
      set(share, text) {
        fill.style.width = `${(100 * clamp(share, 0, 1)).toFixed(2)}%`;
        number.textContent = text;
      },
      setBefore(share) {
        before.style.width = `${(100 * clamp(share, 0, 1)).toFixed(2)}%`;
      },
    };
  });
}

const timeline = new Timeline(element("timeline"), (step) => seek(step));
const whatIf = new WhatIf(() => remember());

// ---- choosing an episode -------------------------------------------------------------------------------------------

function open(number) {
  pause();
  pictures?.close();
  state.episode = clamp(number, 0, element("episode").options.length - 1);
  episode = JSON.parse(element(`episode-${state.episode}`).textContent);
  pictures = new Pictures(episode.pictures);
  attention = new Attention(episode.attention, episode.steps, episode.layout);
  episode.phaseAt = episode.phases.flatMap(([name, length]) => Array(length).fill(name));
  state.step = clamp(state.step, 0, episode.steps - 1);
  state.layer = clamp(state.layer, 0, Math.max(0, attention.layers - 1));
  state.head = clamp(state.head, MEAN, attention.heads - 1);
  element("episode").selectedIndex = state.episode;
  element("outcome").textContent = episode.outcome;
  element("outcome").className = episode.success ? "badge good" : "badge bad";
  element("answer").textContent = `The answer was: ${episode.answer}`;
  element("scrubber").max = String(episode.steps - 1);
  showCameras();
  showBeliefs();
  showRecall();
  timeline.show(episode);
  whatIf.show(episode, pictures);
  schedule();
}

function showCameras() {
  const views = Object.keys(episode.frames);
  element("cameras").replaceChildren();
  element("cameras").style.setProperty("--views", String(views.length));
  element("cameras").hidden = !views.length;
  cameras = views.map((view) => {
    const figure = make("figure", "camera", element("cameras"));
    const canvas = make("canvas", "", figure);
    canvas.setAttribute("role", "img");
    const caption = make("figcaption", "", figure);
    const camera = { view, canvas, caption, grid: attention.empty ? undefined : attention.views[view], pointed: null };
    camera.screen = new Screen(canvas, pictures, view);
    canvas.addEventListener("pointermove", (event) => point(camera, patchUnder(camera, event)));
    canvas.addEventListener("pointerleave", () => point(camera, null));
    return camera;
  });
}

function showBeliefs() {
  const parent = element("belief-bars");
  element("beliefs").hidden = !episode.beliefs.length;
  parent.replaceChildren();
  beliefBars = episode.beliefs.map((belief, number) => {
    const heading = make("h4", "", parent);
    make("i", "swatch", heading).style.background = `var(--line-${number % LINES})`;
    heading.append(belief.question);
    const bars = make("div", "bars", parent);
    bars.style.setProperty("--fill", `var(--line-${number % LINES})`);
    return makeBars(bars, belief.choices, { right: belief.truth, chance: 1 / belief.choices.length });
  });
}

function showRecall() {
  element("no-recall").hidden = !attention.empty;
  element("recall-choices").hidden = attention.empty;
  const numbered = (count) => [...Array(count).keys()].map((number) => new Option(String(number + 1), String(number)));
  element("layer").replaceChildren(...numbered(attention.layers));
  element("head").replaceChildren(new Option("mean", String(MEAN)), ...numbered(attention.heads));
  element("heat-scale").hidden = !cameras.some((camera) => camera.grid);
  recallBars = makeBars(element("recall-bars"), attention.empty ? [] : attention.names);
  element("recall-scale").textContent = "";
}

// ---- drawing -------------------------------------------------------------------------------------------------------

function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    draw();
    remember();
  });
}

function draw() {
  const { step } = state;
  const clock = `step ${step} of ${episode.steps - 1}, ${episode.phaseAt[step]}, ${(step / episode.hz).toFixed(1)} s`;
  drawRecall(clock);
  episode.beliefs.forEach((belief, number) =>
    belief.shares[step].forEach((share, choice) => beliefBars[number][choice].set(share, percent(share))));
  const believed = episode.beliefs.map(({ question, shares, truth }) => `${question} ${percent(shares[step][truth])}`);
  timeline.draw(step, `Timeline, ${clock}. Belief in the right answer: ${believed.join(", ") || "not probed"}`);
  element("scrubber").value = String(step);
  element("scrubber").setAttribute("aria-valuetext", clock);
  element("clock").textContent = clock;
  drawn.stage += 1;
}

function drawRecall(clock) {
  const { step, layer, head, overlay } = state;
  const scale = attention.empty ? null : attention.scale(layer, head);
  if (scale) {
    const totals = attention.totals(attention.at(step, layer, head));
    recallBars.forEach((bar, index) => bar.set(totals[index] / scale.bar, percent(totals[index])));
    element("layer").value = String(layer);
    element("head").value = String(head);
    element("overlay").checked = overlay;
    element("recall-scale").textContent = scale.bar < 1 ? `A full bar is ${percent(scale.bar)}.` : "";
    element("heat-end").textContent = percent(scale.heat);
  }
  for (const camera of cameras) {
    camera.screen.show(episode.frames[camera.view][step], (context, width, height) => {
      if (camera.grid && overlay) {
        const shares = attention.at(step, layer, head); // again: the picture may have come later than its step
        drawHeat(context, width, height, camera.grid, episode.layout.margin, shares, scale.heat);
      }
      if (step === state.step) prefetch(camera, step);
    });
    describe(camera, clock);
  }
}

function prefetch(camera, step) {
  const near = [step + 1, step + 2, step + 3, step - 1].filter((each) => each >= 0 && each < episode.steps);
  pictures.prefetch(camera.view, near.map((each) => episode.frames[camera.view][each]));
}

function describe(camera, clock) {
  const { view, grid, pointed } = camera;
  let text = `${view} camera`;
  if (grid) {
    const shares = attention.at(state.step, state.layer, state.head);
    const index = Object.keys(attention.views).indexOf(view);
    text = `${view} camera: ${percent(attention.totals(shares)[index])} of recall`;
    if (pointed !== null) {
      const [row, column] = [Math.floor(pointed / grid.columns) + 1, (pointed % grid.columns) + 1];
      text = `row ${row}, column ${column}: ${(100 * shares[grid.first + pointed]).toFixed(1)} % of recall`;
    }
  }
  camera.caption.textContent = text;
  if (clock) camera.canvas.setAttribute("aria-label", `${text}, ${clock}`);
}

function patchUnder(camera, event) {
  if (!camera.grid) return null;
  const bounds = camera.canvas.getBoundingClientRect();
  const { margin } = episode.layout;
  const inside = (share) => (share - margin) / (1 - 2 * margin);
  const row = Math.floor(inside((event.clientY - bounds.top) / bounds.height) * camera.grid.rows);
  const column = Math.floor(inside((event.clientX - bounds.left) / bounds.width) * camera.grid.columns);
  const within = row >= 0 && row < camera.grid.rows && column >= 0 && column < camera.grid.columns;
  return within ? row * camera.grid.columns + column : null;
}

function point(camera, patch) {
  camera.pointed = patch;
  describe(camera);
}

// ---- moving --------------------------------------------------------------------------------------------------------

function seek(step) {
  state.step = clamp(step, 0, episode.steps - 1);
  schedule();
}

function play() {
  if (state.step === episode.steps - 1) seek(0);
  playing = true;
  showPlaying();
  let [last, owed] = [performance.now(), 0];
  const turn = (now) => {
    if (!playing) return;
    owed += ((now - last) / 1000) * episode.hz * Number(element("speed").value);
    last = now;
    if (owed >= 1) seek(state.step + Math.floor(owed));
    owed %= 1;
    if (state.step === episode.steps - 1) pause();
    else requestAnimationFrame(turn);
  };
  requestAnimationFrame(turn);
}

function pause() {
  playing = false;
  showPlaying();
}

function showPlaying() {
  element("play").textContent = playing ? "Pause" : "Play";
  element("play").setAttribute("aria-label", playing ? "Pause" : "Play");
}

function nextDecision() {
  const { decisions } = episode;
  if (decisions.length) seek(decisions.find((step) => step > state.step) ?? decisions[0]);
}

function change(name, value) {
  state[name] = value;
  schedule();
}

function openNeighbour(distance) {
  const count = element("episode").options.length;
  open((state.episode + distance + count) % count);
}
