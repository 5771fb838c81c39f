// The page of a program: facts, graph, details, memory, tables.

const MOST_ROWS = 25;
const data = readData();
const TEXTS = 'name label kind function scope file location attributes sharding note'.split(' ');
const nodes = data.nodes.map((values) => {
  const node = Object.fromEntries(data.fields.map((name, index) => [name, values[index]]));
  for (const name of TEXTS) node[name] = data.strings[node[name]];
  node.types = node.types.map((index) => data.strings[index]);
  node.shortName = node.name.replace(/^stablehlo\./, '');
  return node;
});
const memory = data.memory;
const operations = nodes.filter((node) => node.name !== 'argument' && node.name !== 'results');

const details = element('aside', {class: 'details', id: 'details', 'aria-live': 'polite'});
const graph = new Graph(nodes, showDetails);

function nodeButton(index, text) {
  const node = nodes[index];
  const name = [node.label, node.shortName].filter(Boolean).join(' ');
  const shown = text || `${name}: ${node.types.join(', ')}`;
  return element('button', {class: 'link-button', onclick: () => reveal(index)}, shown);
}

function reveal(index) {
  graph.reveal(index);
  graph.picture.scrollIntoView({block: 'nearest'});
}

function list(title, indexes) {
  if (!indexes.length) return null;
  const shown = indexes.slice(0, MOST_ROWS).map((index) => element('li', {}, nodeButton(index)));
  if (indexes.length > MOST_ROWS) shown.push(element('li', {}, `and ${indexes.length - MOST_ROWS} more`));
  return [element('h3', {}, title), element('ul', {}, shown)];
}

function showDetails(index) {
  const node = nodes[index];
  const pairs = [
    ['function', node.function],
    ['type', node.types.join('\n') || 'none'],
    ['sharding', node.sharding],
    ['result bytes', bytesText(node.nbytes)],
    ['FLOPs', node.flops === null ? '' : countText(node.flops)],
    ['bytes moved', node.bytes_accessed === null ? '' : bytesText(node.bytes_accessed)],
    ['runs', node.times > 1 ? String(node.times) : ''],
    ['remark', node.note],
    ['from', node.location],
    ['attributes', node.attributes],
  ];
  const lists = [list('reads', node.operands), list('is read by', graph.users[index])];
  details.replaceChildren(element('h2', {}, [node.shortName, node.label].filter(Boolean).join(' ')),
    facts(pairs.filter(([, value]) => value)), ...lists.flat().filter(Boolean));
}

// Search: every word must occur in a node's texts.
let found = [];
let position = -1;
const count = element('output', {class: 'count', id: 'matches'});
const search = element('input', {
  type: 'search',
  id: 'search',
  placeholder: 'Search: name, type, source …',
  'aria-label': 'search',
  oninput: find,
  onkeydown: (event) => {
    if (event.key === 'Enter') step(event.shiftKey ? -1 : 1);
  },
});

function find() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (node) => words.length > 0 && words.every((word) => textOf(node).includes(word));
  found = nodes.filter(matches).map((node) => node.index);
  position = -1;
  graph.matches = new Set(found);
  graph.mark();
  count.textContent = words.length ? `${found.length} found` : '';
}

function textOf(node) {
  node.text = node.text || [node.types.join(' '), ...TEXTS.map((name) => node[name])].join('\n').toLowerCase();
  return node.text;
}

function step(direction) {
  if (!found.length) return;
  position = position < 0 && direction < 0 ? found.length - 1 : (position + direction + found.length) % found.length;
  count.textContent = `${position + 1} of ${found.length}`;
  graph.reveal(found[position]);
}

function choice(label, id, options, onchange) {
  const choices = options.map(([value, text]) => element('option', {value}, text));
  const select = element('select', {id, onchange: () => onchange(select.value)}, choices);
  return element('label', {}, label + ' ', select);
}

// The author's scopes, if there are some; else source lines, unless each operation is a line of its own.
function firstGrouping() {
  const distinct = (text) => new Set(operations.map(text)).size;
  if (distinct((node) => node.scope) > 2) return 'scope';
  const lines = distinct((node) => `${node.file}:${node.line}`);
  const isOneFunction = distinct((node) => node.function) === 1;
  return isOneFunction && lines > 2 && lines < operations.length / 2 ? 'source' : 'function';
}

