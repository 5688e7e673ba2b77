/** Shows an answer: candles or lines in a chart, and its rows as a table. */
import { candleSeries, chartIn, colours, LineSeries } from './charts.js';
import { byId, fill, h, table } from './dom.js';
import { counted, whole } from './format.js';
import { candlesOf, linesOf, MOST_LINES, valueColumns } from './series.js';

/** The most rows that the table shows. */
const SHOWN = 100;
/** Colours that differ in light and in dark, and for most people who are colour-blind. */
export const LINES = ['#2a8fa8', '#d9822b', '#7157d9', '#3d9a50', '#c2416b', '#8a6d3b', '#5b7c99', '#a05195'];

/** @type {{ remove: () => void } | undefined} */
let drawn;

/**
 * @param {{ rows: any[], isCut: boolean, warnings: any[], synthetic: boolean, ms: number }} answer
 * @param {any} dataset
 * @param {'native' | 'aligned_1s'} mode
 */
export function showResult(answer, dataset, mode) {
  const { rows, warnings } = answer;
  clearResult();
  const chartBox = h('div', {});
  const { fields } = dataset.modes[mode];
  const candles = rows.length > 0 ? candlesOf(rows) : undefined;
  const values = rows.length > 0 ? valueColumns(rows, fields) : [];
  const choices = [...(candles ? ['candles'] : []), ...values];
  const select = h('select', {}, ...choices.map((name) => h('option', { value: name }, name)));
  const draw = () => drawn_(chartBox, /** @type {HTMLSelectElement} */ (select).value, { rows, candles, dataset });
  select.addEventListener('change', draw);
  fill(
    byId('explorer-result'),
    h(
      'div',
      { class: 'panel' },
      h(
        'p',
        { class: 'result-head' },
        h(
          'span',
          {},
          h('b', {}, counted(rows.length, 'row')),
          answer.isCut ? ' shown; there are more, which were not read' : '',
          `, ${whole(answer.ms)} ms `,
          answer.synthetic && h('span', { class: 'badge' }, 'sample'),
        ),
        choices.length > 0 && h('label', { class: 'draw' }, 'draw ', select),
      ),
      ...warnings.map(({ code, message }) => h('p', { class: 'notice warn' }, h('b', {}, code), ' ', message)),
      rows.length === 0 && h('div', { class: 'empty' }, h('b', {}, 'No rows.')),
      choices.length > 0 && chartBox,
      rows.length > 0 && rowTable(rows, fields),
    ),
  );
  if (choices.length > 0) draw();
}

export function clearResult() {
  drawn?.remove();
  drawn = undefined;
  fill(byId('explorer-result'));
}

function drawn_(box, choice, { rows, candles, dataset }) {
  drawn?.remove();
  fill(box);
  const label =
    choice === 'candles'
      ? `${candles.candles.length} candles of ${dataset.key}`
      : `${choice} of ${dataset.key} over time`;
  const plotBox = h('div', { class: 'chart tall' });
  box.append(plotBox);
  const plot = chartIn(plotBox, { height: 340, label, seconds: true, scroll: false });
  drawn = plot;
  if (choice === 'candles') candleSeries(plot).show(candles);
  else lineChart(plot, box, linesOf(rows, choice, dataset.modes.aligned_1s.series_key));
  plot.chart.timeScale().fitContent();
}

function lineChart(plot, box, lines) {
  const shown = lines.slice(0, MOST_LINES);
  shown.forEach(({ points }, index) => {
    const color = shown.length === 1 ? colours().line : LINES[index];
    plot.chart
      .addSeries(LineSeries, { color, lineWidth: 2, priceLineVisible: false, pointMarkersVisible: points.length < 60 })
      .setData(points);
  });
  if (lines.length < 2) return;
  const more =
    lines.length > shown.length ? h('span', { class: 'faint' }, `and ${whole(lines.length - shown.length)} more`) : '';
  const keys = shown.map(({ name }, index) => {
    const swatch = h('i', {});
    swatch.style.background = LINES[index];
    return h('span', {}, swatch, name);
  });
  box.append(h('p', { class: 'legend lines' }, ...keys, more));
}

function rowTable(rows, fields) {
  const names = Object.keys(rows[0]);
  const isNumber = (name) => rows.some((row) => typeof row[name] === 'number');
  const unitOf = (name) => fields.find((field) => field.name === name)?.unit;
  const shown = rows.slice(-SHOWN);
  const text = (value) =>
    value === null
      ? h('span', { class: 'faint' }, 'null')
      : h('span', { class: 'cell', title: String(value).length > 40 ? String(value) : null }, String(value));
  return h(
    'div',
    {},
    rows.length > SHOWN && h('p', { class: 'faint' }, `The last ${SHOWN} of them:`),
    table({
      caption: 'Rows of the answer',
      columns: names.map((name) => ({
        name: unitOf(name) ? `${name} (${unitOf(name)})` : name,
        number: isNumber(name),
      })),
      rows: shown.map((row) => names.map((name) => text(row[name]))),
    }),
  );
}
