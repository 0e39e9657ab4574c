// Pictures of one episode: decoded when they are needed, a few are kept, and the rest stays as text.

const KEPT = 64;

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index += 1) bytes[index] = text.charCodeAt(index);
  return bytes;
}

class Pictures {
  constructor(views) {
    this.views = views;
    this.decoded = new Map(); // in order of use, so that the first is the one to let go
    this.pending = new Map();
    this.closed = false;
  }

  size(view) {
    return this.views[view].size ?? [1, 1];
  }

  ready(view, index) {
    const key = `${view}:${index}`;
    const bitmap = this.decoded.get(key);
    if (bitmap) {
      this.decoded.delete(key);
      this.decoded.set(key, bitmap);
    }
    return bitmap;
  }

  decode(view, index) {
    const key = `${view}:${index}`;
    if (!this.pending.has(key)) this.pending.set(key, this.#decode(key, this.views[view].unique[index]));
    return this.pending.get(key);
  }

  async #decode(key, base64) {
    const bitmap = await createImageBitmap(new Blob([bytesOf(base64)], { type: "image/webp" }));
    this.pending.delete(key);
    if (this.closed) {
      bitmap.close();
      return null;
    }
    this.decoded.set(key, bitmap);
    if (this.decoded.size > KEPT) {
      const [oldest, left] = this.decoded.entries().next().value;
      left.close(); // does not wait for the garbage collector
      this.decoded.delete(oldest);
    }
    return bitmap;
  }

  prefetch(view, indices) {
    for (const index of indices) if (!this.decoded.has(`${view}:${index}`)) this.decode(view, index);
  }

  close() {
    this.closed = true;
    for (const bitmap of this.decoded.values()) bitmap.close();
    this.decoded.clear();
  }
}

// A canvas that shows pictures of one view, each with a drawing on top.
class Screen {
  constructor(canvas, pictures, view) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.pictures = pictures;
    this.view = view;
    this.shown = null; // index of the picture on the canvas
    this.asked = 0;
    this.answered = 0;
    const [width, height] = pictures.size(view);
    canvas.style.aspectRatio = `${width} / ${height}`;
    this.fit();
  }

  get settled() {
    return this.asked === this.answered;
  }

  // Sharp on every screen: as many pixels as the screen has for it.
  fit() {
    const [width, height] = this.pictures.size(this.view);
    const across = Math.max(1, Math.round(this.canvas.clientWidth * devicePixelRatio));
    if (across === this.canvas.width) return;
    this.canvas.width = across;
    this.canvas.height = Math.round((across * height) / width);
  }

  // While a picture is decoded the last one stays. Pictures that arrive late are painted too unless a later one was quicker:
  // otherwise nothing would move while somebody drags.
  async show(index, decorate) {
    const turn = (this.asked += 1);
    const bitmap = this.pictures.ready(this.view, index) ?? (await this.pictures.decode(this.view, index));
    if (!bitmap || turn < this.answered) return;
    this.answered = turn;
    this.shown = index;
    this.context.imageSmoothingQuality = "high";
    this.context.drawImage(bitmap, 0, 0, this.canvas.width, this.canvas.height);
    decorate(this.context, this.canvas.width, this.canvas.height);
  }
}