const grouping = firstGrouping();
const GROUPING_NAMES = [['scope', 'scope'], ['function', 'function'], ['source', 'source line']];
const COLOURINGS = [
  ['kind', 'kind'],
  ['flops', 'FLOPs'],
  ['bytes_accessed', 'bytes moved'],
  ['nbytes', 'result bytes'],
];
const groupChoice = choice('Group by', 'grouping', GROUPING_NAMES, (value) => graph.group(value));
groupChoice.querySelector('select').value = grouping;
const toolbar = element('div', {class: 'toolbar'},
  groupChoice,
  choice('Colour by', 'colouring', COLOURINGS, (value) => graph.colour(value)),
  element('button', {id: 'fold', onclick: () => graph.foldAll()}, 'Fold all'),
  element('button', {id: 'unfold', onclick: () => graph.unfoldAll()}, 'Unfold all'),
  element('button', {onclick: () => graph.zoom(1.25), 'aria-label': 'zoom in'}, '+'),
  element('button', {onclick: () => graph.zoom(0.8), 'aria-label': 'zoom out'}, '−'),
  element('button', {onclick: () => graph.fit()}, 'Fit'),
  search,
  element('button', {id: 'next', onclick: () => step(1)}, 'Next'),
  count);

const KINDS = {
  contraction: 'products', elementwise: 'elementwise', reduction: 'reductions', movement: 'movement',
  collective: 'collectives', control: 'control', constant: 'constants', custom: 'custom calls',
  argument: 'arguments and results',
};
const present = new Set(nodes.map((node) => node.kind));
const legend = element('p', {class: 'legend'}, Object.keys(KINDS).filter((kind) => present.has(kind))
  .map((kind) => element('span', {class: 'kind-' + kind}, KINDS[kind])));

function mostExpensive() {
  const ranked = operations.filter((node) => node.flops || node.bytes_accessed)
    .sort((a, b) => (b.flops || 0) - (a.flops || 0) || b.bytes_accessed - a.bytes_accessed).slice(0, MOST_ROWS);
  const rows = ranked.map((node) => [
    nodeButton(node.index, node.shortName),
    node.types.join(', '),
    countText(node.flops),
    data.flops ? `${(100 * node.flops / data.flops).toFixed(1)}%` : '',
    bytesText(node.bytes_accessed),
    String(node.times),
    node.file ? `${node.file}:${node.line}` : node.scope,
  ]);
  const numbers = ['FLOPs', 'share', 'bytes moved', 'runs'];
  return table(['operation', 'type', ...numbers, 'from'], rows, numbers);
}

function peakArrays() {
  const rows = memory.arrays.slice(0, MOST_ROWS).map(([index, name, type, size, role, place]) =>
    [index < 0 ? name : nodeButton(index, name), type, bytesText(size), role, place]);
  const left = memory.arrays.slice(MOST_ROWS);
  const rest = left.reduce((total, array) => total + array[3], 0);
  if (left.length) rows.push([`and ${left.length} more`, '', bytesText(rest), '', '']);
  return table(['array', 'type', 'bytes', 'role', 'from'], rows, ['bytes']);
}

function signature(values) {
  return table(['index', 'name', 'type', 'sharding', 'notes'], values.map((value, index) =>
    [String(index), value.name, value.type, value.sharding, value.donated ? 'donated' : '']), ['index']);
}

const hasSteps = memory.steps.length > 0;
const devices = data.partitions * data.replicas;
const GRAPH_HELP = 'Click a box with + to open it, the head of an open one to fold it, an operation for its details. ' +
  'Drag to move, turn the wheel to zoom.';
const MEMORY_HELP = 'Estimated from the program, as a compiler would store its arrays: arguments, results and ' +
  'temporaries, at each operation.';
const COST_HELP = 'Counted from the program as it is written, over all of its devices; loops and calls with the ' +
  'number of their runs.';

const header = element('header', {}, element('h1', {}, data.source || data.name || 'program'), facts([
  ['program', data.name || 'without a name'],
  ['format', data.format],
  ['operations', String(operations.length)],
  ['functions', String(new Set(nodes.map((node) => node.function)).size)],
  ['FLOPs', countText(data.flops)],
  ['bytes moved', bytesText(data.bytes)],
  ['peak memory of a device', bytesText(memory.peak_bytes)],
  ['devices', devices > 1 ? `${data.replicas} replicas × ${data.partitions} partitions` : '1'],
]));
document.body.append(header, element('main', {},
  section('Graph', data.cost_note ? `The cost is unknown: ${data.cost_note}` : GRAPH_HELP,
    toolbar, element('div', {class: 'split'}, graph.picture, details), legend, graph.message),
  section('Memory of a device', memory.note || MEMORY_HELP,
    hasSteps ? [memoryChart(memory, nodes, reveal), element('h3', {}, 'Arrays at the peak'), peakArrays()] : null),
  data.flops === null ? null : section('Most expensive operations', COST_HELP, mostExpensive()),
  section('Arguments', '', signature(data.parameters)),
  section('Results', '', signature(data.results))));
details.append(element('p', {class: 'note'}, 'Select an operation to see its types, cost, source and neighbours.'));
graph.group(grouping);
