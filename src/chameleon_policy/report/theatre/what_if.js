// Counterfactuals: the same decision with an edited memory, against the memory as it was.

const UNEDITED = "as it was";
const PLOT = { width: 340, height: 250, edge: 34 };

class WhatIf {
  constructor(changed) {
    this.changed = changed;
    this.playing = false;
    this.frame = 0;
    element("edit-play").addEventListener("click", () => this.play(!this.playing));
    element("edit-scrubber").addEventListener("input", (event) => {
      this.play(false);
      this.seek(event.target.valueAsNumber);
    });
  }

  show(episode, pictures) {
    this.play(false);
    this.episode = episode;
    this.edits = episode.counterfactuals;
    this.selected = null;
    this.screen = null;
    element("what-if").hidden = !this.edits.length;
    if (!this.edits.length) return;
    this.#choices();
    // No mark for the right answer here: with several decisions it need not be the same at each of them.
    this.bars = makeBars(element("edit-bars"), episode.beliefs[0]?.choices ?? [], { both: true });
    if (this.edits.some((edit) => edit.frames.length)) {
      this.screen = new Screen(element("edit-picture"), pictures, episode.first_view);
    }
    element("edit-film").hidden = !this.screen;
    this.select(this.edits.findIndex((edit) => edit.name !== UNEDITED)); // or 0
  }

  #choices() {
    const parts = [...new Set(this.edits.map((edit) => edit.step))].sort((a, b) => a - b).map((step) => {
      const number = this.episode.decisions.indexOf(step) + 1;
      const group = make("fieldset", "edit-group");
      make("legend", "", group).textContent =
        `${number ? `Decision ${number}, step` : "Step"} ${step} (${(step / this.episode.hz).toFixed(1)} s)`;
      this.edits.forEach((edit, index) => {
        if (edit.step !== step) return;
        const label = make("label", "edit", group);
        const input = make("input", "", label);
        Object.assign(input, { type: "radio", name: "edit", value: String(index) });
        input.addEventListener("change", () => {
          this.select(index);
          this.play(!matchMedia("(prefers-reduced-motion: reduce)").matches);
          this.changed();
        });
        make("span", "", label).textContent = edit.name;
      });
      return group;
    });
    element("edit-choices").replaceChildren(...parts);
  }

  select(index) {
    this.selected = Math.min(Math.max(0, index), this.edits.length - 1);
    const edit = this.edits[this.selected];
    const group = this.edits.filter((each) => each.step === edit.step);
    const before = group.find((each) => each.name === UNEDITED) ?? group[0];
    element("edit-choices").querySelector(`input[value="${this.selected}"]`).checked = true;
    element("edit-explanation").textContent = edit.explanation;
    element("edit-name").textContent = edit.name;
    this.#verdict(edit);
    this.bars.forEach((bar, choice) => {
      const [was, is] = [before.shares[choice] ?? 0, edit.shares[choice] ?? 0];
      bar.set(is, `${percent(was)} → ${percent(is)}`);
      bar.setBefore(was);
    });
    drawPlans(element("top-view"), this.episode, group, before, edit);
    element("edit-scrubber").max = String(Math.max(0, edit.frames.length - 1));
    this.seek(0);
  }

  #verdict(edit) {
    const follows = edit.chosen === edit.asks_for;
    const parts = ["This memory asks for ", strong(edit.asks_for), "; the policy then took ", strong(edit.chosen ?? "nothing"), ". "];
    const verdict = make("span", follows ? "verdict good" : "verdict bad");
    verdict.textContent = follows ? "✓ It follows this memory." : "✗ It does not follow this memory.";
    element("edit-verdict").replaceChildren(...parts, verdict);
  }

  seek(frame) {
    this.frame = frame;
    this.draw();
  }

  draw() {
    const edit = this.edits?.[this.selected];
    if (!this.screen || !edit?.frames.length) return;
    const seconds = `${(this.frame / this.episode.hz).toFixed(1)} s after the decision`;
    element("edit-scrubber").value = String(this.frame);
    element("edit-scrubber").setAttribute("aria-valuetext", seconds);
    element("edit-picture").setAttribute("aria-label", `What the policy does with memory "${edit.name}", ${seconds}`);
    this.screen.show(edit.frames[this.frame], () => {});
  }

  play(on) {
    this.playing = on && Boolean(this.screen);
    element("edit-play").textContent = this.playing ? "Pause" : "Play";
    element("edit-play").setAttribute("aria-label", `${this.playing ? "Pause" : "Play"} what follows`);
    if (!this.playing) return;
    const begin = performance.now() - (1000 * this.frame) / this.episode.hz;
    const turn = (now) => {
      if (!this.playing) return;
      const { length } = this.edits[this.selected].frames;
      const frame = Math.floor((Math.max(0, now - begin) / 1000) * this.episode.hz) % length;
      if (frame !== this.frame) this.seek(frame);
      this.request = requestAnimationFrame(turn);
    };
    cancelAnimationFrame(this.request);
    this.request = requestAnimationFrame(turn);
  }

  get settled() {
    return !this.screen || this.screen.settled;
  }
}

