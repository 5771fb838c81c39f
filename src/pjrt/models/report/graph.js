// The drawing of the graph: boxes and lines of what is visible now, with folding, moving, zooming and selecting.

const CHARACTER = 7.3;
const SMALL_CHARACTER = 6.7;
const MOST_VISIBLE = 1500;
const READABLE = 0.75;
const FEW_VISIBLE = 24;

class Graph {
  constructor(nodes, onSelect) {
    this.nodes = nodes;
    this.onSelect = onSelect;
    this.users = nodes.map(() => []);
    for (const node of nodes) for (const operand of node.operands) this.users[operand].push(node.index);
    this.colouring = 'kind';
    this.selected = null;
    this.matches = new Set();
    this.view = {x: 20, y: 10, scale: 1};
    this.plane = svg('g', {});
    const size = {viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, markerUnits: 'userSpaceOnUse'};
    const tip = svg('path', {d: 'M0 0 L8 4 L0 8 z', class: 'arrow'});
    this.picture = svg('svg', {class: 'graph', id: 'graph', tabindex: 0, role: 'group', 'aria-label': 'operations'},
      svg('defs', {}, svg('marker', {id: 'arrow', orient: 'auto', ...size}, tip)), this.plane);
    this.message = element('p', {class: 'note', role: 'status'});
    this.listen();
  }

  group(grouping) {
    this.grouping = grouping;
    Object.assign(this, groupsOf(this.nodes, grouping));
    openUntilDivided(this.root);
    this.openWhile((group) => !group.isListed, FEW_VISIBLE);
    this.draw();
    this.fit(READABLE);
  }

  // Open groups, those with the most operations first, as long as not too many boxes are visible.
  openWhile(wanted, most) {
    let visible = this.root.groups.size + this.root.nodes.length;
    const queue = [...this.root.groups.values()];
    let isComplete = true;
    while (queue.length) {
      queue.sort((a, b) => b.count - a.count);
      const group = queue.shift();
      const size = group.groups.size + group.nodes.length;
      if (!group.isOpen && wanted(group) && visible + size <= most) group.isOpen = true;
      if (!group.isOpen) {
        isComplete = false;
        continue;
      }
      visible += size;
      queue.push(...group.groups.values());
    }
    return isComplete;
  }

  foldAll() {
    forEachGroup(this.root, (group) => { group.isOpen = group === this.root; });
    this.draw();
    this.fit();
  }

  unfoldAll() {
    const isComplete = this.openWhile(() => true, MOST_VISIBLE);
    this.draw();
    this.fit();
    const problem = `More than ${MOST_VISIBLE} boxes would be visible: some groups stay folded.`;
    this.message.textContent = isComplete ? '' : problem;
  }

  toggle(group) {
    const before = this.items.get(group);
    const hasFocus = document.activeElement === before.shape;
    const {x, y, scale} = this.view;
    group.isOpen = !group.isOpen;
    this.message.textContent = '';
    this.draw();
    const after = this.items.get(group);
    if (hasFocus) after.shape.focus({preventScroll: true});
    // The box stays where the pointer is.
    this.move(x + (before.left - after.left) * scale, y + (before.top - after.top) * scale, scale);
  }

  // The visible boxes: open groups with what is in them, folded ones, and single nodes.
  itemOf(group, parent, depth) {
    const item = {group, parent, depth, node: null, children: null, links: [], first: group.first};
    this.items.set(group, item);
    item.headWidth = this.headOf(group).length * CHARACTER + 36;
    if (!group.isOpen) {
      item.width = Math.max(item.headWidth, detailOf(group).length * SMALL_CHARACTER + 32);
      item.height = 42;
      return item;
    }
    item.children = [...group.groups.values()].map((inner) => this.itemOf(inner, item, depth + 1));
    for (const node of group.nodes) {
      const child = {group: null, parent: item, depth: depth + 1, node, children: null, links: [], first: node.index};
      const longest = Math.max(...linesOf(node).map((line) => line.length));
      Object.assign(child, {width: Math.max(longest * CHARACTER + 20, 60), height: 40});
      this.items.set(node, child);
      item.children.push(child);
    }
    return item;
  }

  headOf(group) {
    return shortened((group.owner ? `${group.owner.shortName} ${group.owner.label}` : group.label) || 'program', 54);
  }

  // The innermost visible box that a node is in.
  visible(index) {
    const item = this.items.get(this.nodes[index]);
    if (item) return item;
    let group = this.owned.get(index) || this.groupOf[index];
    while (!this.items.has(group)) group = group.parent;
    return this.items.get(group);
  }

