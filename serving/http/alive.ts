/**
 * Health check for the container of the HTTP service: it passes when the URL is answered with a status below 300. A program,
 * because the image has neither curl nor wget, and some engines split an argument that holds a statement at its blanks.
 *
 *     node serving/http/alive.ts http://127.0.0.1:8080/healthz
 */
const TIMEOUT_MS = 4000;

const [url = ''] = process.argv.slice(2);
try {
  const { ok, status } = await fetch(url, { signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (!ok) throw new Error(`it answered ${status}`);
} catch (error) {
  process.stderr.write(`${url}: ${error instanceof Error ? error.message : error}\n`);
  process.exitCode = 1;
}
