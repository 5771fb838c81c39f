// The page of a benchmark: tables and plots of the devices, side by side.

const data = readData();
const PARTS = {
  execute: 'executions, one at a time',
  pipelined: 'executions, several in flight',
  put: 'arguments to the device',
  fetch: 'results from the device',
};
const WIDTH = 560;
const HEIGHT = 220;
const LEFT = 70;
const BOTTOM = HEIGHT - 34;

function seconds(value) {
  for (const [scale, unit] of [[1, 's'], [1e-3, 'ms'], [1e-6, 'µs']]) {
    if (value >= scale) return `${Number((value / scale).toPrecision(3))} ${unit}`;
  }
  return `${Number((value * 1e9).toPrecision(3))} ns`;
}

function chart(title, ...shapes) {
  return element('figure', {}, element('figcaption', {}, title),
    svg('svg', {class: 'plot', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': title}, shapes));
}

function axes(low, high, text, left, right) {
  const y = (value) => 12 + (1 - (value - low) / (high - low || 1)) * (BOTTOM - 12);
  const marks = [low, (low + high) / 2, high].map((value) => svg('g', {class: 'axis'},
    svg('line', {x1: LEFT, x2: WIDTH - 8, y1: y(value), y2: y(value)}),
    svg('text', {x: LEFT - 6, y: y(value) + 4, 'text-anchor': 'end'}, text(value))));
  const ends = [
    svg('text', {x: LEFT, y: HEIGHT - 12}, left),
    svg('text', {x: WIDTH - 8, y: HEIGHT - 12, 'text-anchor': 'end'}, right),
  ];
  return {y, shapes: [...marks, ...ends]};
}

function histogram(plot) {
  const most = Math.max(...plot.counts, plot.longer);
  const last = `${seconds(plot.edges[plot.edges.length - 1])}, then all longer ones`;
  const {y, shapes} = axes(0, most, (count) => String(Math.round(count)), seconds(plot.edges[0]), last);
  const bins = [...plot.counts, plot.longer];
  const step = (WIDTH - 8 - LEFT) / bins.length;
  const bars = bins.map((count, index) => {
    const [from, to] = plot.edges.slice(index, index + 2).map(seconds);
    const hint = to ? `${count} from ${from} to ${to}` : `${count} longer than ${from}`;
    const place = {x: LEFT + index * step + 0.5, y: y(count), width: step - 1, height: Math.max(BOTTOM - y(count), 0)};
    return svg('rect', {class: to ? 'bar' : 'bar longer', ...place}, svg('title', {}, hint));
  });
  return chart(`how often each time occurred, of ${plot.count}`, shapes, bars);
}

function overTime(plot) {
  const medians = plot.over_time.map(([median]) => median);
  const maxima = plot.over_time.map(([, maximum]) => maximum);
  const ordered = [...maxima].sort((a, b) => a - b);
  const high = Math.max(...medians, ordered[Math.floor(0.95 * (ordered.length - 1))]);  // a few longer ones are cut off
  const {y, shapes} = axes(0, high, seconds, 'first', `last of ${plot.count}`);
  const x = (index) => LEFT + (index + 0.5) / medians.length * (WIDTH - 8 - LEFT);
  const line = (values) => path(values.map((value, index) => [x(index), y(Math.min(value, high))]));
  return chart('in their order: the median and, thin, the maximum of each span', shapes,
    svg('path', {class: 'line thin', d: line(maxima)}), svg('path', {class: 'line', d: line(medians)}));
}

function path(points) {
  return points.map(([x, y], index) => `${index ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`).join('');
}

// The percentiles of all devices, on a logarithmic scale; towards 100% the axis is stretched.
function curves() {
  const values = data.plots.flatMap((plot) => plot.curve.map(([, value]) => Math.log10(value)));
  const text = (value) => seconds(10 ** value);
  const {y, shapes} = axes(Math.min(...values), Math.max(...values), text, 'fastest', 'slowest');
  const count = data.plots[0].curve.length;
  const x = (index) => LEFT + index / (count - 1) * (WIDTH - 8 - LEFT);
  const lines = data.plots.map((plot, number) => {
    const points = plot.curve.map(([, value], index) => [x(index), y(Math.log10(value))]);
    const circles = plot.curve.map(([percent, value], index) =>
      svg('circle', {cx: points[index][0], cy: points[index][1], r: 3},
        svg('title', {}, `${data.devices[number].device}: ${percent}% within ${seconds(value)}`)));
    return svg('g', {class: 'series-' + number % 6}, svg('path', {class: 'line', d: path(points)}), circles);
  });
  const marks = data.plots[0].curve.map(([percent], index) =>
    svg('text', {x: x(index), y: BOTTOM + 12, 'text-anchor': index < count - 1 ? 'middle' : 'end'}, `${percent}`));
  const names = data.devices.map((device, number) => element('span', {class: 'series-' + number % 6}, device.device));
  const legend = element('p', {class: 'legend'}, names);
  return element('div', {}, chart('time by percentile', shapes, marks, lines), legend);
}

function ratio({ratio}, index) {
  return index ? `${ratio.median.toPrecision(3)} (${ratio.low.toPrecision(3)} to ${ratio.high.toPrecision(3)})` : '1';
}

function executions() {
  const percents = data.percentiles.map((percent) => `${percent}%`);
  const numbers = ['runs', ...percents, 'max', 'a second', 'ratio'];
  const rows = data.devices.map((device, index) => [
    device.device,
    String(device.execute.count),
    ...data.plots[index].percentiles.map(seconds),
    seconds(device.execute.max_seconds),
    device.executions_per_second.toPrecision(4),
    ratio(device, index),
  ]);
  return table(['device', ...numbers], rows, numbers);
}

function others() {
  const numbers = ['devices', 'compile', 'first run', 'to device', 'from device', 'operations on the fallback'];
  const owner = {device: 'a device', process: 'the process'};
  const rows = data.devices.map((device) => [
    device.device,
    `${device.platform}, ${device.platform_version}`,
    String(device.num_devices),
    seconds(device.compile_seconds),
    seconds(device.first_run_seconds),
    seconds(device.put.median_seconds),
    seconds(device.fetch.median_seconds),
    device.operations === null ? '' :
      `${Object.values(device.fallback).reduce((sum, count) => sum + count, 0)} of ${device.operations}`,
    device.memory_peak_of ? `${bytesText(device.memory_peak_bytes)} of ${owner[device.memory_peak_of]}` : 'unknown',
  ]);
  return table(['device', 'platform', ...numbers, 'memory peak'], rows, numbers);
}

function plotsOf(plots) {
  return Object.keys(PARTS).filter((part) => plots[part]).map((part) =>
    element('details', {open: part === 'execute' ? '' : null},
      element('summary', {}, PARTS[part]),
      element('div', {class: 'plots'}, histogram(plots[part]), overTime(plots[part]))));
}

const first = data.devices[0];
const header = element('header', {}, element('h1', {}, data.program), facts([
  ['devices', String(data.devices.length)],
  ['rounds', String(data.rounds)],
  ['in flight', String(first.in_flight)],
  ['arguments', bytesText(first.argument_bytes)],
  ['results', bytesText(first.result_bytes)],
]));
const HELP = 'From the call until all results are there. The ratio is the median as a multiple of that of the first ' +
  'device, with its range over the rounds.';
document.body.append(header, element('main', {},
  section('Executions', HELP, executions()),
  section('Other parts', 'Transfers are medians.', others()),
  Object.entries(data.errors).map(([device, error]) => section(`${device} failed`, error.message)),
  section('Percentiles', '', curves()),
  data.devices.map((device, index) => section(device.device, '', plotsOf(data.plots[index])))));
