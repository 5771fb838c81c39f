// The page of a conformance report: the differences from a baseline, the failures, and the matrix of functions.

const data = readData();
const failing = (outcome) => data.failures.includes(outcome.verdict);
const failures = data.strengths.flatMap((strength) => data.outcomes.filter((each) => failing(each) &&
  each.strength === strength));
const filtered = [];  // [a node, the lower-case text that a filter looks in, the verdict]

function verdict(word) {
  return element('span', {class: `verdict ${word || 'none'}`}, word || 'not there');
}

function listed(node, text, word) {
  filtered.push([node, text.toLowerCase(), word]);
  return node;
}

function message(outcome) {
  return outcome.expected ? `expected ${outcome.expected}, found ${outcome.found}` : outcome.found || '';
}

function show(id) {
  for (const old of document.querySelectorAll('.target')) old.classList.remove('target');
  const node = document.getElementById(id);
  if (!node) return;
  node.classList.remove('hidden');
  node.classList.add('target');
  for (let each = node.closest('details'); each; each = each.parentElement.closest('details')) each.open = true;
  node.scrollIntoView({block: 'center'});
}

function cell(outcome) {
  const label = `${outcome.check}: ${outcome.verdict}`;
  const target = failing(outcome) ? `failure-${outcome.check}` : `check-${outcome.check}`;
  return element('button', {class: `cell ${outcome.verdict}`, title: label, 'aria-label': label,
    onclick: () => show(target)});
}

function program(title, text) {
  if (!text) return null;
  const copy = element('button', {onclick: () => navigator.clipboard.writeText(text)}, 'copy');
  return element('details', {}, element('summary', {}, title), copy, element('pre', {class: 'program'}, text));
}

function failure(outcome) {
  const rows = [
    ['rule', outcome.rule],
    ['tier', outcome.tier],
    ['strength', outcome.strength],
    ['called', outcome.call || 'nothing'],
    ['expected', outcome.expected],
    ['found', outcome.found],
    ['printed', outcome.printed],
  ].filter(([, text]) => text);
  const node = element('article', {class: 'failure', id: `failure-${outcome.check}`},
    element('h3', {}, verdict(outcome.verdict), ' ', outcome.check, ' ',
      element('span', {class: 'verdict none'}, outcome.strength)), facts(rows),
    program('the same in C', outcome.c_program), program('the same in Python', outcome.python_program));
  return listed(node, `${outcome.check} ${outcome.rule} ${outcome.call || ''} ${message(outcome)}`, outcome.verdict);
}

function rowsTable(columns, rows, numeric = []) {
  const shade = (index) => (numeric.includes(columns[index]) ? 'number' : index ? null : 'name');
  const body = rows.map(({cells, id, text, word}) => listed(
    element('tr', {id}, cells.map((each, index) => element('td', {class: shade(index)}, each))), text, word || ''));
  return element('div', {class: 'scroll'}, element('table', {},
    element('thead', {}, element('tr', {}, columns.map((name) => element('th', {}, name)))),
    element('tbody', {}, body)));
}

function matrix() {
  const groups = new Map();
  for (const row of data.matrix) {
    const name = row.extension ? `Extension ${row.extension}` : 'PJRT_Api';
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(row);
  }
  return [...groups].map(([name, rows]) => element('details', {open: name === 'PJRT_Api' ? '' : null},
    element('summary', {}, `${name}: ${rows.length} functions`),
    rowsTable(['function', 'there', ...data.tiers], rows.map((row) => {
      const outcomes = row.checks.map((number) => data.outcomes[number]);
      const of = (tier) => element('div', {class: 'tally'}, outcomes.filter((each) => each.tier === tier).map(cell));
      const worst = outcomes.find(failing);
      return {
        cells: [row.name, row.has ? 'yes' : 'no', ...data.tiers.map(of)],
        text: `${row.name} ${outcomes.map((each) => each.check).join(' ')}`,
        word: worst ? worst.verdict : '',
      };
    }))));
}

function checks() {
  return data.tiers.map((tier) => {
    const own = data.outcomes.filter((each) => each.tier === tier);
    if (!own.length) return null;
    const rows = own.map((outcome) => ({
      id: `check-${outcome.check}`,
      cells: [outcome.check, outcome.strength, verdict(outcome.verdict), outcome.rule, message(outcome), `${(outcome.seconds * 1e3).toFixed(1)}`],
      text: `${outcome.check} ${outcome.rule} ${message(outcome)}`,
      word: outcome.verdict,
    }));
    return element('details', {}, element('summary', {}, `${tier}: ${own.length} checks`),
      rowsTable(['check', 'strength', 'verdict', 'rule', 'note', 'ms'], rows, ['ms']));
  });
}

