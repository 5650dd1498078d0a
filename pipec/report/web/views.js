// Summary, stages and cuts, exploration, engines, errors, curves, measured run.

function summary(plan) {
  const t = plan.timeline, b = plan.balance, items = [];
  const peak = plan.memory.reduce((a, m) => (m.needed_bytes > a.needed_bytes ? m : a), plan.memory[0] || { needed_bytes: 0 });
  if (t) items.push([t.training ? 'one step' : 'one pass over all microbatches', seconds(t.seconds), `${t.schedule}, ${t.microbatches} microbatches`]);
  if (t) items.push(['bubble', percent(t.bubble), 'share of device time without compute']);
  if (b) items.push(['balance', percent(b.mean_over_slowest), b.proven ? 'mean over slowest; proven optimal cut' : `at most ${percent(b.gap)} above the optimum`]);
  items.push(['stages', String(plan.stages.length), `${whole(plan.nodes.names.length)} nodes, ${count(plan.weights)} weights`]);
  if (plan.memory.length) items.push(['most memory', bytes(peak.needed_bytes), peak.memory_bytes ? `${percent(peak.needed_bytes / peak.memory_bytes)} of device ${peak.device}` : `device ${peak.device}`]);
  return h('div', null, h('h1', null, plan.model || 'model'),
    h('p.soft', null, `on ${plan.cluster} for ${plan.target}; predicted, pipec ${DATA.pipec}`),
    h('div.cards', null, items.map(([k, v, n]) => h('div.card', null, h('div.k', null, k), h('div.v', null, v), h('div.n', null, n)))));
}

const stageSeconds = (s) => s.interval_seconds ?? s.seconds ?? 0;

function stagesView(plan, prefix) {
  const slowest = Math.max(...plan.stages.map(stageSeconds), 1e-30);
  const row = (s) => {
    const all = stageSeconds(s), compute = Math.min(s.compute_seconds ?? all, all), color = stageColor(s.stage);
    const bar = h('div.bar', { title: `compute ${seconds(compute)}, transfers ${seconds(all - compute)}` },
      h('i.second', { style: { width: `${100 * all / slowest}%`, background: color } }), h('i', { style: { width: `${100 * compute / slowest}%`, background: color } }));
    return [chip(s.stage), `${s.devices.join(', ')} ${s.device}`, bar, seconds(all), s.bottleneck || '', whole(s.nodes), bytes(s.weight_bytes), s.graph];
  };
  const used = plan.memory.map((m) => {
    const share = m.memory_bytes ? m.needed_bytes / m.memory_bytes : 0;
    return [`${m.device} ${m.kind}`, h('div.bar', null, h('i', { style: { width: `${Math.min(100, 100 * share)}%`, background: share > 1 ? 'var(--bad)' : 'var(--accent)' } })), bytes(m.needed_bytes), bytes(m.memory_bytes), percent(share)];
  });
  const notes = plan.stages.flatMap((s) => (s.notes || []).map((n) => [chip(s.stage), n]));
  const tied = Object.entries(plan.tied).map(([name, w]) => h('p.warn', null, `The weight ${name} is read by stages ${w.stages.join(', ')}.`));
  return section('stages' + prefix.trim(), 'Stages', null,
    legend([['var(--soft)', 'compute (full colour)'], ['var(--line)', 'transfers (pale)']]),
    h('div.stages', null, table(['', 'devices', 'interval against the slowest', '>', 'what limits it', '>nodes', '>weights', 'graph'], plan.stages.map(row))),
    cutsView(plan), h('h3', null, 'memory per device'), table(['device', 'needed', '>', '>there', '>used'], used), ...tied,
    notes.length ? h('details', null, h('summary', null, `${notes.length} notes`), table(['', 'note'], notes)) : '');
}

function cutsView(plan) {
  if (!plan.cuts.length) return '';
  const shown = h('div', { 'aria-live': 'polite' });
  const show = (cut) => shown.replaceChildren(h('h3', null, `values between stage ${cut.after} and stage ${cut.after + 1}`),
    table(['value', 'type', '>bytes'], cut.values.map((v) => [h('span.name', null, v.value), `${v.dtype}[${v.shape.join(',')}]`, bytes(v.nbytes)])));
  const flow = plan.stages.flatMap((s, k) => {
    const box = h('div.stage', { style: { background: stageColor(s.stage) } }, h('b', null, `stage ${s.stage}`), h('span', null, `${seconds(stageSeconds(s))}, ${whole(s.nodes)} nodes`));
    const cut = plan.cuts[k];
    return cut ? [box, h('button.cut', { title: 'which values', click: () => show(cut) }, `${cut.values.length} value${cut.values.length === 1 ? '' : 's'}`, h('br'), bytes(cut.nbytes))] : [box];
  });
  return h('div', null, h('h3', null, 'what crosses each cut'), h('div.flow', null, flow), shown);
}

