// Places of the boxes: layer by layer, each open group by itself, from the inside out.

const GAP_X = 14;
const GAP_Y = 36;
const PAD = 14;
const HEAD = 26;
const WIDEST_ROW = 1500;

// An item has `children` (null for a closed one), `first` (the first node in it) and `links` between its children.
function layOut(item) {
  if (!item.children) return;
  item.children.forEach(layOut);
  const rows = rowsOf(item.children, item.links);
  orderRows(rows, item.links);
  let top = HEAD;
  let left = Infinity;
  let right = -Infinity;
  for (const row of rows) {
    const height = Math.max(...row.map((child) => child.height));
    for (const child of row) {
      child.y = top + (height - child.height) / 2;
      left = Math.min(left, child.x);
      right = Math.max(right, child.x + child.width);
    }
    top += height + GAP_Y;
  }
  const width = Math.max(right - left, item.headWidth);
  const shift = PAD - left + (width - (right - left)) / 2;
  for (const child of item.children) child.x += shift;
  item.width = width + 2 * PAD;
  item.height = top - GAP_Y + PAD;
}

// Rank by the longest way from a source, along links that follow the order of the program. The others are drawn only.
function rowsOf(children, links) {
  const ordered = [...children].sort((a, b) => a.first - b.first);
  const place = new Map(ordered.map((child, index) => [child, index]));
  const forward = links.filter(([from, to]) => place.get(from) < place.get(to));
  const users = new Map(ordered.map((child) => [child, []]));
  const sources = new Map(ordered.map((child) => [child, 0]));
  for (const [from, to] of forward) {
    users.get(from).push(to);
    sources.set(to, sources.get(to) + 1);
  }
  const rank = new Map(ordered.map((child) => [child, 0]));
  for (const child of ordered) {
    for (const user of users.get(child)) rank.set(user, Math.max(rank.get(user), rank.get(child) + 1));
  }
  // A constant or an argument belongs just above its first user, not into the first row.
  for (const child of ordered) {
    const below = users.get(child).map((user) => rank.get(user));
    if (!sources.get(child) && below.length) rank.set(child, Math.max(0, Math.min(...below) - 1));
  }
  const rows = new Map();
  for (const child of ordered) {
    if (!rows.has(rank.get(child))) rows.set(rank.get(child), []);
    rows.get(rank.get(child)).push(child);
  }
  return [...rows.keys()].sort((a, b) => a - b).flatMap((key) => wrapped(rows.get(key)));
}

function wrapped(row) {
  const rows = [[]];
  let width = 0;
  for (const child of row) {
    if (width + child.width > WIDEST_ROW && rows[rows.length - 1].length) {
      rows.push([]);
      width = 0;
    }
    rows[rows.length - 1].push(child);
    width += child.width + GAP_X;
  }
  return rows;
}

function orderRows(rows, links) {
  const above = new Map();
  const below = new Map();
  for (const [from, to] of links) {
    above.set(to, [...(above.get(to) || []), from]);
    below.set(from, [...(below.get(from) || []), to]);
  }
  rows.forEach((row) => place(row, new Map()));
  for (const [order, neighbours] of [[rows, above], [[...rows].reverse(), below], [rows, above]]) {
    for (const row of order) place(row, neighbours);
  }
}

// Put each box under the middle of its neighbours, then move boxes apart that would overlap.
function place(row, neighbours) {
  const centre = (child) => child.x + child.width / 2;
  const wanted = new Map(row.map((child) => {
    const others = (neighbours.get(child) || []).filter((other) => other.x !== undefined);
    const own = child.x === undefined ? 0 : centre(child);
    return [child, others.length ? others.reduce((sum, other) => sum + centre(other), 0) / others.length : own];
  }));
  row.sort((a, b) => wanted.get(a) - wanted.get(b) || a.first - b.first);
  let end = -Infinity;
  let drift = 0;
  for (const child of row) {
    child.x = Math.max(wanted.get(child) - child.width / 2, end);
    end = child.x + child.width + GAP_X;
    drift += centre(child) - wanted.get(child);
  }
  for (const child of row) child.x -= drift / row.length;
}
