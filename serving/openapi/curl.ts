/** Examples as commands to paste: `$URL` and `$KEY` are set once, at the head of the page. */
import type { Route } from '../http/routes.ts';
import type { ExampleDoc } from './route-doc.ts';

/** What fits a line of a phone is left on it. */
const LINE = 72;

/** A value that is there once another command was run: a variable of the shell. */
export const isVariable = (value: string): boolean => /^\$[A-Z_]+$/.test(value);

const segment = (value: string) => (isVariable(value) ? value : encodeURIComponent(value));

/** The path of a request with its segments and parameters filled in. */
function targetOf(route: Pick<Route, 'path'>, { path = {}, query = {} }: ExampleDoc): string {
  const filled = route.path.replaceAll(/:(\w+)/g, (_, name: string) => segment(path[name] ?? ''));
  const parameters = new URLSearchParams(query).toString();
  return parameters === '' ? filled : `${filled}?${parameters}`;
}

export function curlOf(route: Pick<Route, 'path' | 'access' | 'method'>, example: ExampleDoc): string {
  const { headers = {}, body } = example;
  const options = [
    ...(route.method === 'DELETE' ? ['-X DELETE'] : []),
    ...(route.access !== 'open' ? ['-H "X-API-Key: $KEY"'] : []),
    ...Object.entries(headers).map(([name, value]) => `-H ${quoted(`${name}: ${value}`)}`),
    ...(body === undefined ? [] : [`-d ${quoted(bodyText(body))}`]),
  ];
  return [`curl -s "$URL${targetOf(route, example)}"`, ...options].join(' \\\n  ');
}

function bodyText(body: unknown): string {
  const line = JSON.stringify(body);
  if (line.length <= LINE) return line;
  const members = Object.entries(body as Record<string, unknown>).map(
    ([key, value]) => `  ${JSON.stringify(key)}: ${JSON.stringify(value)}`,
  );
  return `{\n${members.join(',\n')}\n}`;
}

const quoted = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;