function explorationView(plan, prefix) {
  const found = plan.explored.filter((t) => t.seconds !== null && t.peak_bytes.length);
  if (!plan.explored.length) return null;
  const most = (t) => Math.max(...t.peak_bytes), [X, Y] = [Math.max(...found.map((t) => t.seconds)), Math.max(...found.map(most))].map((v) => v * 1.06);
  const tall = 320, points = [];
  const view = painted(tall, (g, width) => {
    const x = (v) => 76 + v / X * (width - 100), y = (v) => tall - 34 - v / Y * (tall - 52);
    g.clearRect(0, 0, width, tall);
    g.font = '11px system-ui, "DejaVu Sans", sans-serif';
    for (const v of ticks(0, X, 8)) { g.fillStyle = css('--grid'); g.fillRect(x(v), 10, 1, tall - 44); g.fillStyle = css('--soft'); g.textAlign = 'center'; g.fillText(seconds(v), x(v), tall - 18); }
    for (const v of ticks(0, Y, 5)) { g.fillStyle = css('--grid'); g.fillRect(76, y(v), width - 100, 1); g.fillStyle = css('--soft'); g.textAlign = 'right'; g.fillText(bytes(v), 70, y(v) + 4); }
    g.textAlign = 'center'; g.fillText('predicted time of a step', width / 2, tall - 4);
    points.length = 0;
    for (const t of [...found].reverse()) {
      const chosen = t.why === 'chosen', at = [x(t.seconds), y(most(t))];
      g.beginPath(); g.arc(...at, chosen ? 7 : 4.5, 0, 7);
      g.fillStyle = chosen ? css('--mark') : css('--accent'); g.globalAlpha = chosen ? 1 : 0.6; g.fill(); g.globalAlpha = 1;
      if (chosen) { g.textAlign = 'left'; g.fillStyle = css('--ink'); g.fillText(t.schedule, at[0] + 11, at[1] + 4); }
      points.push([...at, t]);
    }
  }, { role: 'img', 'aria-label': 'candidates by time and memory', mousemove: (e) => {
    const near = points.map(([px, py, t]) => [(px - e.offsetX) ** 2 + (py - e.offsetY) ** 2, t]).sort((a, b) => a[0] - b[0])[0];
    showTip(e, near && near[0] < 140 ? `${near[1].schedule}\n${seconds(near[1].seconds)}, bubble ${percent(near[1].bubble)}, ${bytes(most(near[1]))}\n${near[1].why}` : '');
  }, mouseleave: (e) => showTip(e, '') });
  const rows = plan.explored.map((t) => [t.schedule, t.why, seconds(t.seconds), t.seconds === null ? '' : percent(t.bubble), t.peak_bytes.length ? bytes(most(t)) : '']);
  return section('exploration' + prefix.trim(), 'Exploration', null, h('p.soft', null, `${plan.explored.length} candidates were predicted; each point is one, the chosen one is marked.`),
    found.length ? view.canvas : '', table(['candidate', 'why', '>step', '>bubble', '>memory'], rows));
}

function verifyView(report) {
  const floor = 1e-10, log = (v) => Math.max(0, Math.log10(Math.max(v, floor) / floor));
  const rows = report.boundaries.map((b) => {
    const allowed = b.tolerance, wide = Math.max(log(allowed) * 1.25, 1);
    const bar = h('div.bar', { title: 'logarithmic: the line is what is allowed' },
      h('i', { style: { width: `${Math.min(100, 100 * log(b.relative_error) / wide)}%`, background: b.ok ? 'var(--good)' : 'var(--bad)' } }),
      h('i', { style: { left: `${100 * log(allowed) / wide}%`, width: '2px', background: 'var(--ink)' } }));
    return [chip(b.stage), h('span.name', null, b.name), b.kind, bar, Number(b.relative_error).toExponential(1), Number(allowed).toExponential(1), h('span', { class: b.ok ? 'good' : 'bad' }, b.ok ? 'ok' : 'off')];
  });
  const off = report.boundaries.filter((b) => !b.ok).length, blind = report.boundaries.filter((b) => b.tolerance >= 1 && b.relative_error > 0).length;
  return section('verify', 'Verification', null, h('p', { class: off || blind ? 'bad' : 'good' }, off ? `${off} of ${rows.length} values are off.` : blind ? `Nothing is known of ${blind} of ${rows.length} values: zeros would do.` : `All ${rows.length} values agree with the original model.`),
    table(['', 'value', 'kind', 'relative error', '>', '>allowed', ''], rows));
}

