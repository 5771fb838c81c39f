// The live memory along the program, as an area; the peak is marked, and a click selects the operation.

const CHART_HEIGHT = 150;
const CHART_LEFT = 76;

function memoryChart(memory, nodes, onChoose) {
  const holder = element('div', {class: 'chart', id: 'memory'});
  const hint = 'Point at the chart to see the operation; click to select it.';
  const status = element('p', {class: 'note', role: 'status'}, hint);
  const draw = () => {
    holder.replaceChildren(drawn(memory, nodes, Math.max(holder.clientWidth, 320), status, onChoose));
  };
  new ResizeObserver(draw).observe(holder);
  return element('div', {}, holder, status);
}

function drawn(memory, nodes, width, status, onChoose) {
  const {steps} = memory;
  const most = Math.max(memory.peak_bytes, 1);
  const peak = steps.reduce((best, step, index) => (step[1] > steps[best][1] ? index : best), 0);
  // Where arguments are most of the memory the axis begins with them: what changes is what the others need.
  const lowest = steps.reduce((low, step) => Math.min(low, step[1]), memory.argument_bytes);
  const least = memory.argument_bytes > most / 2 ? lowest : 0;
  const plot = width - CHART_LEFT - 8;
  const x = (index) => CHART_LEFT + index / steps.length * plot;
  const y = (count) => 14 + (1 - (count - least) / (most - least || 1)) * (CHART_HEIGHT - 34);
  const bottom = y(least);
  const stride = Math.max(1, Math.floor(steps.length / plot));  // one point for each pixel: the highest of its steps
  let path = `M${x(0)} ${bottom}`;
  for (let begin = 0; begin < steps.length; begin += stride) {
    const end = Math.min(begin + stride, steps.length);
    const high = Math.max(...steps.slice(begin, end).map((step) => step[1]));
    path += `L${x(begin)} ${y(high)}L${x(end)} ${y(high)}`;
  }
  path += `L${x(steps.length)} ${bottom}z`;
  const cursor = svg('line', {class: 'cursor', y1: 8, y2: bottom, x1: -9, x2: -9});
  const middle = x(peak + 0.5);
  const isRight = middle > width * 0.7;
  const scale = (count) => (least && count > least ? '+ ' + bytesText(count - least) : bytesText(count));
  const axis = [least, (least + most) / 2, most].map((count) => svg('g', {class: 'axis'},
    svg('line', {x1: CHART_LEFT, x2: width - 8, y1: y(count), y2: y(count)}),
    svg('text', {x: CHART_LEFT - 6, y: y(count) + 4, 'text-anchor': 'end'}, scale(count))));
  const [side, anchor] = isRight ? [-6, 'end'] : [6, 'start'];
  const first = least ? 'first operation; the axis begins with the arguments' : 'first operation';
  const chart = svg('svg', {width, height: CHART_HEIGHT, role: 'img', 'aria-label': `at most ${bytesText(most)}`},
    axis, svg('path', {class: 'area', d: path}),
    svg('line', {class: 'peak', x1: middle, x2: middle, y1: 8, y2: bottom}),
    svg('text', {class: 'peak', x: middle + side, y: bottom - 6, 'text-anchor': anchor}, 'peak'),
    svg('text', {class: 'axis', x: CHART_LEFT, y: CHART_HEIGHT - 4}, first),
    svg('text', {class: 'axis', x: width - 8, y: CHART_HEIGHT - 4, 'text-anchor': 'end'}, `${steps.length} steps`),
    cursor);
  const indexAt = (event) => {
    const at = (event.clientX - chart.getBoundingClientRect().left - CHART_LEFT) / plot * steps.length;
    return Math.min(Math.max(Math.floor(at), 0), steps.length - 1);
  };
  chart.addEventListener('pointermove', (event) => {
    const index = indexAt(event);
    const node = nodes[steps[index][0]];
    cursor.setAttribute('x1', x(index + 0.5));
    cursor.setAttribute('x2', x(index + 0.5));
    const name = node ? `: ${node.shortName} ${node.label} ${node.types.join(', ')}` : '';
    status.textContent = `${bytesText(steps[index][1])} at step ${index}${name}`;
  });
  chart.addEventListener('click', (event) => {
    const index = steps[indexAt(event)][0];
    if (index >= 0) onChoose(index);
  });
  return chart;
}
