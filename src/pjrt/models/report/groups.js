// Groups of nodes: by function, by source line, or by the author's scopes. A group may be folded.

const MOST_CHILDREN = 48;
const FEW_LISTED = 6;
const LISTS = {argument: 'arguments', constant: 'constants'};

const GROUPINGS = {
  scope: (node) => [node.function, ...(node.scope ? node.scope.split('/') : [])],
  function: (node) => [node.function],
  source: (node) => (node.file ? [node.file, `line ${node.line}`] : [node.function, 'without a source']),
};

function newGroup(label, parent) {
  const state = {isOpen: false, isListed: false};
  return {label, parent, groups: new Map(), nodes: [], owner: null, count: 0, first: Infinity, ...state};
}

// Return the outermost group, and for each node the innermost group that it is in.
function groupsOf(nodes, grouping) {
  const root = newGroup('', null);
  root.isOpen = true;
  const groupOf = new Array(nodes.length);
  const owned = new Map();
  const listed = listsOf(nodes);
  for (const node of nodes) {
    let group = root;
    if (node.parent >= 0 && grouping !== 'source') {
      group = owned.get(node.parent);
      if (!group) {
        group = newGroup(nodes[node.parent].shortName, groupOf[node.parent]);
        group.owner = nodes[node.parent];
        groupOf[node.parent].groups.set('owner ' + node.parent, group);
        owned.set(node.parent, group);
      }
    } else {
      for (const part of pathOf(node, grouping, listed)) {
        if (!group.groups.has(part)) group.groups.set(part, newGroup(part, group));
        group = group.groups.get(part);
        group.isListed = part === LISTS[node.kind];
      }
    }
    groupOf[node.index] = group;
    group.nodes.push(node);
  }
  for (const [index, group] of owned) {  // the operation is shown as the group of its regions
    const outer = groupOf[index];
    outer.nodes = outer.nodes.filter((node) => node.index !== index);
  }
  const divide = (group) => {
    for (const inner of [...group.groups.values()]) divide(inner);
    joinOnlyChild(group, groupOf);
    splitLong(group, groupOf);
    measure(group);
  };
  divide(root);
  return {root, groupOf, owned};
}

// The labels of the groups around a node, from the outside in.
function pathOf(node, grouping, listed) {
  if (listed.has(listOf(node))) return [node.function, LISTS[node.kind]];
  return node.name === 'argument' ? [node.function] : GROUPINGS[grouping](node);
}

// Many arguments, or constants without a scope, of a function are a group of their own.
function listsOf(nodes) {
  const counts = new Map();
  for (const node of nodes) counts.set(listOf(node), (counts.get(listOf(node)) || 0) + 1);
  counts.delete('');
  return new Set([...counts.keys()].filter((key) => counts.get(key) > FEW_LISTED));
}

function listOf(node) {
  const isPlain = node.name === 'argument' || (node.kind === 'constant' && !node.scope && node.parent < 0);
  return isPlain ? `${node.kind} ${node.function}` : '';
}

// A group with one group in it and nothing else is shown as one: a/b.
function joinOnlyChild(group, groupOf) {
  for (const [key, inner] of [...group.groups]) {
    if (inner.nodes.length || inner.groups.size !== 1 || inner.owner) continue;
    const only = [...inner.groups.values()][0];
    if (only.owner) continue;
    only.label = `${inner.label}/${only.label}`;
    only.parent = group;
    group.groups.set(key, only);
  }
}

// What is too much for one box is cut into runs, so that folding helps.
function splitLong(group, groupOf) {
  const groups = [...group.groups].filter(([, inner]) => !inner.isListed);
  const children = [...groups.map(([key, inner]) => ({key, inner, first: inner.first})),
    ...group.nodes.map((node) => ({node, first: node.index}))].sort((a, b) => a.first - b.first);
  if (children.length <= MOST_CHILDREN) return;
  let size = MOST_CHILDREN;
  while (children.length / size > MOST_CHILDREN) size *= 2;
  for (const [key] of groups) group.groups.delete(key);
  group.nodes = [];
  for (let begin = 0; begin < children.length; begin += size) {
    const part = children.slice(begin, begin + size);
    const run = newGroup(`${nameOf(part[0])} to ${nameOf(part[part.length - 1])}`, group);
    for (const {key, inner, node} of part) {
      if (node) {
        run.nodes.push(node);
        groupOf[node.index] = run;
      } else {
        run.groups.set(key, inner);
        inner.parent = run;
      }
    }
    group.groups.set('run ' + begin, run);
    splitLong(run, groupOf);
    measure(run);
  }
}

function nameOf({inner, node}) {
  return inner ? inner.label : node.label || node.shortName;
}

function measure(group) {
  group.count = group.nodes.length + (group.owner ? 1 : 0);
  group.first = Math.min(group.owner ? group.owner.index : Infinity, ...group.nodes.map((node) => node.index));
  group.flops = sum(group.nodes, 'flops') + (group.owner ? group.owner.flops || 0 : 0);
  group.bytes = sum(group.nodes, 'bytes_accessed');
  for (const inner of group.groups.values()) {
    group.count += inner.count;
    group.first = Math.min(group.first, inner.first);
    group.flops += inner.flops;
    group.bytes += inner.bytes;
  }
}

function sum(nodes, field) {
  return nodes.reduce((total, node) => total + (node[field] || 0), 0);
}

// Open a group as long as all of its operations are in one other group, to the first level with several parts.
function openUntilDivided(group) {
  group.isOpen = true;
  const parts = [...group.groups.values()].filter((inner) => !inner.isListed);
  if (parts.length === 1) openUntilDivided(parts[0]);
}

function open(group) {
  for (let each = group; each; each = each.parent) each.isOpen = true;
}

function forEachGroup(group, visit) {
  visit(group);
  for (const inner of group.groups.values()) forEachGroup(inner, visit);
}
