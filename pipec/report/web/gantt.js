// The schedule as a Gantt chart: lanes from top to bottom, time from left to right.
const NAMES = 104, AXIS = 24;

/** Columns of a timeline as arrays, and the actions of each lane in order of time. */
function unpackTimeline(t) {
  const c = {};
  for (const name of ['lane', 'kind', 'stage', 'microbatch', 'version', 'begin', 'end', 'critical']) c[name] = column(t[name]);
  c.isCritical = new Uint8Array(c.begin.length);
  for (const k of c.critical) c.isCritical[k] = 1;
  c.of = t.lanes.map(() => []);
  for (let k = 0; k < c.lane.length; k++) c.of[c.lane[k]].push(k);
  for (const row of c.of) row.sort((a, b) => c.begin[a] - c.begin[b]);
  return c;
}

class Gantt {
  constructor(t, { measured = null, span = t.seconds, prefix = '' } = {}) {
    Object.assign(this, { t, c: unpackTimeline(t), measured, prefix, full: span, from: 0, to: span });
    Object.assign(this, { links: false, critical: false, byStage: false, listeners: [] });
    this.view = painted(() => this.height(), (g, w, tall) => this.draw(g, w, tall), {
      tabindex: 0, role: 'img', 'aria-label': `Schedule ${t.schedule}: ${t.devices} devices, ${t.actions} actions`,
      mousemove: (e) => this.hover(e), mouseleave: (e) => { this.drag = null; showTip(e, ''); },
      mousedown: (e) => { this.drag = { x: e.clientX, from: this.from, to: this.to }; },
      mouseup: () => { this.drag = null; }, keydown: (e) => this.key(e), dblclick: () => this.zoom(0, this.full),
    });
    this.view.canvas.addEventListener('wheel', (e) => {
      if (!e.ctrlKey && !e.shiftKey) return;
      e.preventDefault();
      this.around(this.timeAt(e.offsetX), e.deltaY > 0 ? 1.25 : 0.8);
    }, { passive: false });
    this.element = h('div.plot', { style: { maxHeight: '640px' } }, this.view.canvas);
    this.arrange();
  }

  /** Which lanes are shown, compute first in each device. */
  arrange() {
    const compute = (n) => this.t.lanes[n][1].startsWith('compute');
    this.rows = this.t.lanes.map((_, n) => n).filter((n) => compute(n) || (this.links && this.c.of[n].length))
      .sort((a, b) => this.t.lanes[a][0] - this.t.lanes[b][0] || compute(b) - compute(a) || (this.t.lanes[a][1] < this.t.lanes[b][1] ? -1 : 1));
    const most = this.rows.length;
    this.tall = (most > 160 ? 7 : most > 64 ? 12 : most > 24 ? 17 : 24) + (this.measured ? 7 : 0);
  }
  height() { return Math.min(AXIS + this.rows.length * this.tall + 6, 16000); }
  x(time) { return NAMES + (time - this.from) / (this.to - this.from) * this.wide; }
  timeAt(x) { return this.from + (x - NAMES) / this.wide * (this.to - this.from); }

  draw(g, width, tall) {
    const { c, t } = this;
    this.wide = width - NAMES - 8;
    const colors = Object.fromEntries(['F', 'B', 'I', 'W', 'S', 'H', 'R', 'U'].map((k) => [k, css(`--${k}`)]));
    const [ink, soft, grid, mark, card] = ['--ink', '--soft', '--grid', '--mark', '--card'].map(css);
    g.clearRect(0, 0, width, tall);
    g.font = '11px system-ui, "DejaVu Sans", sans-serif';
    for (const time of ticks(this.from, this.to, Math.max(3, Math.floor(this.wide / 110)))) {
      g.fillStyle = grid; g.fillRect(Math.round(this.x(time)), AXIS - 4, 1, tall);
      g.fillStyle = soft; g.textAlign = 'center'; g.fillText(seconds(time), Math.min(this.x(time), width - 22), 14);
    }
    this.rows.forEach((lane, row) => {
      const top = AXIS + row * this.tall, [device, name] = t.lanes[lane];
      if (this.tall > 9 || row % 4 === 0) {
        g.textAlign = 'right'; g.fillStyle = name.startsWith('compute') ? ink : soft;
        g.fillText(name === 'compute' ? `device ${device}` : `${device} ${name}`, NAMES - 8, top + Math.min(this.tall / 2 + 4, 14));
      }
      g.save(); g.beginPath(); g.rect(NAMES, top, this.wide, this.tall); g.clip();
      this.boxes(g, this.c.of[lane], top, this.tall - (this.measured ? 8 : 2), c, colors, mark, card);
      if (this.measured) this.measuredBoxes(g, device, name, top + this.tall - 8, colors);
      g.restore();
    });
  }

