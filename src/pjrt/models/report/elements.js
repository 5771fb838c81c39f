// Elements of the page, and texts. Texts of a program are set as text, never as markup.

const SVG = 'http://www.w3.org/2000/svg';

function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

function readData() {
  return JSON.parse(document.getElementById('data').textContent);
}

function bytesText(count) {
  if (count === null || count === undefined) return 'unknown';
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (count < 1024 || unit === 'GiB') return (unit === 'B' ? count : count.toFixed(1)) + ' ' + unit;
    count /= 1024;
  }
  return '';
}

function countText(count) {
  if (count === null || count === undefined) return 'unknown';
  for (const [scale, unit] of [[1e15, 'P'], [1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) {
    if (count >= scale) return (count / scale).toPrecision(3) + ' ' + unit;
  }
  return String(count);
}

function shortened(text, most) {
  return text.length > most ? text.slice(0, most - 1) + '…' : text;
}

function table(columns, rows, numeric = []) {
  const shade = (name) => ({class: numeric.includes(name) ? 'number' : null});
  const head = columns.map((name) => element('th', shade(name), name));
  const body = rows.map((row) =>
    element('tr', {}, row.map((cell, index) => element('td', shade(columns[index]), cell))));
  return element('div', {class: 'scroll'},
    element('table', {}, element('thead', {}, element('tr', {}, head)), element('tbody', {}, body)));
}

function facts(pairs) {
  return element('dl', {class: 'facts'}, pairs.map(([name, value]) =>
    element('div', {}, element('dt', {}, name), element('dd', {}, value))));
}

function section(title, note, ...children) {
  const paragraph = note ? element('p', {class: 'note'}, note) : null;
  return element('section', {}, element('h2', {}, title), paragraph, ...children);
}
