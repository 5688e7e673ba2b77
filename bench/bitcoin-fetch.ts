/**
 * Fetches blocks from a node, the baseline of the bitcoin benchmark: `node bench/bitcoin-fetch.ts URL FROM TO CALLS
 * [parse]`, with credentials in the environment. It makes CALLS calls at once, receives the answers, and drops them unread or
 * reads them with the product's parser.
 */
const [url, from, to, calls, read] = process.argv.slice(2);
const { SVC_BITCOIN_RPC_USER: user, SVC_BITCOIN_RPC_PASSWORD: password } = process.env;
const headers = { authorization: `Basic ${Buffer.from(`${user}:${password}`).toString('base64')}` };
/** Verbosity of getblock that includes the outputs which inputs spend; without them fees are unknown. */
const WITH_PREVOUTS = 3;

async function call(method: string, ...params: unknown[]): Promise<ArrayBuffer> {
  const answer = await fetch(url, { method: 'POST', headers, body: JSON.stringify({ id: 1, method, params }) });
  if (!answer.ok) throw new Error(`${method}: HTTP ${answer.status}`);
  return await answer.arrayBuffer();
}

/** The product's parser is loaded for `parse` alone: the baseline must not wait for it. */
async function parser(): Promise<(answer: Buffer) => void> {
  const { readBlockAnswer } = await import('../pipelines/sources/bitcoin/node-answers.ts');
  const { JsonCursor, JsonMembers } = await import('../pipelines/sources/bitcoin/rpc/json-cursor.ts');
  const { TextWriter } = await import('../pipelines/sources/bitcoin/text-writer.ts');
  const members = new JsonMembers('result');
  const writer = new TextWriter(0);
  return (answer) => {
    const cursor = new JsonCursor(answer);
    cursor.object();
    while (cursor.member()) {
      if (members.nameAt(cursor) === 'result') readBlockAnswer(cursor, writer);
      else cursor.skip();
    }
    cursor.finish();
  };
}

const parse = read === 'parse' ? await parser() : undefined;

let next = Number(from);
async function fetchBlocks(): Promise<void> {
  while (next <= Number(to)) {
    const answer = Buffer.from(await call('getblockhash', next++)).toString();
    const block = await call('getblock', (JSON.parse(answer) as { result: string }).result, WITH_PREVOUTS);
    parse?.(Buffer.from(block));
  }
}

await Promise.all(Array.from({ length: Number(calls) }, fetchBlocks));
