/** A request as programs that do the same, and that say what the service says of a fault. This file does not use the DOM. */

/**
 * By language, as the page names them.
 * @param {{ path: string, body: object }} request
 * @param {any} [dataset] undefined: a frame
 */
export const snippetsOf = (request, dataset) => ({
  curl: curlOf(request),
  Python: dataset ? pythonOf(request) : framePythonOf(request),
  TypeScript: clientOf(request, dataset),
});

/** @param {{ path: string, body: object }} request */
export function curlOf({ path, body }) {
  const text = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl -s "$TIDEMARK_URL${path}" \\\n  -H "X-API-Key: $TIDEMARK_KEY" \\\n  -d '${text}'`;
}

/** The call of the TypeScript client. @param {{ path: string, body: object }} request @param {any} [dataset] */
export function clientOf({ path, body }, dataset) {
  const name = dataset ? `get_${dataset.key}` : 'frame';
  const method = dataset && path === dataset.klines_path ? name.replace(/_trades$/, '_klines') : name;
  return `import { HistoricalData } from './client/index.ts';

const data = new HistoricalData({
  baseUrl: process.env.TIDEMARK_URL!,
  apiKey: process.env.TIDEMARK_KEY!,
});
try {
  const { rows } = await data.${method}(${literal(body).replaceAll('\n', '\n  ')});
  console.log(rows);
} catch (error) {
  console.error((error as Error).message);
  process.exitCode = 1;
}`;
}

/** @param {{ path: string, body: object }} request */
export const pythonOf = (request) =>
  pythonCode(request, {
    imports: 'import os, requests',
    accept: 'application/json',
    shows: 'for row in answer.json()["rows"]:\n    print(row)',
  });

/** @param {{ path: string, body: object }} request */
export const framePythonOf = (request) =>
  pythonCode(request, {
    imports: 'import os, polars as pl, requests',
    accept: 'application/vnd.apache.arrow.stream',
    shows: 'print(pl.read_ipc_stream(answer.content))',
  });

const pythonCode = ({ path, body }, { imports, accept, shows }) => `${imports}

answer = requests.post(
    os.environ["TIDEMARK_URL"] + "${path}",
    headers={"X-API-Key": os.environ["TIDEMARK_KEY"], "Accept": "${accept}"},
    json=${pythonLiteral(body).replaceAll('\n', '\n    ')},
)
if not answer.ok:
    raise SystemExit(answer.json()["detail"])
${shows}`;

/** @param {object} value */
function literal(value) {
  const text = JSON.stringify(value, null, 2);
  if (text === '{}') return '';
  // JavaScript as people write it: names without quotes, and texts in single quotes where they hold none and escape nothing. Each
  // text is matched as a whole, so that a quote which ends one is not taken for the beginning of another.
  return text
    .replaceAll(/^( *)"(\w+)":/gm, '$1$2:')
    .replaceAll(/"((?:[^"\\]|\\.)*)"/g, (whole, inner) => (/['\\]/.test(inner) ? whole : `'${inner}'`));
}

/** @param {object} value */
const pythonLiteral = (value) =>
  JSON.stringify(value, null, 2).replaceAll(/("(?:[^"\\]|\\.)*")|\b(true|false|null)\b/g, (whole, text, word) =>
    text ? whole : { true: 'True', false: 'False', null: 'None' }[word],
  );
