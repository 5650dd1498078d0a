// Two plans side by side, and a measured run over the prediction.

function compareView(a, b) {
  const both = [['one step', (p) => p.timeline?.seconds, seconds], ['bubble', (p) => p.timeline?.bubble, percent], ['slowest stage', (p) => p.balance?.slowest_seconds, seconds],
    ['mean over slowest', (p) => p.balance?.mean_over_slowest, percent], ['stages', (p) => p.stages.length, String], ['nodes', (p) => p.nodes.names.length, whole],
    ['bytes over all cuts', (p) => p.cuts.reduce((s, c) => s + c.nbytes, 0), bytes], ['most memory of a device', (p) => Math.max(0, ...p.memory.map((m) => m.needed_bytes)), bytes],
    ['schedule', (p) => p.timeline?.schedule ?? '–', String], ['microbatches', (p) => p.timeline?.microbatches ?? '–', String], ['devices', (p) => p.cluster, String], ['target', (p) => p.target, String]];
  const rows = both.map(([name, get, format]) => {
    const [x, y] = [get(a), get(b)], same = x === y;
    const change = typeof x === 'number' && typeof y === 'number' && x ? `${y >= x ? '+' : '−'}${percent(Math.abs(y / x - 1))}` : same ? '' : 'differs';
    return [name, x === undefined ? '–' : format(x), y === undefined ? '–' : format(y), h('span', { class: same ? 'faint' : 'change' }, same ? 'same' : change)];
  });
  const stages = (p) => { const s = column(p.nodes.stage); return new Map(p.nodes.names.map((n, k) => [n, s[k]])); };
  const [inA, inB] = [stages(a), stages(b)], moved = [], gone = [], added = [];
  for (const [name, stage] of inA) { if (!inB.has(name)) gone.push(name); else if (inB.get(name) !== stage) moved.push([name, stage, inB.get(name)]); }
  for (const name of inB.keys()) if (!inA.has(name)) added.push(name);
  const most = Math.max(a.stages.length, b.stages.length);
  const perStage = Array.from({ length: most }, (_, k) => [a.stages[k], b.stages[k]]).map(([x, y], k) => [chip(k), x ? seconds(stageSeconds(x)) : '–', y ? seconds(stageSeconds(y)) : '–', x ? whole(x.nodes) : '–', y ? whole(y.nodes) : '–',
    x ? bytes(x.weight_bytes) : '–', y ? bytes(y.weight_bytes) : '–', x && y && x.graph === y.graph ? h('span.faint', null, 'same graph') : 'another graph']);
  const crossing = (p) => new Map(p.cuts.flatMap((c) => c.values.map((v) => [v.value, v.nbytes])));
  const [ca, cb] = [crossing(a), crossing(b)];
  const cuts = [...new Set([...ca.keys(), ...cb.keys()])].filter((v) => ca.get(v) !== cb.get(v)).map((v) => [h('span.name', null, v), ca.has(v) ? bytes(ca.get(v)) : '', cb.has(v) ? bytes(cb.get(v)) : '']);
  const list = (title, names) => (names.length ? h('details', null, h('summary', null, `${whole(names.length)} ${title}`), h('p.name', null, names.slice(0, 400).join('  '))) : h('p.faint', null, `no ${title}`));
  return section('difference', 'Difference', null, table(['', '>A', '>B', '>change from A to B'], rows),
    h('h3', null, 'stage by stage'), table(['', '>A', '>B', '>nodes A', '>nodes B', '>weights A', '>weights B', ''], perStage),
    h('h3', null, 'nodes'), moved.length ? h('details', { open: '', id: 'moved' }, h('summary', null, `${whole(moved.length)} nodes on another stage`),
      table(['node', 'A', 'B'], moved.slice(0, 400).map(([n, x, y]) => [h('span.name', null, n), chip(x), chip(y)]))) : h('p.faint', null, 'no node on another stage'),
    list('nodes only in A', gone), list('nodes only in B', added),
    cuts.length ? h('details', null, h('summary', null, `${cuts.length} values cross in one plan only, or with another size`), table(['value', '>A', '>B'], cuts)) : '');
}

/** Measured actions by lane, and for each predicted action the one that ran. */
function measuredBy(measured) {
  const lanes = {}, byAction = new Map();
  for (const [device, lane, kind, stage, microbatch, begin, end] of measured.actions) {
    const a = { kind, stage, microbatch, begin, end };
    (lanes[`${device}.${lane}`] ||= []).push(a);
    byAction.set(`${device} ${kind} ${stage} ${microbatch}`, a);
  }
  return { lanes, byAction };
}

function measuredView(plan, gantt, measured) {
  const { byAction } = measuredBy(measured), groups = new Map(), { c, t } = gantt;
  gantt.measuredOf = (k) => byAction.get(`${t.lanes[c.lane[k]][0]} ${t.kinds[c.kind[k]]} ${c.stage[k]} ${c.microbatch[k] < 0 ? `@${c.version[k]}` : c.microbatch[k]}`);
  for (let k = 0; k < c.begin.length; k++) {
    const ran = gantt.measuredOf(k);
    if (!ran) continue;
    const key = `${c.stage[k]} ${t.kinds[c.kind[k]]}`, g = groups.get(key) || { stage: c.stage[k], kind: t.kinds[c.kind[k]], n: 0, predicted: 0, measured: 0 };
    g.n += 1; g.predicted += c.end[k] - c.begin[k]; g.measured += ran.end - ran.begin;
    groups.set(key, g);
  }
  const rows = [...groups.values()].map((g) => [chip(g.stage), g.kind, whole(g.n), seconds(g.predicted / g.n), seconds(g.measured / g.n), `${(g.measured / g.predicted).toFixed(2)}×`]);
  const matched = [...groups.values()].reduce((s, g) => s + g.n, 0);
  return section('measured', 'Measured over predicted', null,
    h('p', null, `Predicted ${seconds(t.seconds)}, measured ${seconds(measured.seconds)}: ${(measured.seconds / t.seconds).toFixed(2)} times the prediction. ${whole(matched)} actions are in both; in the schedule above, the thin bars are the measured ones.`),
    table(['', 'action', '>count', '>predicted', '>measured', '>ratio'], rows));
}