function changes(title, list) {
  if (!list.length) return null;
  const rows = list.map((each) => [each.check, verdict(each.before), verdict(each.after), each.message]);
  return element('div', {}, element('h3', {}, `${title}: ${list.length}`),
    table(['check', 'before', 'now', 'note'], rows));
}

function baseline() {
  const before = data.baseline;
  if (!before) return null;
  const counts = data.verdicts.map((word) => [verdict(word), String(before.counts[word]), String(data.counts[word])]);
  return section('Beside the baseline', before.is_worse ? 'The plugin is worse than the baseline.' :
    'No check is worse than in the baseline.',
  table(['', before.plugin, data.plugin], counts, [before.plugin, data.plugin]),
  changes('Newly failed', before.newly_failed), changes('Newly unsupported', before.newly_unsupported),
  changes('Newly passed', before.newly_passed), changes('Still failing', before.still_failing),
  before.capabilities.length ? [element('h3', {}, 'Capabilities'),
    element('ul', {}, before.capabilities.map((text) => element('li', {}, text)))] : null,
  before.not_made.length ? program(`${before.not_made.length} checks of the baseline were not made`,
    before.not_made.join('\n')) : null);
}

function filters() {
  const search = element('input', {id: 'search', type: 'search', placeholder: 'filter by name, rule, function',
    'aria-label': 'filter', oninput: apply});
  const choice = element('select', {id: 'verdict', 'aria-label': 'verdict', onchange: apply},
    element('option', {value: ''}, 'all verdicts'),
    data.verdicts.filter((word) => data.counts[word]).map((word) => element('option', {value: word}, word)));
  return element('div', {class: 'toolbar'}, search, choice);
}

function apply() {
  const words = document.getElementById('search').value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = document.getElementById('verdict').value;
  for (const [node, text, word] of filtered) {
    const matches = words.every((each) => text.includes(each)) && (!wanted || word === wanted);
    node.classList.toggle('hidden', !matches);
  }
}

const stated = data.facts;
const attributes = Object.entries(stated.attributes || {}).map(([name, value]) =>
  [name, Array.isArray(value) ? value.join('.') : String(value)]);
const header = element('header', {}, element('h1', {}, data.plugin), facts([
  ['result', element('span', {class: `verdict ${data.passes ? 'passed' : 'failed'}`}, data.left ? 'interrupted' :
    !failures.length ? 'no check failed' : data.passes ? 'no required check failed' :
      `${data.failed.required} required checks failed`)],
  ...failures.length ? [['failed', data.strengths.map((each) => `${data.failed[each]} ${each}`).join(', ')]] : [],
  ...data.verdicts.filter((word) => data.counts[word]).map((word) => [word, String(data.counts[word])]),
  ...data.left ? [['not made', String(data.left)]] : [],
  ['platform', [stated.platform, stated.platform_version].filter(Boolean).join(', ') || 'unknown'],
  ['C API', (stated.api_version || []).join('.')],
  ['devices', [stated.devices ?? 'unknown', ...stated.device_kinds || []].join(', ')],
  ...stated.versions ? [['versions', Object.entries(stated.versions).map((each) => each.join(' ')).join(', ')],
    ['system', stated.system]] : [],
  ['seconds', data.seconds.toFixed(1)],
  ['sha256', data.sha256],
]), filters());
const lacks = Object.entries(data.unsupported).map(([reason, count]) => [reason, String(count)]);
document.body.append(header, element('main', {},
  stated.problem ? section('Without a client', stated.problem) : null,
  baseline(),
  failures.length ? section('Failures', 'Each with the rule, what was called, and what came back.', failures.map(failure)) :
    null,
  section('Functions', 'A square for each check that is about a function; the column is the tier.', matrix()),
  section('Capabilities', 'What a plugin may lawfully leave out is said once, with the number of checks that need it.',
    facts([['extensions', (stated.extensions || []).join(', ') || 'none'],
      ['memories', (stated.memories || []).join(', ') || 'unknown'], ...attributes]),
    lacks.length ? table(['unsupported', 'checks'], lacks, ['checks']) : null),
  section('Checks', '', checks())));
