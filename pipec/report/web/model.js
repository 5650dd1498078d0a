// The model as a hierarchy of layers, coloured by stage; every node with cost, bytes and origin.

/** Nodes by the path of the layer that they come from: a tree whose leaves are nodes. */
function modelTree(plan) {
  const n = plan.nodes, c = {};
  for (const name of ['op', 'path', 'layer', 'type', 'stage', 'seconds', 'flops', 'bytes', 'parameters', 'first', 'reads']) c[name] = column(n[name]);
  const readers = n.names.map(() => []);
  for (let k = 0; k < n.names.length; k++) for (let e = c.first[k]; e < c.first[k + 1]; e++) readers[c.reads[e]].push(k);
  const root = { name: plan.model || 'model', children: new Map(), nodes: [], depth: 0 };
  for (let k = 0; k < n.names.length; k++) {
    let at = root;
    for (const part of n.paths[c.path[k]].split(/[./]/).filter(Boolean)) {
      if (!at.children.has(part)) at.children.set(part, { name: part, children: new Map(), nodes: [], depth: at.depth + 1 });
      at = at.children.get(part);
    }
    at.nodes.push(k);
  }
  const sum = (item) => {
    item.seconds = item.flops = item.bytes = item.parameters = item.count = 0;
    item.stages = new Map();
    const add = (stage, s) => item.stages.set(stage, (item.stages.get(stage) || 0) + s);
    for (const k of item.nodes) {
      item.seconds += c.seconds[k]; item.flops += c.flops[k] || 0; item.bytes += c.bytes[k]; item.parameters += c.parameters[k]; item.count += 1;
      add(c.stage[k], c.seconds[k] + 1e-30);
    }
    for (const child of item.children.values()) {
      sum(child);
      for (const key of ['seconds', 'flops', 'bytes', 'parameters', 'count']) item[key] += child[key];
      for (const [stage, s] of child.stages) add(stage, s);
    }
  };
  sum(root);
  return { root, c, n, readers };
}