  draw() {
    this.items = new Map();
    const root = this.itemOf(this.root, null, 0);
    this.links = new Set();
    for (const node of this.nodes) {
      for (const operand of node.operands) this.link(this.visible(operand), this.visible(node.index), operand);
    }
    layOut(root);
    Object.assign(root, {left: 0, top: 0});
    this.settle(root);
    const [areas, boxes] = [[], []];
    this.drawItem(root, areas, boxes);
    const lines = [...this.links].map((link) => this.drawLink(link));
    this.plane.replaceChildren(...areas, ...lines, ...boxes);
    this.mark();
  }

  // Add a line between two visible boxes, and to the layout of the innermost open group that has both inside.
  link(from, to, source) {
    if (from === to) return;
    let [a, b] = [from, to];
    while (a.parent !== b.parent) {
      if (a.depth >= b.depth) a = a.parent;
      else b = b.parent;
    }
    if (a === b || a === to || b === from || isInside(from, to) || isInside(to, from)) return;
    const between = (from.between || (from.between = new Map()));
    const known = between.get(to);
    if (known) {
      known.sources.add(source);
      return;
    }
    const link = {from, to, sources: new Set([source])};
    between.set(to, link);
    this.links.add(link);
    a.parent.links.push([a, b]);
  }

  settle(item) {
    for (const child of item.children || []) {
      child.left = item.left + child.x;
      child.top = item.top + child.y;
      this.settle(child);
    }
  }

  drawItem(item, areas, boxes) {
    if (item.parent) (item.children ? areas : boxes).push(item.node ? this.drawNode(item) : this.drawGroup(item));
    for (const child of item.children || []) this.drawItem(child, areas, boxes);
  }

  drawNode(item) {
    const {node, left, top, width, height} = item;
    const [first, second] = linesOf(node);
    const hint = [node.name, node.label, node.types.join(', '), node.file && `${node.file}:${node.line}`];
    const place = {transform: `translate(${left} ${top})`, tabindex: 0, role: 'button'};
    return item.shape = svg('g', {class: 'node kind-' + node.kind, 'data-node': node.index, ...place},
      svg('rect', {class: 'box', width, height, rx: 5}),
      svg('rect', {class: 'edge', width: 4, height, rx: 2, 'fill-opacity': this.heat(node)}),
      svg('text', {class: 'name', x: 11, y: 17}, first), svg('text', {class: 'type', x: 11, y: 32}, second),
      svg('title', {}, hint.filter(Boolean).join('\n')));
  }

  drawGroup(item) {
    const {group, left, top, width, height} = item;
    const shade = group.isOpen ? ' open depth-' + (item.depth % 4) : ' folded';
    const detail = detailOf(group);
    const place = {transform: `translate(${left} ${top})`, tabindex: 0, role: 'button'};
    const state = {'data-group': group.label, 'aria-expanded': String(group.isOpen)};
    return item.shape = svg('g', {class: 'group' + shade, ...place, ...state},
      svg('rect', {class: 'box', width, height, rx: 7}),
      svg('rect', {class: 'head', width, height: group.isOpen ? HEAD - 4 : height, rx: 7}),
      svg('text', {class: 'sign', x: 8, y: 17}, group.isOpen ? '−' : '+'),
      svg('text', {class: 'name', x: 22, y: 17}, this.headOf(group)),
      group.isOpen ? null : svg('text', {class: 'type', x: 22, y: 33}, detail),
      svg('title', {}, `${group.label}\n${detail}`));
  }

  drawLink(link) {
    const [x1, y1] = [link.from.left + link.from.width / 2, link.from.top + link.from.height];
    const [x2, y2] = [link.to.left + link.to.width / 2, link.to.top];
    const bend = Math.max(18, Math.min(Math.abs(y2 - y1) / 2, 90));
    const sources = [...link.sources].map((index) => this.nodes[index]);
    const texts = sources.slice(0, 8).map((node) => `${node.label || node.shortName}: ${node.types.join(', ')}`);
    if (sources.length > 8) texts.push(`and ${sources.length - 8} more`);
    const d = `M${x1} ${y1} C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2 - 2}`;
    // Lines from the arguments and the constants lead everywhere: they must not hide the way of the values.
    const isWeak = link.from.group && link.from.group.isListed;
    const width = isWeak ? 1 : Math.min(1 + Math.log2(link.sources.size), 4);
    return link.shape = svg('path', {class: isWeak ? 'link weak' : 'link', d, 'stroke-width': width, 'marker-end': 'url(#arrow)'},
      svg('title', {}, texts.join('\n')));
  }

