import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { createApp } from './serving/app.ts';
import { loadSettings } from './shared/config/load.ts';
import { createLogger } from './shared/log/logger.ts';

const settings = loadSettings({
  env: { SVC_INTERNAL_API_KEY: 'x', SVC_DATABASE_URL: 'postgres://a@127.0.0.1:1/x', SVC_STATE_DIR: '/tmp/zz-state' },
} as never);
const log = createLogger('error' as never, 'x');
const app = createApp({
  settings,
  databaseUrl: 'postgres://a@127.0.0.1:1/x',
  apiKey: 'x',
  rightsMatrixPath: 'serving/rights/sample/matrix.json',
  log,
});
const server = createServer(app.koa.callback()).listen(0, async () => {
  const port = (server.address() as { port: number }).port;
  const text = await (await fetch(`http://127.0.0.1:${port}/openapi.json`)).text();
  writeFileSync('/tmp/openapi.json', JSON.stringify(JSON.parse(text), null, 1));
  console.log(text.length);
  const { createConfig, lintFromString } = createRequire(import.meta.url)('@redocly/openapi-core');
  const config = await createConfig({ extends: ['recommended'] });
  const problems = await lintFromString({ source: text, absoluteRef: '/openapi.json', config });
  console.log(problems.length, 'problems');
  for (const p of problems.slice(0, 40))
    console.log(
      p.severity,
      p.ruleId,
      p.message.slice(0, 200),
      p.location.map((l: { pointer: string }) => l.pointer).join(' '),
    );
  process.exit(0);
});
