/** The page at /docs: the facts of the OpenAPI document for people. It loads nothing from other hosts. */
import { DATASETS, type DatasetDefinition, type Field, shapeOf } from '../../shared/registry/index.ts';
import { OPERATORS_OF } from '../contract/filters.ts';
import type { JsonSchema } from '../contract/json-schema.ts';
import { PROBLEMS, type ProblemCode, type ProblemKind } from '../contract/problems.ts';
import { MODES } from '../contract/shapes.ts';
import { REQUEST_HEADERS, type RouteDoc, TAGS } from '../http/routes.ts';
import { type About, curlOf, type Documented, headersOf, statusesOf, templateOf } from './document.ts';
import { schemaOf } from './row-docs.ts';

/** HTML text. Templates escape every value that is not of this class. */
class Html {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

type Content = Html | string | number | readonly Content[];

/** Builds HTML from a template and escapes its values. */
function html(parts: TemplateStringsArray, ...values: readonly Content[]): Html {
  return new Html(parts.reduce((text, part, index) => text + textOf(values[index - 1]) + part));
}

function textOf(content: Content): string {
  if (content instanceof Html) return content.text;
  if (Array.isArray(content)) return content.map(textOf).join('');
  return String(content).replaceAll(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

const NOTHING = new Html('');

/** Renders words in backticks as code. */
function prose(text: string): Html {
  return html`${text.split('`').map((part, index) => (index % 2 === 1 ? html`<code>${part}</code>` : part))}`;
}

const paragraphs = (text: string): Html =>
  html`${text.split(/\n\n+/).map((paragraph) => html`<p>${prose(paragraph)}</p>`)}`;

/**
 * A table in a box that scrolls, so that a wide table does not scroll the page.
 * @param label the table's name for screen readers; every table has a different one
 */
function table(label: string, header: readonly string[], rows: readonly (readonly Content[])[]): Html {
  if (rows.length === 0) return NOTHING;
  return html`<div class="scroll" ${scrolling(label)}><table><thead><tr>${header.map((cell) => html`<th scope="col">${cell}</th>`)}</tr></thead>
<tbody>${rows.map((cells) => html`<tr>${cells.map((cell) => html`<td>${cell}</td>`)}</tr>\n`)}</tbody></table></div>`;
}

/** Attributes of a box that scrolls: the keyboard can reach it, and it has a name. */
const scrolling = (label: string): Html => html`role="region" aria-label="${label}" tabindex="0"`;

export const STYLE_PATH = '/docs/docs.css';
export const SCRIPT_PATH = '/docs/docs.js';

/** Relative to /docs, so that the page works behind a path prefix. */
const relative = (path: string): string => path.slice(1);

export function docsPage(routes: readonly Documented[], about: About): string {
  const shown: Shown = new Map();
  const tags = Object.entries(TAGS).map(([tag, title]) => ({
    tag,
    title,
    // Routes without an operation are parts of the pages.
    routes: routes.filter(({ doc }) => doc.tag === tag && doc.operation !== undefined),
  }));
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${about.title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="page/page.css">
<link rel="stylesheet" href="${relative(STYLE_PATH)}">
<script src="${relative(SCRIPT_PATH)}" defer></script>
</head>
<body>
<nav aria-label="Contents">
<a class="home" href="#top">${about.title}</a>
<label class="search" hidden>Search <input type="search" placeholder="route, field or code" autocomplete="off"></label>
<p id="found" role="status"></p>
${tags.map(({ tag, routes: own }) => (own.length === 0 ? NOTHING : html`<h2>${tag}</h2><ul>${own.map(link)}</ul>`))}
<h2>reference</h2>
<ul><li><a href="#datasets">Datasets</a></li><li><a href="#filters">Filters</a></li><li><a href="#problems">Problems</a></li></ul>
</nav>
<main id="top">
<h1>${about.title} <small>${about.version}</small></h1>
${paragraphs(about.description)}
<section id="begin"><h2>Begin</h2>
<p>Set these two variables, beside the service by <code>eval "$(./tidemark env)"</code>, then paste any command of this page. The machine-readable form is <a href="openapi.json">/openapi.json</a>.</p>
${command('Commands to begin with', new Html('TIDEMARK_URL=<span data-origin>http://127.0.0.1:8080</span>\nTIDEMARK_KEY=…your key…'))}
</section>
${tags.map(({ tag, title, routes: own }) => (own.length === 0 ? NOTHING : html`<section id="${tag}"><h2>${title}</h2>${own.map((one) => operation(one, shown))}</section>`))}
<section id="datasets"><h2>Datasets</h2>
<p>For what is available and proved, see <a href="#${anchorOf('GET', '/v1/datasets')}"><code>GET /v1/datasets</code></a>.</p>
${[...DATASETS.values()].map(datasetSection)}</section>
<section id="filters"><h2>Filters</h2>
<p>A clause is <code>{"field", "op", "value"}</code>; all clauses must hold. <code>null</code> is allowed only with eq and ne, and a null cell matches nothing else.</p>
${table(
  'Operators of filters',
  ['dtype', 'op'],
  Object.entries(OPERATORS_OF).map(([dtype, operators]) => [
    dtype,
    operators.length === 0 ? 'none' : prose(operators.map((one) => `\`${one}\``).join(' ')),
  ]),
)}</section>
<section id="problems"><h2>Problems</h2>
<p>Every answer that is not 2xx is <code>application/problem+json</code>. Programs should check <code>code</code>, which does not change. Give <code>request_id</code> to the operator when you report a problem.</p>
${problemTable()}</section>
</main>
</body>
</html>
`.text;
}

const anchorOf = (method: string, path: string) => `${method.toLowerCase()}${path.replaceAll(/[^a-z0-9_]+/gi, '-')}`;

function link({ route, doc }: Documented): Html {
  return html`<li><a href="#${anchorOf(route.method, route.path)}" title="${doc.summary}"><b>${route.method}</b> <span>${shortPath(route.path).map((part) => html`${part}<wbr>`)}</span></a></li>`;
}

/** In the parts that a line may end between. */
const shortPath = (path: string) =>
  templateOf(path)
    .replace(/^\/v1\//, '')
    .split(/(?<=[/_])/);

/** Tables of members that the page has shown, each with the route that it stands at. */
type Shown = Map<string, { readonly anchor: string; readonly name: string }>;

/** A table where the page shows it first, and from then on a link to it: many routes take and answer the same. */
function once(
  shown: Shown,
  { route }: Documented,
  [what, header, rows]: readonly ['Body' | 'Answer', readonly string[], Content[][]],
): Html {
  const name = `${route.method} ${templateOf(route.path)}`;
  const text = textOf(rows);
  const first = shown.get(text);
  if (first) return html`<p>As of <a href="#${first.anchor}"><code>${first.name}</code></a>.</p>`;
  if (rows.length > 0) shown.set(text, { anchor: anchorOf(route.method, route.path), name });
  return table(`${what} of ${name}`, header, rows);
}

function operation(documented: Documented, shown: Shown): Html {
  const { route, doc, problems } = documented;
  const [{ content, headers = {}, doc: answer }] = doc.answers;
  const name = `${route.method} ${templateOf(route.path)}`;
  return html`<details class="route" id="${anchorOf(route.method, route.path)}">
<summary><h3><b class="method">${route.method}</b> <code>${templateOf(route.path)}</code></h3> <span>${prose(doc.summary)}</span></summary>
${paragraphs(doc.doc)}
${doc.examples.map((example) => html`<h4>${example.title}</h4>${command(`${name}: ${example.title}`, curlOf(route, example))}`)}
${parameterTable(`Parameters of ${name}`, { doc, problems })}
${doc.body ? html`<h4>Body</h4>${once(shown, documented, ['Body', ['key', 'takes', 'what it is'], propertyRows(schemaOf(doc.body, 'input'))])}` : NOTHING}
<h4>Answer</h4><p>${prose(answer)} ${prose(
    Object.keys(content)
      .map((type) => `\`${type}\``)
      .join(', '),
  )}</p>
${once(shown, documented, ['Answer', ['member', 'type', 'what it is'], answerRows(doc)])}
${Object.entries(headers).map(([name, what]) => html`<p><code>${name}</code>: ${prose(what)}</p>`)}
<h4>Problems</h4><p class="codes">${problems.map((code) => html`<a href="#${code}"><code>${code}</code></a> `)}</p>
</details>`;
}

/** Text to paste, with a copy button. */
function command(label: string, text: Content): Html {
  return html`<div class="command"><pre ${scrolling(label)}><code>${text}</code></pre></div>`;
}

function parameterTable(label: string, { doc: described, problems }: Pick<Documented, 'doc' | 'problems'>): Html {
  const { segments = {}, query } = described;
  const inPath = Object.entries(segments).map(([name, { doc, schema }]) => [
    html`<code>${name}</code>`,
    typeText(schema),
    prose(doc),
  ]);
  const { properties = {} } = query ? (schemaOf(query, 'input') as Properties) : {};
  const headers = headersOf({ doc: described, problems }).map((name) => [
    html`<code>${name}</code>`,
    'header',
    prose(REQUEST_HEADERS[name].doc),
  ]);
  const rows = [...inPath, ...propertyRows({ properties }), ...headers];
  return rows.length === 0 ? NOTHING : html`<h4>Parameters</h4>${table(label, ['name', 'takes', 'what it is'], rows)}`;
}

interface Properties {
  readonly properties?: Readonly<Record<string, JsonSchema>>;
  readonly required?: readonly string[];
}

function propertyRows({ properties = {}, required = [] }: Properties): Content[][] {
  return Object.entries(properties).map(([name, schema]) => [
    html`<code>${name}</code>`,
    html`${typeText(schema)}${schema.default === undefined ? '' : `, default ${JSON.stringify(schema.default)}`}`,
    html`${prose(String(schema.description ?? ''))}${required.includes(name) ? ' Required.' : ''}`,
  ]);
}

/** The members of a JSON answer, if it has named ones. */
function answerRows({ answers }: RouteDoc): Content[][] {
  const json = answers[0].content['application/json'];
  if (!json) return [];
  const { properties = {} } = schemaOf(json, 'output') as Properties;
  return Object.entries(properties).map(([name, schema]) => [
    html`<code>${name}</code>`,
    typeText(schema),
    prose(String(schema.description ?? '')),
  ]);
}

/** More choices than this are listed only in the OpenAPI document. */
const MAX_CHOICES = 12;

/** Describes a schema in a few words. */
function typeText(schema: JsonSchema): string {
  const { type, enum: choices, items, prefixItems, anyOf, minimum, maximum, format } = schema;
  if (Array.isArray(choices)) {
    return choices.length > MAX_CHOICES
      ? `one of ${choices.length} names`
      : choices.map((one) => JSON.stringify(one)).join(' or ');
  }
  if (Array.isArray(anyOf)) return [...new Set((anyOf as JsonSchema[]).map(typeText))].join(' or ');
  if (Array.isArray(prefixItems)) return `[${(prefixItems as JsonSchema[]).map(typeText).join(', ')}]`;
  if (type === 'array') return items && typeof items === 'object' ? `list of ${typeText(items as JsonSchema)}` : 'list';
  if (typeof format === 'string' && format.startsWith('date')) return format === 'date' ? 'YYYY-MM-DD' : 'time';
  if (type === 'integer' && typeof minimum === 'number' && typeof maximum === 'number') {
    return maximum >= Number.MAX_SAFE_INTEGER ? 'integer' : `integer, ${minimum} to ${maximum}`;
  }
  return typeof type === 'string' ? type : 'any';
}

function problemTable(): Html {
  return table(
    'All problems',
    ['code', 'status', 'meaning', 'try again after'],
    (Object.keys(PROBLEMS) as ProblemCode[]).map((code) => {
      const { title, retryAfter }: ProblemKind = PROBLEMS[code];
      return [
        html`<code id="${code}">${code}</code>`,
        statusesOf(code).join(', '),
        title,
        retryAfter === undefined ? '' : `${retryAfter} s`,
      ];
    }),
  );
}

function datasetSection(dataset: DatasetDefinition): Html {
  const { key, title, doc } = dataset;
  return html`<details id="${key}"><summary><code>${key}</code> ${title}</summary>${paragraphs(doc)}${MODES.map(
    (mode) => {
      const { view, order, fields } = shapeOf(dataset, mode);
      return html`<h3>${mode}</h3><p>View <code>${view.id}</code>, version ${view.version}; ordered by ${order.join(', ')}.</p>${fieldTable(`Fields of ${key} in mode ${mode}`, fields)}`;
    },
  )}</details>`;
}

const fieldTable = (label: string, fields: readonly Field[]): Html =>
  table(
    label,
    ['field', 'dtype', 'unit', 'what it is'],
    fields.map(({ name, dtype, nullable, unit = '', doc }) => [
      html`<code>${name}</code>`,
      `${dtype}${nullable ? '?' : ''}`,
      unit,
      prose(doc),
    ]),
  );