  heat(node) {
    if (this.colouring === 'kind') return 1;
    const amount = node[this.colouring] || 0;
    return amount && Math.max(0.12, amount / this.most);
  }

  colour(colouring) {
    this.colouring = colouring;
    this.most = this.nodes.reduce((most, node) => Math.max(most, node[colouring] || 0), 1);
    this.plane.classList.toggle('heat', colouring !== 'kind');
    this.draw();
  }

  select(index) {
    this.selected = index;
    this.mark();
    this.onSelect(index);
  }

  reveal(index) {
    const group = this.owned.get(index) || this.groupOf[index];
    open(this.owned.has(index) ? group.parent : group);
    this.draw();
    this.select(index);
    const item = this.visible(index);
    const scale = Math.max(this.view.scale, READABLE);
    const [x, y] = [item.left + item.width / 2, item.top + Math.min(item.height, 200) / 2];
    this.move(this.picture.clientWidth / 2 - x * scale, this.picture.clientHeight / 2 - y * scale, scale);
  }

  mark() {
    const chosen = this.selected === null ? null : this.visible(this.selected);
    const holding = new Set([...this.matches].map((index) => this.visible(index)));
    for (const item of this.items.values()) {
      if (!item.shape) continue;
      item.shape.classList.toggle('selected', item === chosen);
      item.shape.classList.toggle('match', holding.has(item));
    }
    for (const link of this.links) {
      link.shape.classList.toggle('in', link.to === chosen);
      link.shape.classList.toggle('out', link.from === chosen);
    }
  }

  move(x, y, scale) {
    this.view = {x, y, scale};
    this.plane.setAttribute('transform', `translate(${x} ${y}) scale(${scale})`);
  }

  zoom(factor, x = this.picture.clientWidth / 2, y = this.picture.clientHeight / 2) {
    const scale = Math.min(Math.max(this.view.scale * factor, 0.02), 4);
    const ratio = scale / this.view.scale;
    this.move(x - (x - this.view.x) * ratio, y - (y - this.view.y) * ratio, scale);
  }

  fit(least = 0.02) {
    const root = this.items.get(this.root);
    const [width, height] = [this.picture.clientWidth || 900, this.picture.clientHeight || 600];
    const whole = Math.min((width - 20) / root.width, (height - 20) / root.height);
    const scale = Math.min(1, Math.max(least, whole));
    this.move((width - root.width * scale) / 2, 4, scale);
  }

  act(shape) {
    if (shape.dataset.node !== undefined) this.select(Number(shape.dataset.node));
    else this.toggle([...this.items].find(([, item]) => item.shape === shape)[0]);
  }

  listen() {
    let start = null;
    let moved = false;
    this.picture.addEventListener('pointerdown', (event) => {
      start = {x: event.clientX, y: event.clientY, view: this.view};
      moved = false;
    });
    this.picture.addEventListener('pointermove', (event) => {
      if (!start || !event.buttons) return;
      const [x, y] = [event.clientX - start.x, event.clientY - start.y];
      moved = moved || Math.hypot(x, y) > 4;
      if (moved) this.move(start.view.x + x, start.view.y + y, this.view.scale);
    });
    this.picture.addEventListener('pointerup', () => { start = null; });
    this.picture.addEventListener('click', (event) => {
      const shape = event.target.closest('.node, .group');
      if (shape && !moved) this.act(shape);
    });
    this.picture.addEventListener('keydown', (event) => {
      const shape = event.target.closest('.node, .group');
      if (shape && (event.key === 'Enter' || event.key === ' ')) {
        event.preventDefault();
        this.act(shape);
      }
    });
    this.picture.addEventListener('wheel', (event) => {
      event.preventDefault();
      const box = this.picture.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY / 500), event.clientX - box.left, event.clientY - box.top);
    }, {passive: false});
  }
}

function detailOf(group) {
  const count = group.isListed ? String(group.count) : `${group.count} operations`;
  return count + (group.flops ? `, ${countText(group.flops)} FLOPs` : '');
}

function isInside(item, outer) {
  for (let each = item.parent; each; each = each.parent) if (each === outer) return true;
  return false;
}

function linesOf(node) {
  const called = node.label.startsWith('@') ? `${node.shortName} ${node.label}` : node.shortName;
  const first = node.name === 'argument' ? node.label : called;
  return [shortened(first, 30), shortened(node.types.join(', '), 30)];
}
