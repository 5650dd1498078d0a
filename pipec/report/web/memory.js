// Memory of the devices over time, under the schedule and on its time axis.
const CATEGORY = { weights: 'U', gradients: 'B', optimizer: 'H', activations: 'F', buffers: 'S' };

function memoryView(plan, gantt) {
  const t = plan.timeline;
  const curves = t.memory.map((m) => ({ time: column(m.time), held: column(m.held) }));
  if (!t.peaks.some((p) => p > 0)) return null;
  const there = new Map(plan.memory.map((m) => [m.device, m.memory_bytes]));
  let device = t.peaks.indexOf(Math.max(...t.peaks));
  const tall = 170, n = t.categories.length;
  const view = painted(tall, (g, width) => {
    const { time, held } = curves[device], wide = width - NAMES - 8, from = gantt.from, to = gantt.to;
    const limit = there.get(device) || 0, peak = t.peaks[device];
    const top = limit && limit < 1.6 * peak ? Math.max(limit, peak) * 1.06 : peak * 1.12;
    const x = (v) => NAMES + (v - from) / (to - from) * wide, y = (v) => tall - 20 - v / top * (tall - 32);
    g.clearRect(0, 0, width, tall);
    g.font = '11px system-ui, "DejaVu Sans", sans-serif';
    g.textAlign = 'right';
    for (const v of ticks(0, top, 4)) {
      g.fillStyle = css('--grid'); g.fillRect(NAMES, y(v), wide, 1);
      g.fillStyle = css('--soft'); g.fillText(bytes(v), NAMES - 8, y(v) + 4);
    }
    g.save(); g.beginPath(); g.rect(NAMES, 0, wide, tall); g.clip();
    const base = new Float64Array(time.length);
    t.categories.forEach((name, c) => {
      g.beginPath();
      g.moveTo(x(from), y(base[0] || 0));
      const upper = base.map((b, k) => b + held[k * n + c]);
      for (let k = 0; k < time.length; k++) {
        const until = k + 1 < time.length ? time[k + 1] : t.seconds;
        if (until < from || time[k] > to) continue;
        g.lineTo(x(time[k]), y(upper[k])); g.lineTo(x(until), y(upper[k]));
      }
      for (let k = time.length - 1; k >= 0; k--) {
        const until = k + 1 < time.length ? time[k + 1] : t.seconds;
        if (until < from || time[k] > to) continue;
        g.lineTo(x(until), y(base[k])); g.lineTo(x(time[k]), y(base[k]));
      }
      g.closePath();
      g.fillStyle = css(`--${CATEGORY[name] || 'S'}`);
      g.fill();
      base.set(upper);
    });
    if (limit && limit < top) { g.fillStyle = css('--bad'); g.fillRect(NAMES, y(limit), wide, 1.5); }
    g.restore();
    g.textAlign = 'left'; g.fillStyle = css('--ink');
    g.fillText(`device ${device}: peak ${bytes(peak)}${limit ? ` of ${bytes(limit)} (${percent(peak / limit)})` : ''}`, NAMES + 6, 11);
  }, { role: 'img', 'aria-label': 'Memory over time', mousemove: (e) => {
    const { time, held } = curves[device], wide = view.canvas.clientWidth - NAMES - 8;
    const at = gantt.from + (e.offsetX - NAMES) / wide * (gantt.to - gantt.from);
    let k = 0;
    while (k + 1 < time.length && time[k + 1] <= at) k++;
    const parts = t.categories.map((name, c) => `${name} ${bytes(held[k * n + c])}`);
    showTip(e, e.offsetX < NAMES ? '' : `device ${device} at ${seconds(at)}\n${parts.join('\n')}`);
  }, mouseleave: (e) => showTip(e, '') });
  gantt.listeners.push(() => view.paint());
  const choice = h('select', { 'aria-label': 'device', change: (e) => { device = Number(e.target.value); view.paint(); } },
    t.peaks.map((p, d) => h('option', { value: d, ...(d === device ? { selected: '' } : {}) }, `device ${d}: ${bytes(p)}`)));
  return h('div', null, h('div.head', { style: { display: 'flex', gap: '12px', alignItems: 'center', marginTop: '14px' } },
    h('h3', { style: { margin: 0 } }, 'memory'), choice, legend(t.categories.map((c) => [`var(--${CATEGORY[c] || 'S'})`, c]))), view.canvas);
}
