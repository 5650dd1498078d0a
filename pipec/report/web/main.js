// The page: its views in order, navigation, light and dark.
function planViews(plan, extras, { prefix = '', span } = {}) {
  const found = [], t = plan.timeline;
  found.push(stagesView(plan, prefix));
  if (t) {
    const measured = extras.measured && !prefix ? measuredBy(extras.measured).lanes : null;
    const longest = Math.max(span || t.seconds, measured ? extras.measured.seconds : 0);
    const gantt = new Gantt(t, { measured, span: longest, prefix });
    const hidden = t.actions > gantt.c.begin.length ? h('p.warn', null, `The first ${whole(gantt.c.begin.length)} of ${whole(t.actions)} actions are drawn.`) : '';
    found.push(section('schedule' + prefix.trim(), 'Schedule', gantt.tools(),
      h('p.soft', null, `${t.schedule}: ${t.devices} devices, ${t.microbatches} microbatches, ${whole(t.actions)} actions that take time. Drag to move, Ctrl and wheel or + and − to zoom, numbers are microbatches.`),
      hidden, legend(gantt.kinds()), gantt.element, memoryView(plan, gantt) || ''));
    if (measured) found.push(measuredView(plan, gantt, extras.measured));
    PAGE.gantts.push(gantt);
  }
  const tree = new Tree(plan);
  PAGE.trees.push(tree);
  found.push(section('model' + prefix.trim(), 'Model', [tree.found, tree.search], tree.element));
  const explored = explorationView(plan, prefix);
  if (explored) found.push(explored);
  return found;
}

const PAGE = { gantts: [], trees: [] };
function start() {
  const saved = matchMedia('(prefers-color-scheme: dark)');
  const theme = (dark) => { document.documentElement.dataset.theme = dark ? 'dark' : 'light'; REDRAWN.forEach((paint) => paint()); };
  theme(saved.matches);
  saved.addEventListener('change', (e) => theme(e.matches));
  const [a, b] = DATA.plans, content = [];
  if (b) {
    const span = Math.max(a.timeline?.seconds || 0, b.timeline?.seconds || 0);
    content.push(h('h1', null, `${a.model || 'model'} — A and B`), h('p.soft', null, `A: ${a.cluster}, ${a.timeline?.schedule ?? 'no schedule'}. B: ${b.cluster}, ${b.timeline?.schedule ?? 'no schedule'}. pipec ${DATA.pipec}`), compareView(a, b));
    for (const [plan, name] of [[a, 'A'], [b, 'B']]) content.push(h('h1', { style: { marginTop: '36px' } }, `Plan ${name}`), ...planViews(plan, {}, { prefix: `${name} `, span }));
  } else {
    content.push(summary(a), ...planViews(a, DATA));
    if (DATA.engines) content.push(enginesView(DATA.engines));
    if (DATA.verify) content.push(verifyView(DATA.verify));
    if (DATA.metrics) content.push(metricsView(DATA.metrics));
  }
  const sections = content.filter((e) => e.tagName === 'SECTION');
  const links = sections.map((s) => h('a', { href: `#${s.id}` }, s.getAttribute('aria-label') + (b && /[AB]$/.test(s.id) ? ` ${s.id.slice(-1)}` : '')));
  const dark = h('button', { title: 'light or dark', 'aria-label': 'light or dark', click: () => theme(document.documentElement.dataset.theme !== 'dark') }, '◐');
  document.title = b ? `pipec: ${a.model}, A and B` : `pipec: ${a.model}`;
  document.body.append(h('header.top', null, h('div', null, h('b', null, 'pipec report'), h('nav', { 'aria-label': 'views' }, links), dark)), h('main', null, content), tip);
  REDRAWN.forEach((paint) => paint());
  addEventListener('beforeprint', () => theme(false));
  document.documentElement.dataset.ready = 'yes';
}
start();
