// The attention of recall, and its colours.

const MEAN = -1; // the head that stands for the mean over all
const HEAT = [[0, [40, 11, 84]], [0.35, [159, 42, 99]], [0.65, [236, 104, 38]], [1, [252, 255, 164]]];
const HEAT_OPACITY = 0.85;
const VEIL = { patches: "rgba(12, 8, 28, 0.3)", margin: "rgba(12, 8, 28, 0.6)" }; // pale tables would outshine the heat

class Attention {
  constructor({ layers, heads, tokens, bytes }, steps, layout) {
    Object.assign(this, { layers, heads, tokens, steps, layout });
    this.bytes = bytesOf(bytes);
    this.shares = new Float32Array(tokens); // of the last call of `at`: one array for all steps
    this.scales = new Map();
    this.patches = 0;
    this.views = {};
    for (const [view, [rows, columns]] of Object.entries(layout.views)) {
      this.views[view] = { first: this.patches, rows, columns };
      this.patches += rows * columns;
    }
    this.names = [...Object.keys(this.views).map((view) => `${view} camera`), ...layout.others];
  }

  get empty() {
    return this.layers * this.heads === 0;
  }

  at(step, layer, head) {
    this.shares.fill(0);
    const heads = head === MEAN ? [...Array(this.heads).keys()] : [head];
    for (const each of heads) {
      const start = ((step * this.layers + layer) * this.heads + each) * this.tokens;
      let total = 0;
      for (let token = 0; token < this.tokens; token += 1) total += this.bytes[start + token];
      const weight = 1 / (heads.length * (total || 1)); // bytes of a row are shares up to a factor
      for (let token = 0; token < this.tokens; token += 1) this.shares[token] += weight * this.bytes[start + token];
    }
    return this.shares;
  }

  // One number per name: all patches of a view together, then every other token.
  totals(shares) {
    const views = Object.values(this.views).map(({ first, rows, columns }) =>
      shares.subarray(first, first + rows * columns).reduce((sum, share) => sum + share, 0));
    return [...views, ...shares.subarray(this.patches)];
  }

  // Colours and bars mean the same at every step: their scale is that of the whole episode.
  scale(layer, head) {
    const key = `${layer}:${head}`;
    if (!this.scales.has(key)) {
      let [heat, bar] = [0, 0];
      for (let step = 0; step < this.steps; step += 1) {
        const shares = this.at(step, layer, head);
        for (let token = 0; token < this.patches; token += 1) heat = Math.max(heat, shares[token]);
        bar = Math.max(bar, ...this.totals(shares));
      }
      this.scales.set(key, { heat: heat || 1, bar: [0.1, 0.25, 0.5].find((end) => bar <= end) ?? 1 });
    }
    return this.scales.get(key);
  }
}

function heatColour(share) {
  const after = Math.max(1, HEAT.findIndex(([position]) => position >= share));
  const [[low, from], [high, to]] = [HEAT[after - 1], HEAT[after]];
  const mixed = from.map((value, channel) => Math.round(value + ((to[channel] - value) * (share - low)) / (high - low)));
  return `rgba(${mixed}, ${(HEAT_OPACITY * share ** 0.7).toFixed(3)})`;
}

// The picture's margin was cut away before it became patches.
function patchBox({ rows, columns }, margin, patch, width, height) {
  const [row, column] = [Math.floor(patch / columns), patch % columns];
  const [across, down] = [(width * (1 - 2 * margin)) / columns, (height * (1 - 2 * margin)) / rows];
  return [width * margin + column * across, height * margin + row * down, across, down];
}

function drawHeat(context, width, height, grid, margin, shares, end) {
  const [left, top] = [width * margin, height * margin];
  context.fillStyle = VEIL.patches;
  context.fillRect(left, top, width - 2 * left, height - 2 * top);
  context.fillStyle = VEIL.margin; // the policy does not see it
  context.beginPath();
  context.rect(0, 0, width, height);
  context.rect(left, top, width - 2 * left, height - 2 * top);
  context.fill("evenodd");
  context.lineWidth = 1;
  context.strokeStyle = "rgba(255, 255, 255, 0.2)";
  for (let patch = 0; patch < grid.rows * grid.columns; patch += 1) {
    const box = patchBox(grid, margin, patch, width, height);
    context.fillStyle = heatColour(Math.min(1, shares[grid.first + patch] / end));
    context.fillRect(...box);
    context.strokeRect(...box);
  }
}
