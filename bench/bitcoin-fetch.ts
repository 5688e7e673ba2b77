/**
 * Fetches blocks from a node, the baseline of the bitcoin benchmark: `node bench/bitcoin-fetch.ts URL FROM TO CALLS`, with
 * credentials in the environment. It makes CALLS calls at once, receives the answers and drops them unread.
 */
const [url, from, to, calls] = process.argv.slice(2);
const { SVC_BITCOIN_RPC_USER: user, SVC_BITCOIN_RPC_PASSWORD: password } = process.env;
const headers = { authorization: `Basic ${Buffer.from(`${user}:${password}`).toString('base64')}` };
/** Verbosity of getblock that includes the outputs which inputs spend; without them fees are unknown. */
const WITH_PREVOUTS = 3;

async function call(method: string, ...params: unknown[]): Promise<ArrayBuffer> {
  const answer = await fetch(url, { method: 'POST', headers, body: JSON.stringify({ id: 1, method, params }) });
  if (!answer.ok) throw new Error(`${method}: HTTP ${answer.status}`);
  return await answer.arrayBuffer();
}

let next = Number(from);
async function fetchBlocks(): Promise<void> {
  while (next <= Number(to)) {
    const answer = Buffer.from(await call('getblockhash', next++)).toString();
    await call('getblock', (JSON.parse(answer) as { result: string }).result, WITH_PREVOUTS);
  }
}

await Promise.all(Array.from({ length: Number(calls) }, fetchBlocks));
