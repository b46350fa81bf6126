// The heat map of experts: layers down, experts across, darker the more often chosen.  One canvas, which keys and
// screen readers can use, too.

const kMostRatio = 4;  // times the layer's mean: the darkest

function colorsOf(element) {
  const style = getComputedStyle(element);
  const read = (name) => {
    const hex = style.getPropertyValue(name).trim();
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  };
  return {stops: [read('--heat-0'), read('--heat-1'), read('--heat-2')], mark: style.getPropertyValue('--warn'),
          chosen: style.getPropertyValue('--ink'), ground: style.getPropertyValue('--paper')};
}

// `heat` in [0, 1].
function heatColor(stops, heat) {
  const at = Math.min(1, Math.max(0, heat)) * 2;
  const [from, to] = at < 1 ? [stops[0], stops[1]] : [stops[1], stops[2]];
  const part = at < 1 ? at : at - 1;
  return `rgb(${from.map((value, i) => Math.round(value + (to[i] - value) * part)).join(' ')})`;
}

class HeatMap {
  // on_choose(layer, expert): a cell was clicked, or Enter pressed; on_move: the keys or the pointer moved there.
  constructor(canvas, on_move, on_choose) {
    this.canvas = canvas;
    this.rows = [];       // [layer] of {ratio: [expert], many: [expert]}
    this.cell = null;     // {layer, expert} under keys
    this.chosen = null;
    this.on_move = on_move;
    this.on_choose = on_choose;
    canvas.addEventListener('click', (event) => this.pick(event, true));
    canvas.addEventListener('pointermove', (event) => this.pick(event, false));
    canvas.addEventListener('keydown', (event) => this.onKey(event));
    canvas.addEventListener('focus', () => this.draw());
    canvas.addEventListener('blur', () => this.draw());
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
  }

  show(rows) {
    this.rows = rows;
    this.draw();
  }

  size() {
    const layers = this.rows.length, experts = layers ? this.rows[0].ratio.length : 0;
    const room = this.canvas.parentElement.clientWidth - 4;
    const width = Math.min(80, Math.max(9, Math.floor(room / Math.max(1, experts))));
    const height = Math.min(26, Math.max(9, Math.min(width, Math.floor(520 / Math.max(1, layers)))));
    return {layers, experts, width, height};
  }

  draw() {
    const {layers, experts, width, height} = this.size();
    if (!layers) return;
    const scale = devicePixelRatio || 1;
    this.canvas.width = experts * width * scale;
    this.canvas.height = layers * height * scale;
    this.canvas.style.width = experts * width + 'px';
    this.canvas.style.height = layers * height + 'px';
    const pen = this.canvas.getContext('2d');
    pen.scale(scale, scale);
    const colors = colorsOf(this.canvas);
    const gap = width > 12 ? 2 : 1;
    this.rows.forEach((row, layer) => row.ratio.forEach((ratio, expert) => {
      const x = expert * width, y = layer * height;
      pen.fillStyle = heatColor(colors.stops, ratio / kMostRatio);
      pen.fillRect(x, y, width - gap, height - gap);
      if (!row.many[expert]) return;
      pen.beginPath();
      pen.arc(x + width - gap - 4, y + 4, Math.min(2.5, width / 4), 0, 7);
      pen.fillStyle = colors.mark;
      pen.fill();
    }));
    const frame = (cell, dashes) => {
      pen.setLineDash(dashes);
      pen.lineWidth = 2;
      pen.strokeStyle = colors.chosen;
      pen.strokeRect(cell.expert * width + 1, cell.layer * height + 1, width - gap - 2, height - gap - 2);
    };
    if (this.chosen) frame(this.chosen, []);
    if (this.cell && document.activeElement === this.canvas) frame(this.cell, [3, 2]);
  }

  pick(event, choose) {
    const {layers, experts, width, height} = this.size();
    const cell = {layer: Math.floor(event.offsetY / height), expert: Math.floor(event.offsetX / width)};
    if (cell.layer < 0 || cell.layer >= layers || cell.expert < 0 || cell.expert >= experts) return;
    if (choose) return this.choose(cell);
    if (event.pointerType === 'mouse') this.on_move(cell.layer, cell.expert);
  }

  choose(cell) {
    this.cell = this.chosen = cell;
    this.draw();
    this.on_choose(cell.layer, cell.expert);
  }

  onKey(event) {
    const {layers, experts} = this.size();
    const cell = this.cell || {layer: 0, expert: 0};
    const to = {
      ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -experts],
      End: [0, experts],
    }[event.key];
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      return this.choose(cell);
    }
    if (!to) return;
    event.preventDefault();
    const within = (value, count) => Math.min(count - 1, Math.max(0, value));
    this.cell = this.cell ? {layer: within(cell.layer + to[0], layers), expert: within(cell.expert + to[1], experts)} : cell;
    this.draw();
    const {width} = this.size();
    const scroll = this.canvas.parentElement;
    const x = this.cell.expert * width;
    if (x < scroll.scrollLeft) scroll.scrollLeft = x;
    if (x + width > scroll.scrollLeft + scroll.clientWidth) scroll.scrollLeft = x + width - scroll.clientWidth;
    this.on_move(this.cell.layer, this.cell.expert);
  }
}

function drawLegend(canvas) {
  const pen = canvas.getContext('2d');
  const {stops} = colorsOf(canvas);
  for (let x = 0; x < canvas.width; ++x) {
    pen.fillStyle = heatColor(stops, x / (canvas.width - 1));
    pen.fillRect(x, 0, 1, canvas.height);
  }
}