  /** The actions of one lane that are in sight; what is narrower than a pixel is drawn once. */
  boxes(g, actions, top, tall, c, colors, mark, card) {
    let low = 0, high = actions.length;
    while (low < high) { const mid = (low + high) >> 1; if (c.end[actions[mid]] < this.from) low = mid + 1; else high = mid; }
    let last = -1;
    for (let n = low; n < actions.length; n++) {
      const k = actions[n];
      if (c.begin[k] > this.to) break;
      const left = this.x(c.begin[k]), right = this.x(c.end[k]), wide = Math.max(right - left, 0.7);
      if (right < last + 0.6) continue;
      last = right;
      const gap = wide > 4 ? 1 : 0, kind = this.t.kinds[c.kind[k]];
      const dim = this.critical && !c.isCritical[k];
      g.globalAlpha = dim ? 0.22 : 1;
      g.fillStyle = this.byStage ? stageColor(c.stage[k]) : colors[kindColor(kind)];
      g.fillRect(left, top, wide - gap, tall);
      if (wide > 2 && c.microbatch[k] % 2 && !this.byStage) { g.fillStyle = 'rgb(255 255 255 / 17%)'; g.fillRect(left, top, wide - gap, tall); }
      if (this.critical && c.isCritical[k]) { g.fillStyle = mark; g.fillRect(left, top + tall - 2, wide - gap, 2); }
      const label = c.microbatch[k] < 0 ? '' : String(c.microbatch[k]);
      if (tall > 10 && label && wide > 6 + 6.2 * label.length) {
        g.fillStyle = '#fff'; g.textAlign = 'center'; g.fillText(label, left + (wide - gap) / 2, top + tall / 2 + 4);
      }
    }
    g.globalAlpha = 1;
  }

  measuredBoxes(g, device, name, top, colors) {
    for (const a of this.measured[`${device}.${name}`] || []) {
      if (a.end < this.from || a.begin > this.to) continue;
      g.fillStyle = colors[kindColor(a.kind)];
      g.fillRect(this.x(a.begin), top, Math.max(this.x(a.end) - this.x(a.begin) - 0.5, 0.7), 5);
    }
  }

  /** The action under the pointer, or -1. */
  at(event) {
    const lane = this.rows[Math.floor((event.offsetY - AXIS) / this.tall)], time = this.timeAt(event.offsetX);
    if (lane === undefined || event.offsetX < NAMES) return -1;
    const slack = (this.to - this.from) / this.wide;
    return this.c.of[lane].find((k) => this.c.begin[k] - slack <= time && time <= this.c.end[k] + slack) ?? -1;
  }
  describe(k) {
    const { c, t } = this, kind = t.kinds[c.kind[k]];
    const lines = [`${this.prefix}${kind} ${c.microbatch[k] < 0 ? '' : `of microbatch ${c.microbatch[k]} `}on stage ${c.stage[k]}`,
      `${seconds(c.begin[k])} to ${seconds(c.end[k])}, takes ${seconds(c.end[k] - c.begin[k])}`];
    if (t.training && c.version[k] >= 0) lines.push(`weight version ${c.version[k]}`);
    const ran = this.measuredOf && this.measuredOf(k);
    if (ran) lines.push(`measured ${seconds(ran.end - ran.begin)}: ${((ran.end - ran.begin) / (c.end[k] - c.begin[k])).toFixed(2)} times the prediction`);
    if (c.isCritical[k]) lines.push('on the critical path');
    return lines.join('\n');
  }
  hover(event) {
    if (this.drag) {
      const by = (this.drag.x - event.clientX) / this.wide * (this.drag.to - this.drag.from);
      this.zoom(this.drag.from + by, this.drag.to + by);
      return;
    }
    const k = this.at(event);
    showTip(event, k < 0 ? '' : this.describe(k));
  }
  key(event) {
    const span = this.to - this.from, middle = (this.from + this.to) / 2;
    const moves = {
      '+': () => this.around(middle, 0.7), '=': () => this.around(middle, 0.7), '-': () => this.around(middle, 1 / 0.7),
      ArrowLeft: () => this.zoom(this.from - span / 5, this.to - span / 5),
      ArrowRight: () => this.zoom(this.from + span / 5, this.to + span / 5), 0: () => this.zoom(0, this.full), Home: () => this.zoom(0, this.full),
    };
    if (moves[event.key]) { event.preventDefault(); moves[event.key](); }
  }
  around(time, factor) { this.zoom(time - (time - this.from) * factor, time + (this.to - time) * factor); }
  zoom(from, to) {
    const span = Math.min(Math.max(to - from, this.full / 1e5), this.full);
    this.from = Math.min(Math.max(from, 0), this.full - span);
    this.to = this.from + span;
    this.view.paint();
    this.listeners.forEach((listener) => listener(this.from, this.to));
  }

  tools() {
    const toggle = (text, name, title) => {
      const button = h('button', { 'aria-pressed': 'false', title, click: () => {
        this[name] = !this[name];
        button.setAttribute('aria-pressed', String(this[name]));
        this.arrange();
        this.view.paint();
      } }, text);
      return button;
    };
    const middle = () => (this.from + this.to) / 2;
    return [toggle('links', 'links', 'lanes of messages, host copies and reductions'),
      toggle('critical path', 'critical', 'what the time of a step consists of'), toggle('by stage', 'byStage', 'colour by stage'),
      h('button', { title: 'zoom in (+)', click: () => this.around(middle(), 0.6) }, '+'),
      h('button', { title: 'zoom out (-)', click: () => this.around(middle(), 1 / 0.6) }, '−'),
      h('button', { title: 'the whole step (0)', click: () => this.zoom(0, this.full) }, 'all')];
  }
  kinds() {
    const seen = new Map();
    for (const k of new Set(this.c.kind)) seen.set(kindName(this.t.kinds[k]), `var(--${kindColor(this.t.kinds[k])})`);
    return [...seen].map(([name, color]) => [color, name]);
  }
}
