// The episode at a glance: phases, decisions, belief in the right answer, playhead.

const ROWS = { names: 14, phases: 18, plot: 54, axis: 16 };
const GUTTER = { left: 46, right: 14 };

class Timeline {
  constructor(canvas, seek) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.still = document.createElement("canvas"); // all but the playhead, drawn once per episode, size and theme
    this.painted = 0;
    const follow = (event) => {
      const across = event.clientX - canvas.getBoundingClientRect().left - GUTTER.left;
      seek(Math.round((across / this.width) * (this.episode.steps - 1)));
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      follow(event);
    });
    canvas.addEventListener("pointermove", (event) => canvas.hasPointerCapture(event.pointerId) && follow(event));
  }

  show(episode) {
    this.episode = episode;
    this.plot = episode.beliefs.length ? ROWS.plot : 0;
    this.canvas.style.height = `${ROWS.names + ROWS.phases + this.plot + ROWS.axis + 12}px`;
    this.#size();
    this.paint();
  }

  fit() {
    if (Math.round(this.canvas.clientWidth * devicePixelRatio) === this.canvas.width) return;
    this.#size();
    this.paint();
  }

  #size() {
    this.width = Math.max(1, this.canvas.clientWidth - GUTTER.left - GUTTER.right);
    for (const canvas of [this.canvas, this.still]) {
      canvas.width = Math.max(1, Math.round(this.canvas.clientWidth * devicePixelRatio)); // a hidden page has no size
      canvas.height = Math.max(1, Math.round(this.canvas.clientHeight * devicePixelRatio));
    }
  }

  across(step) {
    return GUTTER.left + (this.width * step) / Math.max(1, this.episode.steps - 1);
  }

  paint() {
    this.painted += 1;
    const context = this.still.getContext("2d");
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, this.canvas.clientWidth, this.canvas.clientHeight);
    context.font = "12px system-ui, sans-serif";
    this.#phases(context, ROWS.names + 2);
    this.#beliefs(context, ROWS.names + ROWS.phases + 8);
    this.#decisions(context);
    this.#axis(context, ROWS.names + ROWS.phases + this.plot + 12);
  }

  #phases(context, top) {
    const edges = (step) => Math.min(Math.max(this.across(step - 0.5), GUTTER.left), GUTTER.left + this.width);
    let first = 0;
    context.textBaseline = "middle";
    for (const [name, length] of this.episode.phases) {
      const [left, right] = [edges(first), edges(first + length)];
      context.fillStyle = cssColour(`--phase-${name}`) || cssColour("--faint");
      context.fillRect(left, top, Math.max(2, right - left - 1), ROWS.phases); // a decision is one step of maybe thousands
      if (context.measureText(name).width + 10 < right - left) {
        context.fillStyle = cssColour(`--on-phase-${name}`) || cssColour("--paper");
        context.textAlign = "left";
        context.fillText(name, left + 5, top + ROWS.phases / 2 + 1);
      }
      first += length;
    }
  }

  #beliefs(context, top) {
    if (!this.plot) return;
    const down = (share) => top + this.plot * (1 - share);
    context.textAlign = "right";
    context.lineWidth = 1;
    for (const share of [0, 1]) {
      context.fillStyle = cssColour("--faint");
      context.fillText(`${100 * share} %`, GUTTER.left - 6, down(share) + (share ? 4 : -3));
      context.fillStyle = cssColour("--edge");
      context.fillRect(GUTTER.left, down(share), this.width, 1);
    }
    context.setLineDash([3, 4]);
    context.strokeStyle = cssColour("--chance");
    for (const count of new Set(this.episode.beliefs.map((belief) => belief.choices.length))) {
      this.#line(context, [[GUTTER.left, down(1 / count)], [GUTTER.left + this.width, down(1 / count)]]);
    }
    context.setLineDash([]);
    context.lineWidth = 1.8;
    context.lineJoin = "round";
    this.episode.beliefs.forEach((belief, number) => {
      context.strokeStyle = cssColour(`--line-${number % LINES}`);
      this.#line(context, belief.shares.map((shares, step) => [this.across(step), down(shares[belief.truth])]));
    });
  }

  #decisions(context) {
    const { decisions } = this.episode;
    const bottom = ROWS.names + ROWS.phases + this.plot + 8;
    let free = 0; // where the next name may begin
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    decisions.forEach((step, number) => {
      const across = this.across(step);
      context.fillStyle = cssColour("--decision-line");
      context.fillRect(across - 0.75, ROWS.names - 1, 1.5, bottom - ROWS.names);
      const names = decisions.length > 1 ? [`decision ${number + 1}`, `${number + 1}`] : ["decision"];
      for (const name of names) {
        const width = context.measureText(name).width;
        const left = Math.min(Math.max(0, across - width / 2), GUTTER.left + this.width - width);
        if (left < free) continue;
        context.fillStyle = cssColour("--ink");
        context.fillText(name, left, ROWS.names - 4);
        free = left + width + 8;
        break;
      }
    });
  }

  #axis(context, top) {
    const { steps, hz } = this.episode;
    const seconds = (steps - 1) / hz;
    const every = [0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500].find((each) => (seconds / each) * 80 <= this.width) ?? 1000;
    context.fillStyle = cssColour("--faint");
    context.textBaseline = "top";
    context.textAlign = "center";
    for (let second = 0; second <= seconds + 1e-6; second += every) {
      context.fillText(`${second} s`, this.across(second * hz), top);
    }
  }

  #line(context, points) {
    context.beginPath();
    for (const point of points) context.lineTo(...point);
    context.stroke();
  }

  draw(step, label) {
    const context = this.context;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.still, 0, 0);
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    const across = this.across(step);
    const bottom = ROWS.names + ROWS.phases + this.plot + 10;
    context.fillStyle = cssColour("--ink");
    context.fillRect(across - 1, ROWS.names, 2, bottom - ROWS.names);
    context.beginPath();
    context.moveTo(across - 6, ROWS.names - 4);
    context.lineTo(across + 6, ROWS.names - 4);
    context.lineTo(across, ROWS.names + 6);
    context.fill();
    this.canvas.setAttribute("aria-label", label);
  }
}