/** A curve over the steps, whose numbers are given; null breaks the line. */
function curve(title, steps, values, format) {
  const tall = 180, known = values.filter((v) => v !== null), top = Math.max(...known), bottom = Math.min(0, ...known);
  if (!known.length) return '';
  const view = painted(tall, (g, width) => {
    const x = (k) => 64 + (values.length > 1 ? k / (values.length - 1) : 0.5) * (width - 80), y = (v) => tall - 24 - (v - bottom) / ((top - bottom) || 1) * (tall - 40);
    g.clearRect(0, 0, width, tall);
    g.font = '11px system-ui, "DejaVu Sans", sans-serif';
    for (const v of ticks(bottom, top, 4)) { g.fillStyle = css('--grid'); g.fillRect(64, y(v), width - 80, 1); g.fillStyle = css('--soft'); g.textAlign = 'right'; g.fillText(format(v), 58, y(v) + 4); }
    g.textAlign = 'center'; for (const k of ticks(0, values.length - 1, 8)) if (Number.isInteger(k)) g.fillText(String(steps[k]), x(k), tall - 8);
    g.strokeStyle = css('--accent'); g.lineWidth = 1.8; g.beginPath();
    let pen = false;
    values.forEach((v, k) => { if (v === null) { pen = false; return; } if (pen) g.lineTo(x(k), y(v)); else g.moveTo(x(k), y(v)); pen = true; });
    g.stroke();
  }, { role: 'img', 'aria-label': title, mousemove: (e) => {
    const k = Math.round((e.offsetX - 64) / (view.canvas.clientWidth - 80) * (values.length - 1));
    showTip(e, values[k] === undefined || values[k] === null ? '' : `step ${steps[k]}: ${format(values[k])}`);
  }, mouseleave: (e) => showTip(e, '') });
  return h('div', null, h('h3', null, title), view.canvas);
}

function metricsView(rows) {
  const short = (v) => Number(v.toPrecision(4)).toString(), numbers = rows.map((s) => s.step);
  return section('run', 'Run', null, h('p.soft', null, `${rows.length} steps`), h('div.two', null,
    curve('loss', numbers, rows.map((s) => s.loss ?? null), short), curve('samples per second', numbers, rows.map((s) => s.samples_per_second), short),
    curve('seconds per step', numbers, rows.map((s) => s.seconds), seconds)));
}

// Estimate beside report, the report in the warning colour where it is worse.
function vitisView(s) {
  const pair = (ours, theirs) => [whole(ours || 0), theirs === null || theirs === undefined ? '?' : h('span', { style: { color: theirs > ours ? 'var(--bad)' : 'inherit' } }, whole(theirs))];
  const kinds = ['dsp', 'bram36', 'lut', 'ff'];
  const row = (e) => [h('span.name', null, e.name), ...pair(e.ii, e.vitis.ii), ...pair(e.depth, e.vitis.depth), ...kinds.flatMap((k) => pair(e.resources[k], e.vitis.resources[k]))];
  const known = s.engines.filter((e) => e.vitis), total = kinds.flatMap((k) => pair(s.resources.estimate[k], s.vitis.resources[k]));
  const rows = [...known.map(row), [h('b', null, 'whole stage'), '', '', '', '', ...total]];
  const ran = s.vitis.cosimulated ? `; co-simulated in ${whole(s.vitis.cosimulated)} cycles` : '';
  return h('details', { open: '' }, h('summary', null, `Vitis HLS: ${known.length} of ${s.engines.length} engines reported, clock ${s.vitis.clock_ns} ns${ran}. Estimate, then report`),
    table(['engine', '>II', '>', '>stages', '>', ...kinds.flatMap((k) => [`>${k}`, '>'])], rows));
}

function enginesView(stages) {
  return section('engines', 'Engines', null, ...stages.map((s) => {
    const slowest = Math.max(...s.engines.map((e) => e.busy), 1);
    const resources = Object.entries(s.resources.limit).filter(([, limit]) => limit).map(([name, limit]) => {
      const share = (s.resources.estimate[name] || 0) / limit;
      return [name, h('div.bar', null, h('i', { style: { width: `${Math.min(100, 100 * share)}%`, background: share > 1 ? 'var(--bad)' : 'var(--accent)' } })), count(s.resources.estimate[name] || 0), count(limit), percent(share)];
    });
    const engines = s.engines.map((e) => [h('span.name', null, e.name), e.kind, h('div.bar', { title: `busy ${whole(e.busy)}, waiting ${whole(e.empty + e.full)}` },
      h('i.second', { style: { width: `${100 * (e.busy + e.empty + e.full) / Math.max(slowest, s.interval)}%`, background: 'var(--W)' } }),
      h('i', { style: { width: `${100 * e.busy / Math.max(slowest, s.interval)}%`, background: e.busy === slowest ? 'var(--mark)' : 'var(--F)' } })),
    whole(e.busy), e.simulated ? whole(e.empty + e.full) : '', e.waits_for || '', count(e.dsp || 0)]);
    const fifos = s.fifos.map((f) => [h('span.name', null, f.name), `${f.from} → ${f.to}`, whole(f.depth), whole(f.tokens), `${f.width_bits} bit`]);
    return h('div', null, h('h3', null, chip(s.stage), ` ${s.name} on ${s.device}: a frame every ${whole(s.interval)} cycles (${seconds(s.interval / s.clock_mhz / 1e6)} at ${s.clock_mhz} MHz), first result after ${whole(s.latency)}`),
      table(['resource', 'used', '>', '>there', '>'], resources),
      h('details', { open: '' }, h('summary', null, `${engines.length} engines: busy cycles of a frame, then waiting`), table(['engine', 'kind', 'cycles', '>busy', '>waits', 'for', '>DSP'], engines)),
      s.vitis ? vitisView(s) : null,
      h('details', null, h('summary', null, `${fifos.length} FIFOs`), table(['FIFO', 'from, to', '>depth', '>tokens per frame', '>width'], fifos)));
  }));
}
