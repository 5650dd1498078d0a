// What every view uses: the data, elements without markup, units, colours, the tooltip.
const DATA = JSON.parse(document.getElementById('data').textContent);

const ARRAYS = { u8: Uint8Array, i16: Int16Array, i32: Int32Array, f32: Float32Array, f64: Float64Array };

/** A column of numbers as a typed array. */
function column(packed) {
  const [kind] = Object.keys(packed);
  const text = atob(packed[kind]);
  const bytes = new Uint8Array(text.length);
  for (let k = 0; k < text.length; k++) bytes[k] = text.charCodeAt(k);
  return new ARRAYS[kind](bytes.buffer);
}

/** An element; attributes by name, functions as listeners, everything else as text or children. */
function h(tag, attributes, ...children) {
  const [name, ...classes] = tag.split('.');
  const element = document.createElement(name || 'div');
  if (classes.length) element.className = classes.join(' ');
  for (const [key, value] of Object.entries(attributes || {})) {
    if (typeof value === 'function') element.addEventListener(key, value);
    else if (key === 'style') Object.assign(element.style, value);
    else if (value !== undefined && value !== null) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== ''));
  return element;
}

function table(columns, rows) {
  const cell = (kind, k, content) => h(kind + (columns[k].startsWith('>') ? '.num' : ''), null, content);
  const head = columns.map((c, k) => cell('th', k, c.replace('>', '')));
  return h('div.wide', null, h('table', null,
    h('thead', null, h('tr', null, head)),
    h('tbody', null, rows.map((row) => h('tr', null, row.map((c, k) => cell('td', k, c)))))));
}

function scaled(value, unit, steps) {
  if (value === null || value === undefined || !isFinite(value)) return '–';
  if (value === 0) return `0 ${unit}`;
  for (const [factor, prefix] of steps) {
    if (Math.abs(value) >= factor * 0.9995) return `${Number((value / factor).toPrecision(3))} ${prefix}${unit}`;
  }
  return `${Number(value.toPrecision(3))} ${unit}`;
}
const LARGE = [[1e15, 'P'], [1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k'], [1, '']];
const seconds = (v) => scaled(v, 's', [[1, ''], [1e-3, 'm'], [1e-6, 'µ'], [1e-9, 'n']]);
const bytes = (v) => scaled(v, 'B', LARGE);
const count = (v) => scaled(v, '', LARGE).trim();
const percent = (v, digits = 1) => (v === null || !isFinite(v) ? '–' : `${(100 * v).toFixed(digits)} %`);
const whole = (v) => Math.round(v).toLocaleString('en-US');

/** The colour of a stage: few stages have quiet hues of their own, many run through the spectrum. */
const HUES = ['#3f74b8', '#2f968c', '#7d62b3', '#bd7433', '#4d8f52', '#b2587f', '#64798d', '#9a8433'];
const STAGES = Math.max(...DATA.plans.map((p) => p.stages.length), 1);
function stageColor(stage) {
  if (stage < 0) return 'var(--faint)';
  if (STAGES <= HUES.length) return HUES[stage];
  return `hsl(${212 + 250 * stage / (STAGES - 1)} 42% ${stage % 2 ? 43 : 52}%)`;
}
const KIND = {
  F: ['F', 'forward'], B: ['B', 'backward'], I: ['I', 'gradients of inputs'], W: ['W', 'gradients of weights'],
  OFFLOAD: ['H', 'to and from the host'], FETCH: ['H', 'to and from the host'],
  REDUCE_GRAD: ['R', 'all-reduce'], STEP: ['U', 'step'],
};
const kindColor = (kind) => (KIND[kind] || ['S'])[0];
const kindName = (kind) => (KIND[kind] || ['S', 'message'])[1];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const chip = (stage) => h('span.chip', { style: { background: stageColor(stage) } }, stage < 0 ? '–' : String(stage));

const tip = h('div', { id: 'tip', role: 'status' });
function showTip(event, text) {
  tip.textContent = text;
  tip.style.visibility = text ? 'visible' : 'hidden';
  if (!text) return;
  const [width, height] = [tip.offsetWidth, tip.offsetHeight];
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18}px`;
}

/** A canvas as sharp as the screen, drawn anew when its width, the theme or the paper changes. */
const REDRAWN = [];
function painted(height, draw, attributes) {
  const canvas = h('canvas', attributes);
  const paint = () => {
    const width = canvas.clientWidth || 1200;
    const ratio = window.devicePixelRatio || 1;
    const tall = typeof height === 'function' ? height() : height;
    canvas.width = width * ratio;
    canvas.height = tall * ratio;
    canvas.style.height = `${tall}px`;
    const context = canvas.getContext('2d');
    context.scale(ratio, ratio);
    draw(context, width, tall);
  };
  REDRAWN.push(paint);
  new ResizeObserver(paint).observe(canvas);
  return { canvas, paint };
}

/** Multiples of 1, 2 or 5 times a power of ten between two numbers. */
function ticks(from, to, most) {
  const span = (to - from) / most;
  if (!(span > 0)) return [from];
  const size = 10 ** Math.floor(Math.log10(span));
  const step = [1, 2, 5, 10].map((n) => n * size).find((s) => s >= span);
  const found = [];
  for (let n = Math.ceil(from / step - 1e-9); n * step <= to * (1 + 1e-9); n++) found.push(n * step);
  return found;
}

function section(id, title, tools, ...content) {
  return h('section', { id, 'aria-label': title },
    h('div.head', null, h('h2', null, title), tools ? h('div.tools', null, tools) : null), ...content);
}
function legend(items) {
  return h('div.legend', null, items.map(([color, text]) => h('span', null, h('i', { style: { background: color } }), text)));
}