// Seen from above, the way the third camera looks at the robot: x points away from it (down), y to its left (right).
function drawPlans(svg, episode, group, before, edit) {
  const tool = episode.positions[edit.step];
  const points = [...Object.values(episode.candidates), ...group.flatMap((each) => each.plan), tool];
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const middle = [(Math.min(...xs) + Math.max(...xs)) / 2, (Math.min(...ys) + Math.max(...ys)) / 2];
  const scale = Math.min(
    (PLOT.height - 2 * PLOT.edge) / Math.max(0.05, Math.max(...xs) - Math.min(...xs)),
    (PLOT.width - 2 * PLOT.edge) / Math.max(0.05, Math.max(...ys) - Math.min(...ys)),
  );
  const place = ([x, y]) => [PLOT.width / 2 + scale * (y - middle[1]), PLOT.height / 2 + scale * (x - middle[0])];
  const path = (plan) => plan.map((point) => place(point).map((pixel) => pixel.toFixed(1)).join(",")).join(" ");
  svg.setAttribute("viewBox", `0 0 ${PLOT.width} ${PLOT.height}`);
  const parts = [];
  const add = (tag, attributes, text) => {
    const part = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) part.setAttribute(name, value);
    if (text !== undefined) part.textContent = text;
    parts.push(part);
  };
  const labels = nameplates(Object.fromEntries(Object.entries(episode.candidates).map(([name, at]) => [name, place(at)])));
  for (const [name, position] of Object.entries(episode.candidates)) {
    const [x, y] = place(position);
    add("circle", { class: name === edit.asks_for ? "candidate asked" : "candidate", cx: x, cy: y, r: 12 });
    if (name === edit.chosen) add("text", { class: "taken", x, y: y + 5 }, "✓");
    add("text", { class: "candidate-name", ...labels[name] }, name);
  }
  add("polyline", { class: "plan before", points: path([tool, ...before.plan]) });
  if (edit !== before) add("polyline", { class: "plan after", points: path([tool, ...edit.plan]) });
  const [x, y] = place(tool);
  add("circle", { class: "tool", cx: x, cy: y, r: 4 });
  add("text", { class: "small", x, y: y - 10 }, "tool");
  add("line", { class: "ruler", x1: 12, x2: 12 + 0.1 * scale, y1: PLOT.height - 10, y2: PLOT.height - 10 });
  add("text", { class: "small left", x: 18 + 0.1 * scale, y: PLOT.height - 6 }, "10 cm");
  add("text", { class: "small right", x: PLOT.width - 8, y: PLOT.height - 6 }, "robot ↑");
  svg.replaceChildren(...parts);
  const was = nearest(episode.candidates, before.plan);
  const is = nearest(episode.candidates, edit.plan);
  svg.setAttribute("aria-label", `Seen from above: as it was the plan ends nearest to ${was}; with "${edit.name}", to ${is}`);
}

// Where names can stand without covering each other: above their candidate, below it, or further away.
function nameplates(places) {
  const taken = [];
  return Object.fromEntries(Object.entries(places).map(([name, [x, y]]) => {
    const half = Math.min(PLOT.width / 2, 3.6 * name.length);
    const centre = clamp(x, half, PLOT.width - half);
    const free = (row) => taken.every((each) => Math.abs(each.row - row) >= 14 || Math.abs(each.x - centre) >= each.half + half);
    const row = [y - 17, y + 26, y - 32, y + 41, y - 47].find(free) ?? y - 17;
    taken.push({ row, x: centre, half });
    return [name, { x: centre, y: row }];
  }));
}

function nearest(candidates, plan) {
  const [x, y] = plan.at(-1) ?? [0, 0];
  const far = ([, [a, b]]) => Math.hypot(a - x, b - y);
  return Object.entries(candidates).sort((one, other) => far(one) - far(other))[0]?.[0] ?? "nothing";
}