class Tree {
  constructor(plan) {
    Object.assign(this, modelTree(plan));
    this.body = h('div', { role: 'tree', 'aria-label': 'layers of the model' });
    this.search = h('input', { type: 'search', placeholder: 'search nodes, layers, ops', 'aria-label': 'search the model', input: () => this.find() });
    this.found = h('span.soft', { role: 'status' });
    const head = h('div.row.head', null, ...['layer or node', 'stages and share of time', 'time', 'FLOPs', 'weights', 'output'].map((t, k) => h('span' + (k > 1 ? '.num' : ''), null, t)));
    this.element = h('div.tree', null, head, this.body);
    this.whole();
  }
  whole() {
    this.body.replaceChildren();
    let top = this.root;
    while (top.children.size === 1 && !top.nodes.length) [top] = top.children.values();
    this.open(top, this.body, 0);
    // the heaviest layers are opened until there is something to see
    for (let k = 0; k < 3 && this.body.querySelectorAll('[role="treeitem"]').length < 9; k++) {
      const closed = [...this.body.querySelectorAll('[aria-expanded="false"]')];
      closed.sort((a, b) => b.dataset.seconds - a.dataset.seconds)[0]?.click();
    }
  }
  /** The children of an item: layers and nodes in the order of the model. */
  open(item, into, level) {
    const first = (i) => (i.nodes.length ? i.nodes[0] : Infinity);
    const least = (i) => Math.min(first(i), ...[...i.children.values()].slice(0, 1).map(least));
    const rows = [...item.children.values()].map((child) => [least(child), () => this.layer(child, level)]);
    rows.push(...item.nodes.map((k) => [k, () => this.node(k, level)]));
    into.append(...rows.sort((a, b) => a[0] - b[0]).slice(0, 600).map(([, make]) => make()));
    if (rows.length > 600) into.append(h('p.faint', null, `${rows.length - 600} more: search for them`));
  }
  row(level, title, stages, total, numbers, attributes) {
    const share = [...stages].sort((a, b) => a[0] - b[0]).map(([s, v]) => h('i', { title: `stage ${s}`, style: { width: `${100 * v / total}%`, background: stageColor(s) } }));
    return h('div.row', { role: 'treeitem', tabindex: 0, ...attributes },
      h('span', { style: { paddingLeft: `${level * 16}px` } }, title), h('span.stack', null, share), ...numbers.map((t) => h('span.num', null, t)));
  }
  // Where all nodes run at once, each on engines of its own, a node has a share alone.
  time(v) { return this.n.streams ? percent(v / (this.root.seconds || 1)) : seconds(v); }
  layer(item, level) {
    const whole = this.root.seconds || 1, inner = h('div', { role: 'group' });
    const twist = h('span.twist', null, '▸');
    const stages = [...item.stages.keys()].sort((a, b) => a - b);
    const told = stages.length > 3 ? `stages ${stages[0]} to ${stages[stages.length - 1]}` : stages.map((s) => `stage ${s}`).join(', ');
    const toggle = () => {
      const open = row.getAttribute('aria-expanded') === 'true';
      row.setAttribute('aria-expanded', String(!open));
      twist.textContent = open ? '▸' : '▾';
      if (open) inner.replaceChildren(); else this.open(item, inner, level + 1);
    };
    const row = this.row(level, [twist, h('span.name', null, item.name), h('span.faint', null, `  ${item.count} nodes, ${told}`)], item.stages,
      Math.max(whole, 1e-30), [this.time(item.seconds), count(item.flops), bytes(item.parameters), bytes(item.bytes)],
      { 'aria-expanded': 'false', 'data-seconds': item.seconds, click: toggle, keydown: (e) => this.key(e, toggle) });
    return h('div', null, row, inner);
  }
  key(event, act) {
    if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); act(); }
    if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
      event.preventDefault();
      const rows = [...this.body.querySelectorAll('[role="treeitem"]')];
      rows[rows.indexOf(event.currentTarget) + (event.key === 'ArrowDown' ? 1 : -1)]?.focus();
    }
  }
  node(k, level) {
    const { c, n } = this, detail = h('div');
    const toggle = () => (detail.childElementCount ? detail.replaceChildren() : detail.append(this.detail(k)));
    const row = this.row(level, [h('span.twist', null, '·'), chip(c.stage[k]), ' ', h('span.name', null, n.names[k]), h('span.faint', null, `  ${n.ops[c.op[k]]}`)],
      [[c.stage[k], c.seconds[k]]], Math.max(this.root.seconds, 1e-30), [this.time(c.seconds[k]), count(c.flops[k] || 0), bytes(c.parameters[k]), bytes(c.bytes[k])],
      { click: toggle, keydown: (e) => this.key(e, toggle) });
    return h('div', null, row, detail);
  }
  detail(k) {
    const { c, n } = this;
    const jump = (other) => h('button', { click: () => { this.search.value = n.names[other]; this.find(); } }, n.names[other], c.stage[other] !== c.stage[k] ? ` (stage ${c.stage[other]})` : '');
    const reads = [...c.reads.subarray(c.first[k], c.first[k + 1])];
    return h('div.detail', null,
      h('p', null, h('b.name', null, n.names[k]), ` = ${n.ops[c.op[k]]} on stage ${c.stage[k]}, gives `, h('span.name', null, n.types[c.type[k]] || 'nothing')),
      h('p.soft', null, `from ${n.layers[c.layer[k]]} ${n.paths[c.path[k]] || '(top level)'}`),
      h('p', null, 'reads: ', reads.length ? reads.map(jump) : 'inputs and weights only'),
      h('p', null, 'read by: ', this.readers[k].length ? this.readers[k].map(jump) : 'outputs only'));
  }
  find() {
    const text = this.search.value.trim().toLowerCase(), { c, n } = this;
    if (!text) { this.found.textContent = ''; this.whole(); return; }
    const hits = [];
    for (let k = 0; k < n.names.length; k++) {
      if (`${n.names[k]} ${n.ops[c.op[k]]} ${n.paths[c.path[k]]} ${n.layers[c.layer[k]]}`.toLowerCase().includes(text)) hits.push(k);
    }
    hits.sort((a, b) => (n.names[b].toLowerCase() === text) - (n.names[a].toLowerCase() === text) || a - b);
    this.found.textContent = `${hits.length} of ${n.names.length} nodes`;
    this.body.replaceChildren(...hits.slice(0, 200).map((k) => this.node(k, 0)));
  }
}
